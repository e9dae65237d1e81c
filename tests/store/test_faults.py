"""Faults that were found by trying to break the store; each test names the kind, not the case."""

from __future__ import annotations

import asyncio
import copy
import gc
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingKey, RoutingSchema, RoutingStore, SyncStore, WeightSpan, open_store
from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.errors import AlreadyExistsError
from fastdeploy_routing_plugins.store.bridge import as_async

from .memory import AsyncMemory, BlockingMemory, Shelf, open_memory, resolved

SCHEMA = RoutingSchema(16, 2, (1, 2, 3, 5))


def routing(tokens: int = 6, seed: int = 0) -> np.ndarray:
    first = np.random.default_rng(seed).integers(0, 16, (4, tokens, 1))
    return np.concatenate([first, (first + 1) % 16], axis=-1).astype(np.uint8)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


# --- arguments --------------------------------------------------------------------------------------

HUGE = 10**5000
BAD_CALLS: list[Callable[[SyncStore], Any]] = [
    lambda s: s.delete_prefix(None),  # type: ignore[arg-type]
    lambda s: s.list(""),
    lambda s: s.get("a", min_attempt="1"),  # type: ignore[arg-type]
    lambda s: s.get("a", min_attempt=float("nan")),  # type: ignore[arg-type]
    lambda s: s.get("a", layer_ids=5),  # type: ignore[arg-type]
    lambda s: s.get("a", layer_ids=[True]),
    lambda s: s.get("a", layer_ids=[1.0]),  # type: ignore[list-item]
    lambda s: s.get("a", layers=np.array([0, 1])),  # type: ignore[arg-type]
    lambda s: s.get("a", tokens=np.array([0])),  # type: ignore[arg-type]
    lambda s: s.get("a", tokens=(0, HUGE)),
    lambda s: s.get("a", timeout=HUGE),
    lambda s: s.get("a", choice=HUGE),
    lambda s: s.get(RoutingKey("a"), choice=0.0),  # type: ignore[arg-type]
    lambda s: s.get(RoutingKey("a"), choice=np.array([0, 1])),  # type: ignore[arg-type]
    lambda s: RoutingKey("a", 0, float("nan")),  # type: ignore[arg-type]
    lambda s: s.put("b", routing(), schema="x"),  # type: ignore[arg-type]
    lambda s: s.put("b", routing(), attempt=HUGE),
    lambda s: s.put("b", routing(), total_tokens=HUGE),
    lambda s: s.put("b", routing(), total_tokens=np.array([6, 6])),  # type: ignore[arg-type]
    lambda s: s.put("b", routing(), layout=np.array(["layer_first"] * 2)),  # type: ignore[arg-type]
    lambda s: s.put("b", routing(), tokens=slice(0, 6, np.array([1, 1]))),
    lambda s: s.seal("b", HUGE),
    lambda s: s.put("b", type("Odd", (), {"__array__": lambda self, *a, **k: int("x")})()),
]


@pytest.mark.parametrize("call", BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_a_bad_argument_is_a_typed_error_and_changes_nothing(shelf: Shelf, call: Callable[[SyncStore], Any]) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing())
        before = dict(shelf)
        with pytest.raises(e.RoutingError):
            call(store)
        assert shelf == before


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 6, 1)],
        [WeightSpan],
        None,
        5.5,
        "",
    ],
    ids=str,
)
def test_what_is_no_list_of_spans_is_refused(shelf: Shelf, spans: Any) -> None:
    with open_memory(shelf, schema=SCHEMA) as store, pytest.raises(e.InvalidRecordError):
        store.put("a", routing(), weight_versions=spans)


@pytest.mark.parametrize(
    "fields",
    [(0, 6, 1.0), (0, 6, None), (0, 6, True), (0, 6, [1]), (0, 6, b"ab"), (0, 6, "x" * 70_000), (0, 6, "\ud800"),
     (0, 6, ""), (0.0, 6, 1), (False, 6, 1), (-1, 6, 1), (0, 6, 2**63)],
    ids=lambda fields: ascii(fields)[:30],
)  # fmt: skip
def test_a_span_that_cannot_be_stored_is_refused(fields: Any) -> None:
    with pytest.raises(e.InvalidRecordError):
        WeightSpan(*fields)


