"""``RoutingReader``: what comes back, what is refused, what is waited for, and how much is moved."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_routing_plugins import (
    ParallelLayout,
    RoutingBatch,
    RoutingKey,
    RoutingReader,
    RoutingRecord,
    RoutingSchema,
    RoutingShare,
    open_reader,
)
from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.reader import bulk, gathering
from fastdeploy_routing_plugins.spec import Capability

from ..store.memory import FULL, AsyncMemory, BlockingMemory
from .places import NAMES, RDMA, SCHEMA, Place, config, memory, place, routing

IDS = [f"s:{number}:0:0" for number in range(6)]
LENGTHS = [7, 10, 1, 12, 5, 9]
ARRAYS = {key: routing(length, seed) for seed, (key, length) in enumerate(zip(IDS, LENGTHS, strict=True))}


@pytest.fixture(scope="module", params=[*NAMES, *RDMA])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store of each kind that holds ``ARRAYS``."""
    found = place(request.param, tmp_path_factory.mktemp("reader"))
    with found.store() as store:
        for key, array in ARRAYS.items():
            store.put(key, array)
        yield found  # what `rdma` holds goes with who put it


@pytest.fixture(scope="module")
def reader(stored: Place) -> Iterator[RoutingReader]:
    with stored.reader() as opened:
        yield opened


@pytest.fixture(params=NAMES)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store of each kind that holds nothing."""
    return place(request.param, tmp_path)


def later(place: Place, seconds: float, key: str, array: np.ndarray, **how: Any) -> threading.Thread:
    """Puts something in a while, from another handle."""

    def body() -> None:
        time.sleep(seconds)
        with place.store() as store:
            store.put(key, array, **how)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


# --- one rollout ----------------------------------------------------------------------------------------------------


def test_a_rollout_comes_back_as_it_was_put(reader: RoutingReader) -> None:
    np.testing.assert_array_equal(reader.get(IDS[0]).routing, ARRAYS[IDS[0]])


def test_a_range_is_what_was_asked(reader: RoutingReader) -> None:
    np.testing.assert_array_equal(reader.get(IDS[1], 0.0, (2, 5), (3, 9)).routing, ARRAYS[IDS[1]][2:5, 3:9])


def test_layers_can_be_named_as_the_model_names_them(reader: RoutingReader) -> None:
    assert reader.get(IDS[1], layer_ids=[5, 6]).layer_ids == (5, 6)


def test_a_view_is_the_same_routing(reader: RoutingReader) -> None:
    np.testing.assert_array_equal(reader.view(IDS[3], layers=(1, 3)).routing, ARRAYS[IDS[3]][1:3])


def test_what_comes_back_cannot_be_written_to(reader: RoutingReader) -> None:
    assert not reader.get(IDS[3]).routing.flags.writeable


def test_reading_consumes_nothing(stored: Place) -> None:
    with stored.reader() as one, stored.reader() as other:
        np.testing.assert_array_equal(one.get(IDS[0]).routing, other.get(IDS[0]).routing)


def test_a_rollout_that_comes_in_time_is_waited_for(empty: Place) -> None:
    with empty.reader() as reader:
        thread = later(empty, 0.3, "late", routing())
        np.testing.assert_array_equal(reader.get("late", 60).routing, routing())
        thread.join()


def test_what_never_comes_says_how_long_it_was_waited_for(reader: RoutingReader) -> None:
    with pytest.raises(e.NotFoundError) as caught:
        reader.get("never", 0.2)
    assert caught.value.waited >= 0.2


def test_the_store_behind_a_reader_can_be_asked(reader: RoutingReader) -> None:
    assert reader.store.status(IDS[0]).state == "complete"


def test_a_closed_reader_says_so(empty: Place) -> None:
    reader = empty.reader()
    reader.close()
    reader.close()
    with pytest.raises(e.StoreClosedError, match="the reader is closed"):
        reader.get("x")


@pytest.mark.parametrize("wrong", [{"layout": 3}, {"prefetch_bytes": -1}, {"prefetch_records": 0}, {"schema": "x"}])
def test_what_no_reader_can_be_made_of_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(e.InvalidRecordError):
        memory(BlockingMemory).reader(**wrong)


def test_open_reader_opens_what_a_configuration_names(tmp_path: Path) -> None:
    place("local", tmp_path).store().put("x", routing())
    with open_reader(config(tmp_path), schema=SCHEMA) as reader:
        assert reader.get("x").num_tokens == 10


# --- the reader's word: schema and length ---------------------------------------------------------------------------

OTHERS = {
    "46 against 45 layers": (
        RoutingSchema(200, 2, range(46)),
        RoutingSchema(200, 2, range(1, 46)),
        "46 MoE layers, not 45; at position 0 there is layer 0, not layer 1",
    ),
    "shifted start": (
        RoutingSchema(200, 2, range(1, 47)),
        RoutingSchema(200, 2, range(3, 49)),
        "at position 0 there is layer 1, not layer 3",
    ),
    "last layer": (
        RoutingSchema(200, 2, range(8)),
        RoutingSchema(200, 2, range(7)),
        "8 MoE layers, not 7; at position 7 there is layer 7, not nothing",
    ),
    "experts": (RoutingSchema(200, 2, [1]), RoutingSchema(199, 2, [1]), "the number of experts is 200, not 199"),
    "top_k": (RoutingSchema(200, 2, [1]), RoutingSchema(200, 4, [1]), "top_k is 2, not 4"),
}


@pytest.mark.parametrize(("stored_as", "expected", "said"), OTHERS.values(), ids=OTHERS)
def test_another_schema_is_refused_with_what_differs(
    empty: Place, stored_as: RoutingSchema, expected: RoutingSchema, said: str
) -> None:
    with empty.store(stored_as) as store:
        store.put("x", routing(schema=stored_as))
    with empty.reader(schema=expected) as reader, pytest.raises(e.SchemaMismatchError) as caught:
        reader.get("x")
    assert caught.value.message.endswith(f"{stored_as}; the reader expects {expected}: {said}")


def test_both_sides_of_a_mismatch_are_facts(empty: Place) -> None:
    other = RoutingSchema(200, 2, range(8))
    with empty.store(other) as store:
        store.put("x", routing(schema=other))
    with empty.reader() as reader, pytest.raises(e.SchemaMismatchError) as caught:
        reader.get_batch(["x"], on_missing="mask")
    assert (caught.value.stored, caught.value.expected) == (other, SCHEMA)


@pytest.mark.parametrize(("num_tokens", "rows"), [(7, "n"), (8, "n-1"), (8, "shifted")])
def test_a_length_that_fits_is_accepted(reader: RoutingReader, num_tokens: int, rows: Any) -> None:
    assert reader.get(IDS[0], num_tokens=num_tokens, rows=rows).num_tokens == 7


@pytest.mark.parametrize(("num_tokens", "rows", "expected"), [(8, "n", 8), (7, "n-1", 6), (6, "n", 6), (0, "n-1", 0)])
def test_another_length_is_refused_with_both_numbers(
    reader: RoutingReader, num_tokens: int, rows: Any, expected: int
) -> None:
    with pytest.raises(e.LengthMismatchError) as caught:
        reader.get(IDS[0], num_tokens=num_tokens, rows=rows)
    assert (caught.value.stored, caught.value.expected) == (7, expected)


def test_the_length_of_a_range_is_that_of_its_rollout(reader: RoutingReader) -> None:
    with pytest.raises(e.LengthMismatchError, match="has 7 recorded tokens; the reader expects 9"):
        reader.get(IDS[0], tokens=(0, 3), num_tokens=9)


def test_one_length_that_does_not_fit_spoils_the_batch(reader: RoutingReader) -> None:
    with pytest.raises(e.LengthMismatchError, match=IDS[1]):
        reader.get_batch(IDS[:3], on_missing="mask", num_tokens=[7, 11, 1])


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"layers": 0, "layer_ids": [3]}, e.InvalidKeyError),
        ({"layers": (0, 9)}, e.InvalidKeyError),
        ({"layers": "all"}, e.InvalidKeyError),
        ({"layer_ids": [0]}, e.InvalidRecordError),
        ({"layer_ids": 3}, e.InvalidRecordError),
        ({"rows": "n+1"}, e.InvalidRecordError),
        ({"rows": "n-1"}, e.InvalidRecordError),
        ({"fresh": 3}, e.InvalidRecordError),
        ({"layers": np.array([0, 3])}, e.InvalidKeyError),
        ({"num_tokens": np.array([7, 7])}, e.InvalidRecordError),
        ({"rows": np.array(["n"])}, e.InvalidRecordError),
        ({"timeout": -1}, e.InvalidKeyError),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    reader: RoutingReader, how: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        reader.get(IDS[0], **how)


# --- batches --------------------------------------------------------------------------------------------------------


def same(batch: RoutingBatch, ids: list[str]) -> bool:
    """Whether a batch has the whole rollouts, in this order."""
    return [batch.routing[index][:, row].tolist() for index, row in enumerate(batch.mask)] == [
        ARRAYS[key].tolist() for key in ids
    ]


@given(st.lists(st.sampled_from(IDS), max_size=12))
@settings(max_examples=20)
def test_a_batch_has_the_rollouts_in_the_order_asked(reader: RoutingReader, ids: list[str]) -> None:
    assert same(reader.get_batch(ids), ids)


def test_a_batch_of_some_layers_has_those(reader: RoutingReader) -> None:
    batch = reader.get_batch(IDS[:2], layers=(2, 4))
    np.testing.assert_array_equal(batch.routing[1], ARRAYS[IDS[1]][2:4])


def test_a_batch_can_be_aligned_to_the_trainers_tokens(reader: RoutingReader) -> None:
    batch = reader.get_batch(IDS[:2], num_tokens=[8, 11], rows="n-1")
    assert batch.mask.sum(axis=1).tolist() == [7, 10]


@given(st.integers(0, 13), st.integers(0, 13), st.sampled_from(["n", "n-1", "shifted"]))
@settings(max_examples=30)
def test_a_batch_of_kept_tokens_is_the_cut_of_a_whole_one(
    reader: RoutingReader, start: int, stop: int, rows: Any
) -> None:
    counts = [length + (rows != "n") for length in LENGTHS]
    keep = slice(min(start, stop), max(start, stop))
    cut = reader.get_batch(IDS, num_tokens=counts, rows=rows, tokens=keep)
    whole = RoutingBatch.build([reader.get(key) for key in IDS], num_tokens=counts, rows=rows, tokens=keep)  # type: ignore[misc]
    np.testing.assert_array_equal(cut.routing, whole.routing)


def test_only_the_rows_of_kept_tokens_are_moved() -> None:
    place = memory(AsyncMemory)
    with place.store() as store:
        store.put("x", routing(40_000))
    with place.reader() as reader:
        place.shelf.moved = 0
        reader.get_batch(["x"], num_tokens=[40_000], tokens=slice(0, 4096))
    assert place.shelf.moved == 8 * 4096 * 2


def test_what_cannot_be_had_is_masked(reader: RoutingReader) -> None:
    batch = reader.get_batch([IDS[0], "never", IDS[2]], 0.05, "mask")
    assert (type(batch.missing[1]), batch.mask.sum(axis=1).tolist()) == (e.NotFoundError, [7, 0, 1])


def test_a_batch_of_nothing_but_missing_ones_has_the_readers_form(reader: RoutingReader) -> None:
    assert reader.get_batch(["a", "b"], on_missing="mask", layers=(0, 3)).routing.shape == (2, 3, 0, 2)


def test_what_cannot_be_had_is_an_error_that_names_all(reader: RoutingReader) -> None:
    with pytest.raises(e.NotFoundError, match=r"2 of 3 rollouts cannot be had: .*'never'.*; nor can 'too'") as caught:
        reader.get_batch([IDS[0], "never", "too"], 0.05)
    assert sorted(caught.value.failed) == [1, 2]


def test_a_batch_has_one_deadline(reader: RoutingReader) -> None:
    begin = time.monotonic()
    with pytest.raises(e.NotFoundError):
        reader.get_batch([f"never:{number}" for number in range(40)], 0.5)
    assert time.monotonic() - begin < 10


def test_a_batch_waits_for_what_comes(empty: Place) -> None:
    with empty.reader() as reader:
        threads = [later(empty, 0.1 * n, f"late:{n}", routing(n, n)) for n in (3, 1, 2)]
        batch = reader.get_batch([f"late:{n}" for n in (1, 2, 3)], 60)
        for thread in threads:
            thread.join()
    assert batch.lengths.tolist() == [1, 2, 3]


def test_what_waiting_does_not_cure_is_raised_at_once(empty: Place) -> None:
    with empty.store() as store, empty.reader() as reader:
        store.abort("gone", "client went away")
        begin = time.monotonic()
        with pytest.raises(e.AbortedError, match="client went away"):
            reader.get_batch(["never", "gone"], 60)
        assert time.monotonic() - begin < 30


def test_one_damaged_rollout_spoils_only_itself() -> None:
    place = memory(AsyncMemory)
    with place.store() as store:
        for key in ("a", "b"):
            store.put(key, routing())
    name = next(name for name in place.shelf if "/b/" in name)
    header, payload = place.shelf[name]
    place.shelf[name] = header, bytes(len(payload))
    with place.reader() as reader:
        assert type(reader.get_batch(["a", "b"], on_missing="mask").missing[1]) is e.CorruptDataError


def test_a_store_that_is_away_spoils_the_batch() -> None:
    place = memory(AsyncMemory)

    def away(verb: str, name: str) -> None:
        raise ConnectionError("no route")

    with place.store() as store, place.reader() as reader:
        store.put("a", routing())
        place.shelf.before = away
        with pytest.raises(e.StoreUnavailableError, match="no route"):
            reader.get_batch(["a"], on_missing="mask")


@pytest.mark.parametrize("form", [AsyncMemory, BlockingMemory])
@pytest.mark.parametrize("verb", ["get_batch", "as_completed"])
def test_a_producer_that_is_silent_is_waited_for(form: Any, verb: str) -> None:
    place, asked = memory(form), 0

    def silent(verb: str, name: str) -> None:
        nonlocal asked
        asked += "/a/" in name
        if "/a/" in name and asked < 4:
            raise e.StoreUnavailableError("gives no sign", owner="somebody")

    with place.store() as store, place.reader() as reader:
        for key in ("a", "b"):
            store.put(key, routing())
        place.shelf.before = silent
        call = getattr(reader, verb)
        found = dict(call(["a", "b"], timeout=20)) if verb == "as_completed" else call(["a", "b"], timeout=20).keys
        assert len(found) == 2


def test_a_producer_that_stays_silent_spoils_its_own_rollouts_only() -> None:
    place = memory(AsyncMemory)

    def silent(verb: str, name: str) -> None:
        if "/a/" in name:
            raise e.StoreUnavailableError("gives no sign", owner="somebody")

    with place.store() as store, place.reader() as reader:
        for key in ("a", "b"):
            store.put(key, routing())
        place.shelf.before = silent
        batch = reader.get_batch(["a", "b"], timeout=0.3, on_missing="mask")
        assert {index: type(err) for index, err in batch.missing.items()} == {0: e.StoreUnavailableError}
        np.testing.assert_array_equal(batch.routing[1], routing())
        with pytest.raises(e.StoreUnavailableError, match="gives no sign") as caught:
            reader.get_batch(["a", "b"], timeout=0.3)
        assert (list(caught.value.failed), caught.value.waited >= 0.3) == ([0], True)


@pytest.mark.parametrize("form", [AsyncMemory, BlockingMemory])
def test_an_iterator_keeps_the_reader_that_nobody_else_does(form: Any) -> None:
    place = memory(form)
    with place.store() as store:
        store.put("a", routing())
    found = dict(place.reader().as_completed(["a", "absent"], on_missing="mask"))
    assert len(found) == 2


@pytest.mark.parametrize("ids", ["s:0:0:0", RoutingKey("s"), 3, None])
def test_one_id_is_no_list_of_ids(reader: RoutingReader, ids: Any) -> None:
    with pytest.raises(e.InvalidKeyError, match="ids must be a list"):
        reader.get_batch(ids)


def test_what_is_to_become_of_missing_ones_is_a_known_word(reader: RoutingReader) -> None:
    with pytest.raises(e.InvalidRecordError, match="on_missing must be raise or mask"):
        reader.get_batch(IDS, on_missing="skip")  # type: ignore[arg-type]


def test_a_choice_is_asked_for_by_key(empty: Place) -> None:
    with empty.store() as store, empty.reader() as reader:
        store.put("x", routing(3), choice=1)
        assert reader.get_batch([RoutingKey("x", 1)]).lengths.tolist() == [3]


def test_more_ids_than_are_read_at_once_come_back(empty: Place) -> None:
    ids = [f"many:{number}" for number in range(100)]
    with empty.store() as store, empty.reader() as reader:
        for number, key in enumerate(ids):
            store.put(key, routing(1 + number % 7, number))
        assert reader.get_batch(ids).lengths.tolist() == [1 + number % 7 for number in range(100)]


class Counting(AsyncMemory):
    """A backend that counts its calls."""

    calls: list[str] = []  # noqa: RUF012 - of all handles

    async def _get(self, name: str, ranges: Any = None) -> Blob:
        self.calls.append("get")
        return await super()._get(name, ranges)

    async def _get_many(self, requests: Any) -> list[Blob | e.AbsentError]:
        self.calls.append(f"get {len(requests)}")
        return [await AsyncMemory._get(self, request.name, request.ranges) for request in requests]


STAGE, HALF = ParallelLayout(2, pp=2, stages=[7, 4]).rank(1), ParallelLayout(2, cp=2).rank(0)


@pytest.mark.parametrize(("layout", "gets"), [(None, 64), (STAGE, 64), (HALF, 128)])
def test_a_batch_that_is_there_is_one_call_of_the_backend(
    monkeypatch: pytest.MonkeyPatch, layout: Any, gets: int
) -> None:
    monkeypatch.setattr(Counting, "calls", [])
    place = memory(Counting)
    ids = [f"one:{number}" for number in range(64)]
    with place.store() as store, place.reader(layout) as reader:
        for key in ids:
            store.put(key, routing(16))
        Counting.calls.clear()
        reader.get_batch(ids)
    assert Counting.calls == [f"get {gets}"]


@pytest.mark.parametrize(("name", "limit"), [("_LISTED", 3), ("_AT_ONCE", 200), ("_FETCHES", 1)])
def test_a_batch_in_small_portions_is_the_same(
    monkeypatch: pytest.MonkeyPatch, reader: RoutingReader, name: str, limit: int
) -> None:
    monkeypatch.setattr(bulk, name, limit)
    assert same(reader.get_batch(IDS * 3), IDS * 3)


def test_an_older_attempt_than_asked_for_is_not_batched(empty: Place) -> None:
    with empty.store() as store, empty.reader() as reader:
        store.put("a", routing(), attempt=1)
        store.put("b", routing(), attempt=2)
        assert list(reader.get_batch(["a", "b"], on_missing="mask", min_attempt=2).missing) == [0]


def test_routing_of_another_schema_is_not_yielded(empty: Place) -> None:
    other = RoutingSchema(199, 2, SCHEMA.layer_ids)
    with empty.store(other) as store:
        for key in ("a", "b"):
            store.put(key, routing(schema=other))
    with empty.reader() as reader, pytest.raises(e.SchemaMismatchError, match="199, not 200"):
        list(reader.as_completed(["a", "b"]))


def test_a_rollout_that_goes_between_listing_and_reading_is_missing() -> None:
    place = memory(AsyncMemory)

    def vanish(verb: str, name: str) -> None:
        place.shelf.pop(name, None) if verb == "get" and "/b/" in name else None

    with place.store() as store, place.reader() as reader:
        for key in ("a", "b"):
            store.put(key, routing())
        place.shelf.before = vanish
        assert list(reader.get_batch(["a", "b"], on_missing="mask").missing) == [1]


def test_a_rollout_that_comes_again_meanwhile_is_read() -> None:
    place = memory(AsyncMemory)
    gone: dict[str, Any] = {}

    def vanish(verb: str, name: str) -> None:
        if verb == "get" and "/b/" in name and not gone:
            gone[name] = place.shelf.pop(name)
            threading.Timer(0.1, lambda: place.shelf.update(gone)).start()

    with place.store() as store, place.reader() as reader:
        for key in ("a", "b"):
            store.put(key, routing())
        place.shelf.before = vanish
        assert reader.get_batch(["a", "b"], 60).mask.all()


# --- as they come ---------------------------------------------------------------------------------------------------


def test_iteration_yields_every_rollout_with_its_id(reader: RoutingReader) -> None:
    assert {key: found.num_tokens for key, found in reader.as_completed(IDS)} == dict(zip(IDS, LENGTHS, strict=True))


def test_iteration_yields_first_what_is_there_first(empty: Place) -> None:
    with empty.store() as store, empty.reader() as reader:
        store.put("there", routing())
        thread = later(empty, 0.5, "late", routing())
        assert [key for key, _ in reader.as_completed(["late", "there"], 60)] == ["there", "late"]
        thread.join()


def test_iteration_raises_after_the_last_rollout_that_came(reader: RoutingReader) -> None:
    steps = reader.as_completed(["never", *IDS], 0.1)
    seen = [next(steps)[0] for _ in IDS]
    with pytest.raises(e.NotFoundError, match="'never'"):
        next(steps)
    assert sorted(seen) == IDS


def test_iteration_yields_errors_if_asked(reader: RoutingReader) -> None:
    found = dict(reader.as_completed([IDS[0], "never"], 0.05, "mask"))
    assert type(found["never"]) is e.NotFoundError


def test_iteration_that_is_left_ends_what_is_under_way(empty: Place) -> None:
    with empty.store() as store, empty.reader() as reader:
        store.put("there", routing())
        steps = reader.as_completed(["never", "there"], 600)
        assert next(steps)[0] == "there"
        steps.close()  # type: ignore[attr-defined]
        begun = reader._own().begun
        deadline = time.monotonic() + 30
        while begun._tasks and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not begun._tasks


def test_iteration_ends_when_the_reader_is_closed(empty: Place) -> None:
    reader = empty.reader()
    steps = reader.as_completed(["never"], 600)
    closing = threading.Timer(0.2, reader.close)
    closing.start()
    with pytest.raises(e.StoreClosedError):
        next(steps)
    closing.join()


def test_what_tasks_raised_that_are_ended_is_not_printed() -> None:
    printed: list[Any] = []

    async def failing() -> None:
        raise e.StoreClosedError("closed")

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: printed.append(what))
        tasks = [asyncio.ensure_future(failing())]
        await asyncio.sleep(0.01)
        await gathering.ended(tasks)

    asyncio.run(body())
    gc.collect()
    assert printed == []


def test_unknown_terms_of_an_iteration_are_refused(reader: RoutingReader) -> None:
    with pytest.raises(TypeError, match="layer"):
        reader.as_completed(IDS, layer=3)


# --- a rank's share -------------------------------------------------------------------------------------------------


def test_a_stage_gets_its_layers_as_a_record(stored: Place) -> None:
    layout = ParallelLayout(2, pp=2, stages=[5, 6])  # three dense layers and two with a router; six with one
    with stored.reader(layout.rank(1)) as reader:
        record = reader.get(IDS[1])
    assert (type(record), record.layer_ids) == (RoutingRecord, tuple(range(5, 11)))


def test_a_stage_without_routers_asks_nothing() -> None:
    place = memory(AsyncMemory)
    place.shelf.before = lambda verb, name: pytest.fail(f"{verb} {name}")
    with place.reader(ParallelLayout(2, pp=2, stages=[3, 8]).rank(0)) as reader:
        reader.prefetch(["x"])
        batch = reader.get_batch(["x", "y"], 60, num_tokens=[4, 9])
    assert (batch.routing.shape, batch.lengths.tolist(), dict(batch.missing)) == ((2, 0, 9, 2), [4, 9], {})


def test_a_share_of_a_stage_without_routers_is_empty() -> None:
    with memory(BlockingMemory).reader(ParallelLayout(2, pp=2, stages=[3, 8]).rank(0)) as reader:
        share = reader.get("x", 60)
    assert (type(share), share.routing.shape, share.layer_ids, share.attempt) == (RoutingShare, (0, 0, 2), (), -1)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_gets_its_two_pieces_of_a_sample(stored: Place, rank: int) -> None:
    with stored.reader(ParallelLayout(4, cp=4).rank(rank)) as reader:
        share = reader.get(IDS[3])  # 12 tokens are 8 chunks of two, with padding
    chunks = [2 * rank, 2 * rank + 1, 14 - 2 * rank, 15 - 2 * rank]
    kept = [token for token in chunks if token < 12]
    np.testing.assert_array_equal(share.routing, ARRAYS[IDS[3]][:, kept])


def test_a_share_says_which_tokens_it_has(stored: Place) -> None:
    with stored.reader(ParallelLayout(2, cp=2).rank(0)) as reader:
        share = reader.get(IDS[3])
    assert (share.positions().tolist(), share.length) == ([0, 1, 2, 9, 10, 11], 6)


def test_a_share_hands_out_layers_by_the_models_index(stored: Place) -> None:
    layout = ParallelLayout(2, pp=2, stages=[4, 3, 2, 2], virtual=2)  # layers 3, 7, 8 and 4, 5, 6, 9, 10
    with stored.reader(layout.rank(0)) as reader:
        np.testing.assert_array_equal(reader.get(IDS[1]).layer(8), ARRAYS[IDS[1]][5])


def test_a_layer_of_another_rank_is_refused(stored: Place) -> None:
    layout = ParallelLayout(2, pp=2, stages=[4, 3, 2, 2], virtual=2)
    with stored.reader(layout.rank(0)) as reader, pytest.raises(e.InvalidRecordError, match="not this rank's"):
        reader.get(IDS[1]).layer(4)


def test_a_rank_beyond_a_short_sample_has_none_of_it(stored: Place) -> None:
    with stored.reader(ParallelLayout(4, cp=4).rank(2)) as reader:
        share = reader.get(IDS[2])
    assert (share.num_tokens, share.token_ranges, share.length, share.total_tokens) == (0, (), 2, 1)


def test_a_batch_of_shares_has_each_ranks_positions(stored: Place) -> None:
    with stored.reader(ParallelLayout(2, cp=2).rank(1)) as reader:
        batch = reader.get_batch(IDS[:4], num_tokens=[8, 11, 2, 13], rows="n-1")
    assert (batch.lengths.tolist(), batch.mask.sum(axis=1).tolist()) == ([4, 6, 2, 8], [4, 6, 0, 8])


def test_a_batch_of_shares_is_padded_as_the_sample_is(stored: Place) -> None:
    with stored.reader(ParallelLayout(2, cp=2).rank(0)) as reader:
        assert reader.get_batch(IDS[:4], pad_to=16).routing.shape == (4, 8, 8, 2)


def test_a_sample_longer_than_what_is_divided_is_refused(stored: Place) -> None:
    with (
        stored.reader(ParallelLayout(2, cp=2).rank(0)) as reader,
        pytest.raises(e.LengthMismatchError, match="divides 8"),
    ):
        reader.get(IDS[3], pad_to=8)


def test_tokens_of_a_rank_are_of_its_layers(stored: Place) -> None:
    with stored.reader(ParallelLayout(2, pp=2, stages=[5, 6]).rank(0)) as reader:
        np.testing.assert_array_equal(reader.get(IDS[1], tokens=(2, 4)).routing, ARRAYS[IDS[1]][:2, 2:4])


def test_explicit_layers_set_the_layout_aside(stored: Place) -> None:
    with stored.reader(ParallelLayout(2, cp=2).rank(0)) as reader:
        np.testing.assert_array_equal(reader.get(IDS[1], layers=(6, 8)).routing, ARRAYS[IDS[1]][6:])


@pytest.mark.parametrize("how", [{"rows": "shifted", "num_tokens": [8]}, {"tokens": slice(0, 3), "num_tokens": [7]}])
def test_a_share_is_not_cut_again(stored: Place, how: dict[str, Any]) -> None:
    with (
        stored.reader(ParallelLayout(2, cp=2).rank(0)) as reader,
        pytest.raises(e.UnsupportedError, match="cut or shift"),
    ):
        reader.get_batch(IDS[:1], **how)


def test_a_layout_that_leaves_recorded_layers_out_is_refused(stored: Place) -> None:
    with pytest.raises(e.ConfigError, match="layers 8, 9, 10 are in no pipeline stage"):
        stored.reader(ParallelLayout(2, pp=2, stages=[4, 4]).rank(0))


def test_a_share_is_of_one_attempt() -> None:
    place = memory(AsyncMemory)
    first, second = routing(16, 1), routing(16, 2)
    reads = 0

    def replace(verb: str, name: str) -> None:
        nonlocal reads
        reads += verb == "get"
        if reads == 1:  # the first piece was listed and is about to be read
            reads += 1
            with place.store() as other:
                other.put("x", second, attempt=7)

    with place.store() as store, place.reader(ParallelLayout(2, cp=2).rank(0)) as reader:
        store.put("x", first)
        place.shelf.before = replace
        share = reader.get("x", 10)
        place.shelf.before = None
    assert (share.attempt, share.routing.tolist()) == (7, second[:, share.positions()].tolist())


def test_a_share_shows_no_data(stored: Place) -> None:
    with stored.reader(ParallelLayout(2, cp=2).rank(0)) as reader:
        assert repr(reader.get(IDS[3])) == (
            "RoutingShare('s:3:0:0', shape=(8, 6, 2), dtype=uint8, attempt=0, tokens 0:3, 9:12 of 12)"
        )


# --- how much is moved ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [BlockingMemory, AsyncMemory])
def test_sixteen_ranks_move_the_whole_once(form: Any) -> None:
    """Eight layers over four stages, tokens over four context-parallel ranks: each rank moves a sixteenth."""
    place = memory(form)
    layout = ParallelLayout(16, pp=4, cp=4, stages=[5, 2, 2, 2], cp_split="contiguous")
    tokens = 4 * 4096  # ranges of whole digest chunks, so that checking them moves nothing more
    whole = routing(tokens)
    with place.store() as store:
        store.put("x", whole)
    seen = np.zeros(whole.shape[:2], int)
    moved = []
    for number in range(16):
        with place.reader(layout.rank(number)) as reader:
            place.shelf.moved = 0
            share = reader.get("x")
            moved.append(place.shelf.moved)
        rows = [SCHEMA.position(layer) for layer in share.layer_ids]
        seen[np.ix_(rows, share.positions())] += 1
        np.testing.assert_array_equal(share.routing, whole[np.ix_(rows, share.positions())])
    assert (seen.min(), seen.max(), set(moved)) == (1, 1, {whole.nbytes // 16})


def test_sixteen_data_parallel_ranks_move_the_whole_once() -> None:
    place = memory(AsyncMemory)
    ids = [f"s:{number}" for number in range(64)]
    with place.store() as store:
        for number, key in enumerate(ids):
            store.put(key, routing(5, number))
    layout = ParallelLayout(16)
    place.shelf.moved = 0
    seen: list[str] = []
    for number in range(16):
        mine = layout.rank(number).samples(ids)
        with place.reader(layout.rank(number)) as reader:
            seen += [key.rollout_id for key in reader.get_batch(mine).keys]
    assert (seen, place.shelf.moved) == (ids, 64 * routing(5).nbytes)


@given(st.data())
@settings(max_examples=30)
def test_ranks_together_have_every_cell_once(stored: Place, data: st.DataObject) -> None:
    cp, tp, pp = (data.draw(st.sampled_from([1, 2, 3]), name) for name in ("cp", "tp", "pp"))
    stages = [[layer for layer in range(11) if layer % 3 == stage % pp] for stage in range(pp)]
    edges = sorted(data.draw(st.lists(st.integers(0, 11), min_size=pp - 1, max_size=pp - 1)))
    stages = [list(range(a, b)) for a, b in zip([0, *edges], [*edges, 11], strict=True)]
    layout = ParallelLayout(
        cp * tp * pp, tp=tp, cp=cp, pp=pp, stages=stages, sequence_parallel=True,
        cp_split=data.draw(st.sampled_from(["zigzag", "contiguous"])),
    )  # fmt: skip
    key = data.draw(st.sampled_from(IDS))
    seen = np.zeros(ARRAYS[key].shape[:2], int)
    for number in range(layout.world_size):
        with stored.reader(layout.rank(number)) as reader:
            found = reader.get(key)
        rows = [SCHEMA.position(layer) for layer in found.layer_ids]
        columns = found.positions() if isinstance(found, RoutingShare) else np.arange(found.num_tokens)
        seen[np.ix_(rows, columns)] += 1
        np.testing.assert_array_equal(found.routing, ARRAYS[key][np.ix_(rows, columns)])
    assert (seen.min(), seen.max()) == (1, 1)


# --- what is done with ----------------------------------------------------------------------------------------------


class Lending(AsyncMemory):
    """A backend that is told what its readers are done with."""

    released: list[str] = []  # noqa: RUF012 - of all handles

    async def _release(self, names: Any) -> None:
        self.released += names


def test_release_tells_a_store_that_lends_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lending, "released", [])
    place = memory(Lending, has=FULL | Capability.RETAIN)
    with place.store() as store, place.reader() as reader:
        for key in ("a", "b", "c"):
            store.put(key, routing())
        reader.get_batch(["a", "b", "c"])
        reader.release(["a", "c"])
    assert Lending.released == [name for name in sorted(place.shelf) if "/b/" not in name]


def test_release_deletes_nothing_where_the_store_lends_nothing(empty: Place) -> None:
    with empty.store() as store, empty.reader() as reader:
        for key, array in ARRAYS.items():
            store.put(key, array)
        reader.release(IDS)
        assert same(reader.get_batch(IDS), IDS)


@pytest.mark.parametrize("how", [{"layers": (1, 3)}, {"layer_ids": [5, 6]}, {"tokens": (0, 1), "view": True}])
def test_a_timeout_that_is_none_is_refused_even_if_all_is_there(reader: RoutingReader, how: dict[str, Any]) -> None:
    with pytest.raises(e.InvalidKeyError, match="timeout"):
        reader.get(IDS[0], timeout=-1, **how)


def test_release_of_what_nobody_read_is_harmless(reader: RoutingReader) -> None:
    reader.release(["never"])