def test_spans_from_a_generator_are_kept(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing(), weight_versions=(WeightSpan(i, i + 3, i) for i in (0, 3)))  # type: ignore[arg-type]
        assert store.get("a").weight_versions == (WeightSpan(0, 3, 0), WeightSpan(3, 6, 3))


def test_numpys_integers_and_strings_are_as_good_as_pythons(shelf: Shelf) -> None:
    with open_memory(shelf, schema=RoutingSchema(np.int64(16), np.int32(2), np.array([1, 2, 3, 5]))) as store:
        spans = [WeightSpan(np.int64(0), np.int64(6), np.int64(7))]
        store.put(np.str_("a"), routing(), choice=np.int64(1), attempt=np.int64(5), weight_versions=spans)
        store.put("b", routing()[:, :3], tokens=(np.int64(0), np.int64(3)))
        store.seal("b", np.int64(3))
        record = store.get("a", choice=1, layer_ids=np.array([2, 3]), min_attempt=np.int64(5))
        assert (type(record.attempt), type(store.list()[0].key.rollout_id), store.get("b").num_tokens) == (int, str, 3)


def test_an_abort_takes_any_text_as_its_reason(shelf: Shelf) -> None:
    with open_memory(shelf) as store:
        store.abort("a", "\ud800" * 9000)
        with pytest.raises(e.AbortedError, match="given up"):
            store.get("a")


def test_a_store_is_opened_with_a_schema_or_none() -> None:
    with pytest.raises(e.InvalidRecordError, match="RoutingSchema"):
        open_memory(Shelf(), schema={"num_experts": 3})  # type: ignore[arg-type]


# --- copies, forks, dropped stores ------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("form", [BlockingMemory, AsyncMemory])
def test_an_open_store_is_not_copied(shelf: Shelf, form: type, duplicate: Callable[[Any], Any]) -> None:
    with open_memory(shelf, form=form) as store, pytest.raises(e.UnsupportedError, match=r"store\.resolved"):
        duplicate(store)


def test_an_open_store_of_files_is_not_copied_either(tmp_path: Path) -> None:
    config = {"routing_store_type": "local", "local_store_dir": str(tmp_path / "store")}
    with open_store(config) as store, pytest.raises(e.UnsupportedError):
        pickle.dumps(store)


def test_a_child_by_fork_is_told_to_open_the_store_again(shelf: Shelf) -> None:
    with open_memory(shelf, form=AsyncMemory) as store:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                store.list()
            except e.StoreClosedError as err:
                os.write(writer, str(err).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        with os.fdopen(reader) as pipe:
            assert "opened in another process" in pipe.read()


def test_a_dropped_store_leaves_no_thread(shelf: Shelf) -> None:
    before = threading.active_count()
    for _ in range(10):
        open_memory(shelf, form=AsyncMemory)
    gc.collect()
    until = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


# --- races ------------------------------------------------------------------------------------------


def race(shelf: Shelf, form: type, first: Callable[[SyncStore], Any], second: Callable[[SyncStore], Any]) -> Any:
    """Lets ``second`` happen after ``first`` has looked at the rollout and before it stores its object."""

    def between(verb: str, name: str) -> None:
        if verb == "put":
            shelf.before = None
            with open_memory(shelf, schema=SCHEMA) as other:
                second(other)

    shelf.before = between
    with open_memory(shelf, form=form, schema=SCHEMA) as store:
        return first(store)


@pytest.mark.parametrize("form", [BlockingMemory, AsyncMemory])
def test_of_two_lengths_put_at_once_only_one_is_acknowledged(shelf: Shelf, form: type) -> None:
    with pytest.raises(e.ConflictError):
        race(shelf, form, lambda s: s.put("a", routing(7)), lambda s: s.put("a", routing(6)))
    with open_memory(shelf) as store:
        assert store.get("a").num_tokens == 6


def test_a_seal_that_meets_a_longer_part_is_withdrawn(shelf: Shelf) -> None:
    with pytest.raises(e.ConflictError):
        race(shelf, BlockingMemory, lambda s: s.seal("a", 3), lambda s: s.put("a", routing(6)))
    with open_memory(shelf) as store:
        assert store.get("a").num_tokens == 6


def test_of_two_different_overlaps_put_at_once_only_one_is_acknowledged(shelf: Shelf) -> None:
    with pytest.raises(e.ConflictError, match="tokens 2:4"):
        race(
            shelf,
            BlockingMemory,
            lambda s: s.put("a", routing()[:, :4], tokens=(0, 4)),
            lambda s: s.put("a", routing(seed=1)[:, 2:], tokens=(2, 6), total_tokens=6),
        )
    with open_memory(shelf) as store:
        np.testing.assert_array_equal(store.get("a", tokens=(2, 6)).routing, routing(seed=1)[:, 2:])


def test_an_attempt_that_is_overtaken_says_so_and_leaves_nothing(shelf: Shelf) -> None:
    with pytest.raises(e.SupersededError):
        race(
            shelf,
            BlockingMemory,
            lambda s: s.put("a", routing(), attempt=1),
            lambda s: s.put("a", routing(), attempt=2),
        )
    assert len(shelf) == 1


def put_forever(folder: str, tokens: int, rounds: int, results: Any) -> None:
    won = []
    config = {"routing_store_type": "local", "local_store_dir": folder}
    with open_store(config, schema=SCHEMA) as store:
        results.get()
        for index in range(rounds):
            try:
                store.put(f"r{index}", routing(tokens, seed=tokens))
            except e.ConflictError:
                continue
            won.append(index)
    results.put((tokens, won))


def test_two_processes_with_different_lengths_never_both_succeed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    rounds, folder = 200, str(tmp_path / "store")
    queues = [context.Queue() for _ in range(2)]
    workers = [
        context.Process(target=put_forever, args=(folder, 6 + index, rounds, queue))
        for index, queue in enumerate(queues)
    ]
    for worker in workers:
        worker.start()
    for queue in queues:
        queue.put("go")
    for worker in workers:
        worker.join(60)
    won = dict(queue.get(timeout=10) for queue in queues)
    assert not set(won[6]) & set(won[7])
    with open_store({"routing_store_type": "local", "local_store_dir": folder}) as store:
        for tokens, indices in won.items():
            for index in indices:
                np.testing.assert_array_equal(store.get(f"r{index}").routing, routing(tokens, seed=tokens))


class Slow(BlockingMemory):
    """Copies the payload a second after it was asked to."""

    def _put(self, name: str, header: bytes, payload: Any) -> None:
        time.sleep(0.3)
        super()._put(name, header, payload)


def test_a_cancelled_put_never_stores_what_the_caller_writes_next(shelf: Shelf) -> None:
    async def cancel() -> None:
        async with RoutingStore(resolved(lambda: None), as_async(Slow(shelf)), SCHEMA) as store:
            array = routing()
            task = asyncio.create_task(store.put("a", array))
            await asyncio.sleep(0.1)
            task.cancel()
            array[...] = 0
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.5)
            record = await store.get("a")
            np.testing.assert_array_equal(record.routing, routing())

    asyncio.run(cancel())


def test_a_repeated_put_over_damaged_bytes_is_no_success(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing())
        name, (header, payload) = next(iter(shelf.items()))
        shelf[name] = header, bytes(len(payload))
        with pytest.raises(e.CorruptDataError):
            store.put("a", routing())


# --- backends that break their contract -------------------------------------------------------------


def broken(verb: str, answer: Callable[..., Any], form: type = BlockingMemory) -> type:
    if form is BlockingMemory:
        return type("Broken", (form,), {verb: lambda self, *args: answer(*args)})

    async def method(self: Any, *args: Any) -> Any:
        return answer(*args)

    return type("Broken", (form,), {verb: method})


def fail(error: BaseException) -> Callable[..., Any]:
    def answer(*args: Any) -> Any:
        raise error

    return answer


def test_a_lack_of_memory_is_not_the_stores_fault(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing())
        shelf_get = BlockingMemory._get
        try:
            BlockingMemory._get = fail(MemoryError())  # type: ignore[method-assign]
            with pytest.raises(e.StoreUnavailableError, match="got no memory"):
                store.get("a")
        finally:
            BlockingMemory._get = shelf_get  # type: ignore[method-assign]


ANSWERS = {
    "_put": [lambda *a: False, lambda *a: True, fail(KeyError("x")), fail(AlreadyExistsError("x", header="text"))],
    "_get": [
        lambda *a: None, lambda *a: b"", lambda *a: Blob(None, ()), lambda *a: Blob("text", (b"",)),  # type: ignore[arg-type]
        lambda *a: Blob(b"", None), lambda *a: Blob(b"", ("text",)), fail(KeyError("x")), fail(RecursionError()),  # type: ignore[arg-type]
    ],
    "_list": [
        lambda *a: None, lambda *a: [1], lambda *a: "names", lambda *a: ["default/other"], fail(ValueError("x")),
    ],
    "_delete": [lambda *a: None, lambda *a: "many", lambda *a: -1, lambda *a: 99, fail(RuntimeError("x"))],
    "_flush": [fail(ZeroDivisionError("x"))],
}  # fmt: skip
CASES = [(verb, answer) for verb, answers in ANSWERS.items() for answer in answers]


@pytest.mark.parametrize("form", [BlockingMemory, AsyncMemory])
@pytest.mark.parametrize(("verb", "answer"), CASES, ids=[f"{verb} {i}" for i, (verb, _) in enumerate(CASES)])
def test_a_backend_that_breaks_its_contract_is_named(shelf: Shelf, form: type, verb: str, answer: Any) -> None:
    with open_memory(shelf, schema=SCHEMA) as good:
        good.put("a", routing())
    calls: dict[str, Callable[[SyncStore], Any]] = {
        "_put": lambda s: s.put("b", routing()),
        "_get": lambda s: s.get("a"),
        "_list": lambda s: s.status("a"),
        "_delete": lambda s: s.delete("a"),
        "_flush": lambda s: s.flush(),
    }
    with (
        open_memory(shelf, form=broken(verb, answer, form), schema=SCHEMA) as store,
        pytest.raises(e.BackendError, match="memory"),
    ):
        calls[verb](store)


@pytest.mark.parametrize("form", [BlockingMemory, AsyncMemory])
@pytest.mark.parametrize("verb", ["_open", "_close"])
def test_a_backend_that_fails_to_open_or_close_is_named(shelf: Shelf, form: type, verb: str) -> None:
    def trip() -> None:
        open_memory(shelf, form=broken(verb, fail(KeyError("x")), form)).close()

    with pytest.raises(e.BackendError):
        trip()


def test_a_listing_that_takes_underscores_for_wildcards_deletes_nothing(shelf: Shelf) -> None:
    def like(prefix: str) -> list[str]:
        return sorted(n for n in shelf if all(p in (c, "_") for p, c in zip(prefix, n, strict=False)))

    with open_memory(shelf, form=broken("_list", like), schema=SCHEMA) as store:
        with pytest.raises(e.BackendError):
            store.put("axb", routing()) and store.delete("a_b")
        assert all("axb" in name for name in shelf)


# --- what is stored, by whomever --------------------------------------------------------------------


def test_an_object_of_a_later_version_hides_nothing(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing())
        shelf[f"default/a/000000/routing/{0:019d}/a-new"] = b"x", b""
        assert [status.key.rollout_id for status in store.list()] == ["a"]
        assert store.clear(everything=True) == 1
    assert not shelf


def test_a_rollout_whose_id_cannot_be_read_is_cleared_too(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("x" * 300, routing())
        shelf.update({name: (b"damaged", payload) for name, (_, payload) in shelf.items()})
        assert store.clear(everything=True) == 1


def test_a_check_of_many_experts_needs_little_memory(shelf: Shelf) -> None:
    with open_memory(shelf) as store:
        ids = np.array([[[1, 2]], [[3, 4]]])
        store.put("a", ids, schema=RoutingSchema(2**32, 2, range(2)))
        report = store.verify("a")
    assert (report.experts_used, report.counts, report.ok) == ((2, 2), None, True)


def test_a_seal_without_parts_is_explained(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.seal("a", 5)
        with pytest.raises(e.PendingError, match="sealed with 5 tokens"):
            store.get("a")


@pytest.mark.parametrize("how", [{"layers": 3}, {"layer_ids": [5]}, {}])
def test_another_schema_is_the_first_thing_a_reader_hears_of(shelf: Shelf, how: Any) -> None:
    with open_memory(shelf) as store:
        store.put("a", routing()[:2], schema=RoutingSchema(16, 2, (1, 2)))
    with open_memory(shelf, schema=SCHEMA) as store, pytest.raises(e.SchemaMismatchError):
        store.get("a", **how)


def test_waiting_for_another_schema_ends_in_a_mismatch(shelf: Shelf) -> None:
    with open_memory(shelf) as store:
        store.put("a", routing()[:2], schema=RoutingSchema(16, 2, (1, 2)))
    with open_memory(shelf, schema=SCHEMA) as store, pytest.raises(e.SchemaMismatchError):
        store.wait("a", timeout=0)


# --- closing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [BlockingMemory, AsyncMemory])
def test_closing_ends_the_waits_of_other_threads(shelf: Shelf, form: type) -> None:
    store = open_memory(shelf, form=form)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            store.get("never", timeout=60)
        except e.RoutingError as err:
            errors.append(err)

    threads = [threading.Thread(target=wait) for _ in range(10)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    store.close()
    for thread in threads:
        thread.join(10)
    assert [type(err) for err in errors] == [e.StoreClosedError] * 10


@pytest.mark.parametrize("make", [BlockingMemory, AsyncMemory])
def test_closing_ends_the_waits_of_other_tasks(shelf: Shelf, make: type) -> None:
    async def close() -> list[Any]:
        store = RoutingStore(resolved(lambda: None), as_async(make(shelf)))
        await store.open()
        tasks = [asyncio.create_task(store.get("never", timeout=60)) for _ in range(10)]
        await asyncio.sleep(0.2)
        await store.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    assert [type(result) for result in asyncio.run(close())] == [e.StoreClosedError] * 10


def test_a_short_wait_is_short_after_many_cancelled_ones(tmp_path: Path) -> None:
    config = {"routing_store_type": "local", "local_store_dir": str(tmp_path / "store")}

    async def measure() -> float:
        from fastdeploy_routing_plugins import open_store_async

        async with open_store_async(config) as store:
            tasks = [asyncio.create_task(store.get("never", timeout=60)) for _ in range(16)]
            await asyncio.sleep(0.2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            started = time.monotonic()
            with pytest.raises(e.NotFoundError):
                await store.get("never", timeout=0.1)
            return time.monotonic() - started

    assert asyncio.run(measure()) < 0.4


def test_a_rollout_may_have_many_parts(shelf: Shelf) -> None:
    """1,000 one-token parts; every put used to take all names apart, and a check compared every pair."""
    with open_memory(shelf, schema=SCHEMA) as store:
        for token in range(1000):
            store.put("a", routing(1), tokens=(token, token + 1))
        store.seal("a", 1000)
        assert store.verify("a").ok
        assert store.get("a").num_tokens == 1000
