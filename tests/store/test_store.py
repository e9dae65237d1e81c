"""The store's promises, over both forms of backend."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import Part, RoutingKey, RoutingSchema, RoutingStore, SyncStore, WeightSpan
from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.spec import Capability
from fastdeploy_routing_plugins.store.bridge import as_async

from .memory import AsyncMemory, BlockingMemory, Shelf, open_memory, resolved

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = RoutingSchema(16, 2, (1, 2, 3, 5))


def routing(tokens: int = 6, layers: int = 4, seed: int = 0) -> np.ndarray:
    first = np.random.default_rng(seed).integers(0, 16, (layers, tokens, 1))
    return np.concatenate([first, (first + 1) % 16], axis=-1).astype(np.uint8)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture(params=[BlockingMemory, AsyncMemory], ids=["blocking", "async"])
def store(request: pytest.FixtureRequest, shelf: Shelf) -> Iterator[SyncStore]:
    with open_memory(shelf, form=request.param, schema=SCHEMA) as opened:
        yield opened


# --- round trips ----------------------------------------------------------------------------------


def test_a_whole_rollout_comes_back_exactly(store: SyncStore) -> None:
    store.put("a", routing())
    np.testing.assert_array_equal(store.get("a").routing, routing())


def test_a_record_says_what_it_is(store: SyncStore) -> None:
    store.put(RoutingKey("a", 2), routing(), attempt=7, weight_versions=[WeightSpan(0, 6, 41)])
    record = store.get("a", choice=2)
    assert (record.key, record.schema, record.attempt, record.total_tokens) == (RoutingKey("a", 2), SCHEMA, 7, 6)
    assert (record.weight_versions, record.producers) == ((WeightSpan(0, 6, 41),), ("me",))


def test_what_is_returned_is_read_only(store: SyncStore) -> None:
    store.put("a", routing())
    with pytest.raises(ValueError, match="read-only"):
        store.get("a").routing[0, 0, 0] = 1


def test_a_record_shows_no_data_in_logs(store: SyncStore) -> None:
    store.put("a", np.full((4, 6, 2), [13, 14], np.uint8))
    assert "13" not in repr(store.get("a"))


def test_per_layer_puts_make_one_rollout(store: SyncStore) -> None:
    for layer in (2, 0, 3, 1):
        store.put("a", routing()[layer], layers=layer)
    np.testing.assert_array_equal(store.get("a").routing, routing())


def test_turns_are_appended_and_sealed(store: SyncStore) -> None:
    store.put("a", routing()[:, :4], tokens=(0, 4))
    store.put("a", routing()[:, 4:], tokens=slice(4, None))
    store.seal("a", 6)
    np.testing.assert_array_equal(store.get("a").routing, routing())


def test_zero_tokens_are_a_record(store: SyncStore) -> None:
    store.put("a", routing(0))
    assert store.get("a").routing.shape == (4, 0, 2)


def test_an_empty_part_may_be_appended_at_the_end(store: SyncStore) -> None:
    store.put("a", routing(), tokens=(0, 6))
    store.put("a", routing(0), tokens=(6, 6), total_tokens=6)
    assert store.get("a").routing.shape == (4, 6, 2)


def test_an_empty_range_is_an_empty_read(store: SyncStore) -> None:
    store.put("a", routing())
    assert store.get("a", tokens=(3, 3)).routing.shape == (4, 0, 2)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"layers": 1}, np.s_[1:2, :]),
        ({"layers": (1, 3)}, np.s_[1:3, :]),
        ({"layers": slice(2, None)}, np.s_[2:, :]),
        ({"layers": range(0, 2)}, np.s_[0:2, :]),
        ({"tokens": (2, 5)}, np.s_[:, 2:5]),
        ({"tokens": slice(4, None), "layers": 3}, np.s_[3:4, 4:]),
        ({"layer_ids": [3, 5]}, np.s_[2:4, :]),
        ({"layer_ids": [1]}, np.s_[0:1, :]),
    ],
    ids=str,
)
def test_a_range_is_read_by_position_or_identity(store: SyncStore, selection: Any, expected: Any) -> None:
    store.put("a", routing())
    np.testing.assert_array_equal(store.get("a", **selection).routing, routing()[expected])


def test_layers_are_labelled_by_the_models_own_index(store: SyncStore) -> None:
    store.put("a", routing())
    record = store.get("a", layers=(2, 4))
    assert record.layer_ids == (3, 5)
    np.testing.assert_array_equal(record.layer(5), routing()[3])


def test_a_layer_that_is_not_recorded_is_refused(store: SyncStore) -> None:
    store.put("a", routing())
    with pytest.raises(e.InvalidRecordError, match="layer 4 is not recorded"):
        store.get("a", layer_ids=[4])


@pytest.mark.parametrize("verify", [True, False])
def test_a_range_over_chunk_borders_is_exact(shelf: Shelf, verify: bool) -> None:
    data = routing(10_000)
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", data)
        for tokens in [(0, 4096), (4095, 4097), (5000, 9000), (9999, 10_000), (4096, 8192)]:
            got = store.get("a", tokens=tokens, layers=(1, 3), verify=verify).routing
            np.testing.assert_array_equal(got, data[1:3, slice(*tokens)])


def test_a_range_moves_only_its_chunks(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing(40_960))
        shelf.moved = 0
        store.get("a", layers=2, tokens=(5000, 5001))
    assert shelf.moved == 4096 * 2


def test_a_backend_without_ranges_gives_the_same(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA, has=Capability.READ | Capability.LIST) as store:
        store.put("a", routing(9000))
        np.testing.assert_array_equal(
            store.get("a", layers=(1, 3), tokens=(10, 8000)).routing, routing(9000)[1:3, 10:8000]
        )


def test_the_caller_may_reuse_its_array_after_put(store: SyncStore) -> None:
    array = routing()
    store.put("a", array)
    array[...] = 0
    np.testing.assert_array_equal(store.get("a").routing, routing())


# --- absence --------------------------------------------------------------------------------------


def test_a_rollout_nobody_put_is_not_found(store: SyncStore) -> None:
    with pytest.raises(e.NotFoundError):
        store.get("a")


def test_absence_is_also_a_lookup_error(store: SyncStore) -> None:
    with pytest.raises(LookupError):
        store.get("a")


def test_parts_without_a_total_are_pending(store: SyncStore) -> None:
    store.put("a", routing()[:, :4], tokens=(0, 4))
    with pytest.raises(e.PendingError):
        store.get("a")


def test_missing_parts_are_listed(store: SyncStore) -> None:
    store.put("a", routing()[1:3, :4], tokens=(0, 4), layers=(1, 3), total_tokens=6)
    with pytest.raises(e.IncompleteError) as caught:
        store.get("a")
    assert caught.value.missing == [Part((0, 6), (0, 1)), Part((4, 6), (1, 3)), Part((0, 6), (3, 4))]


def test_a_range_is_ready_before_the_rest(store: SyncStore) -> None:
    store.put("a", routing()[:, :4], tokens=(0, 4))
    np.testing.assert_array_equal(store.get("a", tokens=(1, 4)).routing, routing()[:, 1:4])


def test_an_aborted_rollout_says_why_at_once(store: SyncStore) -> None:
    store.abort("a", "client went away")
    started = time.monotonic()
    with pytest.raises(e.AbortedError, match="client went away") as caught:
        store.get("a", timeout=30)
    assert caught.value.reason == "client went away"
    assert time.monotonic() - started < 5


def test_a_complete_rollout_is_not_aborted(store: SyncStore) -> None:
    store.put("a", routing())
    with pytest.raises(e.ConflictError, match="complete"):
        store.abort("a", "too late")
    np.testing.assert_array_equal(store.get("a").routing, routing())


def test_a_complete_older_attempt_does_not_keep_the_new_one_from_being_aborted(store: SyncStore) -> None:
    store.put("a", routing(), attempt=1)
    store.put("a", routing()[:, :4], tokens=(0, 4), attempt=2)
    store.abort("a", "gone", attempt=2)
    with pytest.raises(e.AbortedError):
        store.get("a")


def test_absence_names_the_namespace(shelf: Shelf) -> None:
    with open_memory(shelf, namespace="run-7") as store, pytest.raises(e.NotFoundError, match="'run-7'"):
        store.get("a")


def test_the_first_reason_of_an_abort_stays(store: SyncStore) -> None:
    store.abort("a", "first")
    store.abort("a", "second")
    with pytest.raises(e.AbortedError, match="first"):
        store.get("a")


def test_a_put_into_an_aborted_attempt_is_refused(store: SyncStore) -> None:
    store.abort("a", "gone")
    with pytest.raises(e.AbortedError):
        store.put("a", routing())


def test_a_higher_attempt_follows_an_abort(store: SyncStore) -> None:
    store.abort("a", "gone")
    store.put("a", routing(), attempt=1)
    assert store.get("a").attempt == 1


def test_a_deadline_ends_in_the_last_absence_with_the_time_waited(store: SyncStore) -> None:
    with pytest.raises(e.NotFoundError) as caught:
        store.get("a", timeout=0.2)
    assert 0.2 <= caught.value.waited < 5


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), None, "1"])
def test_a_timeout_that_is_no_time_is_refused(store: SyncStore, timeout: Any) -> None:
    with pytest.raises(e.InvalidKeyError, match="timeout"):
        store.get("a", timeout=timeout)


def test_a_reader_waits_for_the_last_part(store: SyncStore) -> None:
    store.put("a", routing()[:, :4], tokens=(0, 4))

    def finish() -> None:
        time.sleep(0.1)
        store.put("a", routing()[:, 4:], tokens=(4, 6), total_tokens=6)

    thread = threading.Thread(target=finish)
    thread.start()
    np.testing.assert_array_equal(store.get("a", timeout=30).routing, routing())
    thread.join()


def test_wait_returns_when_the_rollout_is_complete(store: SyncStore) -> None:
    threading.Timer(0.1, lambda: store.put("a", routing())).start()
    assert store.wait("a", timeout=30).state == "complete"


# --- conflicts, attempts --------------------------------------------------------------------------


def test_the_same_routing_again_is_a_success(store: SyncStore) -> None:
    assert [store.put("a", routing()).duplicate for _ in range(3)] == [False, True, True]


def test_other_routing_in_the_same_place_is_a_conflict(store: SyncStore) -> None:
    store.put("a", routing())
    with pytest.raises(e.ConflictError):
        store.put("a", routing(seed=1))


def test_after_a_conflict_the_first_is_still_there(store: SyncStore) -> None:
    store.put("a", routing())
    with pytest.raises(e.ConflictError):
        store.put("a", routing(seed=1))
    np.testing.assert_array_equal(store.get("a").routing, routing())


@pytest.mark.parametrize("version", [7, np.int64(7), "step-7"])
def test_one_version_is_that_of_all_tokens(store: SyncStore, version: object) -> None:
    store.put("a", routing()[:, 2:], tokens=(2, 6), weight_versions=version)
    assert store.stat("a").weight_versions == (WeightSpan(2, 6, version),)
    store.put("empty", routing()[:, :0], weight_versions=version)
    assert store.get("empty").weight_versions == ()


@pytest.mark.parametrize("versions", [1.5, [7], ["a"], None, True, (WeightSpan(0, 6, 1), 2)])
def test_what_states_no_weights_says_how_to(store: SyncStore, versions: object) -> None:
    with pytest.raises(e.InvalidRecordError, match="one version or a list of WeightSpan") as info:
        store.put("a", routing(), weight_versions=versions)
    assert "[WeightSpan(start, stop, version), ...]" in info.value.hint


@pytest.mark.parametrize(
    "again",
    [
        (),
        (WeightSpan(0, 4, 7), WeightSpan(4, 6, "b")),
        (WeightSpan(0, 1, 7), WeightSpan(1, 4, 7), WeightSpan(4, 6, "b")),
    ],
)
def test_weights_stated_again_or_not_at_all_are_a_duplicate(store: SyncStore, again: tuple[WeightSpan, ...]) -> None:
    store.put("a", routing(), weight_versions=[WeightSpan(0, 4, 7), WeightSpan(4, 6, "b")])
    assert store.put("a", routing(), weight_versions=again).duplicate


@pytest.mark.parametrize(
    "first", [[], [WeightSpan(0, 6, 1)], [WeightSpan(0, 6, "2")], [WeightSpan(0, 5, 2), WeightSpan(5, 6, 3)]]
)
def test_the_same_routing_of_other_weights_is_a_conflict(store: SyncStore, first: list[WeightSpan]) -> None:
    store.put("a", routing(), weight_versions=first)
    with pytest.raises(e.ConflictError, match=r"not 2 of tokens 0:6"):
        store.put("a", routing(), weight_versions=[WeightSpan(0, 6, 2)])
    assert list(store.get("a").weight_versions) == first


def test_equal_overlaps_are_fine(store: SyncStore) -> None:
    store.put("a", routing()[:, :4], tokens=(0, 4), total_tokens=6)
    store.put("a", routing()[:, 2:], tokens=(2, 6))
    np.testing.assert_array_equal(store.get("a").routing, routing())


def test_different_overlaps_are_a_conflict_that_names_the_ranges(store: SyncStore, shelf: Shelf) -> None:
    store.put("a", routing()[:, :4], tokens=(0, 4), total_tokens=6)
    with pytest.raises(e.ConflictError, match="tokens 2:4"):
        store.put("a", routing(seed=1)[:, 2:], tokens=(2, 6))
    assert len(shelf) == 1


def test_different_overlaps_that_came_by_a_race_are_found_by_readers(shelf: Shelf) -> None:
    for seed, tokens in ((0, (0, 4)), (1, (2, 6))):
        other = Shelf()
        with open_memory(other, schema=SCHEMA) as store:
            store.put("a", routing(seed=seed)[:, slice(*tokens)], tokens=tokens, total_tokens=6)
        shelf.update(other)
    with open_memory(shelf) as store, pytest.raises(e.ConflictError, match="tokens 2:4"):
        store.get("a")


def test_choices_of_one_request_never_meet(store: SyncStore) -> None:
    for choice in range(3):
        store.put("a", routing(seed=choice), choice=choice)
    for choice in range(3):
        np.testing.assert_array_equal(store.get("a", choice=choice).routing, routing(seed=choice))


def test_a_higher_attempt_replaces_the_older_one(store: SyncStore, shelf: Shelf) -> None:
    store.put("a", routing(), attempt=1)
    store.put("a", routing(seed=1), attempt=2)
    np.testing.assert_array_equal(store.get("a").routing, routing(seed=1))
    assert len(shelf) == 1


def test_older_attempts_stay_until_the_new_one_is_complete(store: SyncStore, shelf: Shelf) -> None:
    store.put("a", routing(), attempt=1)
    store.put("a", routing(seed=1)[:, :4], tokens=(0, 4), attempt=2)
    assert len(shelf) == 2
    store.seal("a", 4, attempt=2)
    assert store.status("a").attempts == (2,)


def test_a_put_below_the_highest_attempt_is_superseded(store: SyncStore) -> None:
    store.put("a", routing(), attempt=2)
    with pytest.raises(e.SupersededError) as caught:
        store.put("a", routing(), attempt=1)
    assert caught.value.attempt == 2


def test_attempts_are_not_mixed(store: SyncStore) -> None:
    store.put("a", routing()[:, :4], tokens=(0, 4), attempt=1, total_tokens=6)
    store.put("a", routing()[:, 4:], tokens=(4, 6), attempt=2, total_tokens=6)
    with pytest.raises(e.IncompleteError):
        store.get("a")


def test_yesterdays_attempt_is_not_read_by_mistake(store: SyncStore) -> None:
    store.put("a", routing(), attempt=100)
    with pytest.raises(e.NotFoundError):
        store.get("a", min_attempt=101)


def test_two_totals_are_a_conflict(store: SyncStore) -> None:
    store.put("a", routing()[:, :4], tokens=(0, 4), total_tokens=6)
    with pytest.raises(e.ConflictError):
        store.seal("a", 7)


def test_a_part_beyond_the_seal_is_a_conflict_and_is_not_stored(store: SyncStore, shelf: Shelf) -> None:
    store.seal("a", 4)
    with pytest.raises(e.ConflictError):
        store.put("a", routing()[:, 2:], tokens=(2, 6))
    assert len(shelf) == 1


@pytest.fixture
def torn(shelf: Shelf) -> Shelf:
    """One rollout whose two producers raced with different totals, beside a good one."""
    for total in (6, 7):
        other = Shelf()
        with open_memory(other, schema=SCHEMA) as store:
            store.put("torn", routing()[:, :4], tokens=(0, 4), total_tokens=total)
        shelf.update(other)
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("good", routing())
    return shelf


def test_a_rollout_that_contradicts_itself_cannot_be_read(torn: Shelf) -> None:
    with open_memory(torn) as store, pytest.raises(e.ConflictError, match=r"'torn' contradicts itself.*6 and 7"):
        store.get("torn", timeout=30)


def test_a_rollout_that_contradicts_itself_is_listed_beside_the_others(torn: Shelf) -> None:
    with open_memory(torn) as store:
        assert [(s.key.rollout_id, s.state) for s in store.list()] == [("good", "complete"), ("torn", "conflict")]


def test_a_rollout_that_contradicts_itself_fails_its_check(torn: Shelf) -> None:
    with open_memory(torn) as store:
        assert "6 and 7" in store.verify("torn").problems[0]


def test_a_rollout_that_contradicts_itself_can_be_deleted(torn: Shelf) -> None:
    with open_memory(torn) as store:
        assert store.delete("torn") == 1


def test_a_higher_attempt_heals_a_rollout_that_contradicts_itself(torn: Shelf) -> None:
    with open_memory(torn, schema=SCHEMA) as store:
        store.put("torn", routing(), attempt=1)
        assert store.status("torn").attempts == (1,)


def test_a_read_survives_a_part_that_vanishes_under_it(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing(), attempt=1)

        def replace(verb: str, name: str) -> None:
            if verb == "get":
                shelf.before = None
                store.put("a", routing(seed=1), attempt=2)

        shelf.before = replace
        assert store.get("a").attempt == 2


# --- schema ---------------------------------------------------------------------------------------


def test_a_reader_with_another_schema_sees_both(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing())
    with (
        open_memory(shelf, schema=RoutingSchema(16, 2, (0, 1, 2, 3))) as reader,
        pytest.raises(e.SchemaMismatchError, match=r"1,2,3,5.*0\.\.3"),
    ):
        reader.get("a")


def test_a_reader_without_a_schema_learns_it(shelf: Shelf) -> None:
    with open_memory(shelf) as store:
        store.put("a", routing(), schema=SCHEMA)
        assert store.get("a").schema == SCHEMA


def test_a_put_without_a_schema_is_refused(shelf: Shelf) -> None:
    with open_memory(shelf) as store, pytest.raises(e.InvalidRecordError, match="schema"):
        store.put("a", routing())


@pytest.mark.parametrize("other", [RoutingSchema(16, 2, range(4)), RoutingSchema(17, 2, (1, 2, 3, 5))])
def test_parts_of_two_models_are_a_conflict(shelf: Shelf, other: RoutingSchema) -> None:
    with open_memory(shelf) as store:
        store.put("a", routing()[:, :4], tokens=(0, 4), total_tokens=6, schema=SCHEMA)
        with pytest.raises(e.ConflictError, match=r"16 experts.*(16|17) experts.*different schemas"):
            store.put("a", routing()[:, 4:], tokens=(4, 6), schema=other)
        assert len(shelf) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"tokens": (0, 5)},
        {"tokens": (4, 6), "total_tokens": 5},
        {"total_tokens": 7},
        {"layers": (0, 3)},
        {"layers": (2, 6)},
        {"tokens": (-6, 0)},
        {"tokens": slice(0, 6, 2)},
        {"attempt": -1},
        {"choice": -1},
        {"layout": "x"},
        {"weight_versions": [WeightSpan(0, 5, 1)]},
        {"weight_versions": [WeightSpan(0, 3, 1), WeightSpan(4, 6, 2)]},
    ],
    ids=str,
)
def test_a_put_that_contradicts_itself_stores_nothing(store: SyncStore, shelf: Shelf, arguments: Any) -> None:
    with pytest.raises((e.InvalidRecordError, e.InvalidKeyError)):
        store.put("a", routing(), **arguments)
    assert not shelf


# --- corruption -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 7, 4096])
def test_a_truncated_payload_is_corrupt(store: SyncStore, shelf: Shelf, cut: int) -> None:
    store.put("a", routing(4096))
    name, (header, payload) = next(iter(shelf.items()))
    shelf[name] = header, payload[:-cut]
    with pytest.raises(e.CorruptDataError):
        store.get("a")


def test_a_flipped_bit_is_found_in_its_chunk_only(store: SyncStore, shelf: Shelf) -> None:
    store.put("a", routing(10_000))
    name, (header, payload) = next(iter(shelf.items()))
    broken = bytearray(payload)
    broken[2 * 20_000 + 2 * 5000] ^= 1
    shelf[name] = header, bytes(broken)
    with pytest.raises(e.CorruptDataError, match="'a': layer position 2, tokens from 4096"):
        store.get("a")
    store.get("a", layers=(0, 2))
    store.get("a", tokens=(0, 4096))


def test_an_object_under_another_rollouts_name_is_corrupt(store: SyncStore, shelf: Shelf) -> None:
    store.put("a", routing())
    store.put("b", routing(seed=1))
    one, other = shelf
    shelf[one], shelf[other] = shelf[other], shelf[one]
    with pytest.raises(e.CorruptDataError, match="belongs to"):
        store.get("a")


def test_two_ids_behind_digests_are_told_apart(store: SyncStore) -> None:
    long = "x" * 300
    store.put(long, routing())
    store.put(long + "y", routing(seed=1))
    np.testing.assert_array_equal(store.get(long).routing, routing())
    assert [status.key.rollout_id for status in store.list()] == [long, long + "y"]


# --- listing, deleting, ownership -----------------------------------------------------------------


def test_a_prefix_ends_at_a_component(store: SyncStore) -> None:
    for text in ("x", "x:1", "x:10", "x:1:0", "x:1:0:0", "y"):
        store.put(text, routing())
    assert [status.key.rollout_id for status in store.list("x:1")] == ["x:1", "x:1:0", "x:1:0:0"]


def test_a_prefix_finds_ids_behind_digests(store: SyncStore) -> None:
    store.put("x:" + "1" * 300, routing())
    assert len(store.list("x")) == 1


def test_deleting_a_prefix_spares_the_neighbours(store: SyncStore) -> None:
    for text in ("x", "x:1", "x:10", "x:1:0"):
        store.put(text, routing())
    assert store.delete_prefix("x:1") == 2
    assert [status.key.rollout_id for status in store.list()] == ["x", "x:10"]


def test_deletes_count_what_existed(store: SyncStore) -> None:
    store.put("a", routing())
    store.put("b", routing())
    assert store.delete("a", "b", "c") == 2
    assert store.delete("a") == 0


def test_deleting_removes_every_attempt_and_part(store: SyncStore, shelf: Shelf) -> None:
    store.put("a", routing(), attempt=1)
    store.put("a", routing()[:, :4], tokens=(0, 4), attempt=2)
    assert store.delete("a") == 1
    assert not shelf


def test_clear_spares_what_others_wrote(shelf: Shelf) -> None:
    with (
        open_memory(shelf, schema=SCHEMA, producer="one") as one,
        open_memory(shelf, schema=SCHEMA, producer="two") as two,
    ):
        one.put("a", routing())
        two.put("b", routing())
        assert one.clear() == 1
        assert [status.key.rollout_id for status in two.list()] == ["b"]
        assert one.clear(everything=True) == 1


def test_clear_spares_other_namespaces(shelf: Shelf) -> None:
    spaces = ("a", "ab", "a-b", "b")
    for space in spaces:
        with open_memory(shelf, schema=SCHEMA, namespace=space) as store:
            store.put("x", routing())
    with open_memory(shelf, namespace="a") as store:
        assert store.clear(everything=True) == 1
    assert sorted(name.split("/")[0] for name in shelf) == ["a-b", "ab", "b"]


def test_opening_deletes_nothing(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("a", routing())
    with open_memory(shelf):
        pass
    assert len(shelf) == 1


# --- stat, verify ---------------------------------------------------------------------------------


def test_stat_moves_no_payload(store: SyncStore, shelf: Shelf) -> None:
    store.put("a", routing(), weight_versions=[WeightSpan(0, 6, "w1")])
    shelf.moved = 0
    stat = store.stat("a")
    assert (stat.schema, stat.weight_versions, stat.producers, shelf.moved) == (
        SCHEMA,
        (WeightSpan(0, 6, "w1"),),
        ("me",),
        0,
    )


def test_verify_of_a_good_rollout_finds_nothing(store: SyncStore) -> None:
    store.put("a", routing(100))
    report = store.verify("a")
    assert (report.ok, report.warnings, report.nbytes, len(report.experts_used)) == (True, (), 800, 4)


def test_verify_names_every_damaged_part(store: SyncStore, shelf: Shelf) -> None:
    for layer in range(4):
        store.put("a", routing()[layer], layers=layer)
    for name in list(shelf)[1:3]:
        shelf[name] = shelf[name][0], b"\0" * 12
    assert [problem.partition(",")[0] for problem in store.verify("a").problems] == ["layers 1:2", "layers 2:3"]


def test_verify_warns_of_a_constant_layer(store: SyncStore) -> None:
    data = routing()
    data[1] = [3, 4]
    store.put("a", data)
    assert store.verify("a").warnings == ("layer 2: all 6 tokens have the same experts",)


def test_verify_says_that_parts_are_missing(store: SyncStore) -> None:
    store.put("a", routing()[:2], layers=(0, 2))
    assert "lacks layers 2:4" in store.verify("a").problems[0]


# --- life -----------------------------------------------------------------------------------------


def test_a_closed_store_says_so(store: SyncStore) -> None:
    store.close()
    with pytest.raises(e.StoreClosedError):
        store.get("a")


def test_closing_twice_is_harmless(store: SyncStore) -> None:
    store.close()
    store.close()


class Stuck(BlockingMemory):
    def _close(self) -> None:
        time.sleep(60)


class StuckAsync(AsyncMemory):
    async def _close(self) -> None:
        await asyncio.sleep(60)

    async def _get(self, name: str, ranges: Any = None) -> Any:
        await asyncio.sleep(60)


@pytest.mark.parametrize("form", [Stuck, StuckAsync])
def test_a_backend_that_hangs_on_close_is_given_up(shelf: Shelf, form: type) -> None:
    store = open_memory(shelf, form=form)
    started = time.monotonic()
    with pytest.raises(e.StoreUnavailableError, match="did not close"):
        store.close(timeout=0.3)
    assert time.monotonic() - started < 5


def test_a_backend_that_never_answers_is_unavailable(shelf: Shelf) -> None:
    async def read() -> None:
        store = RoutingStore(resolved(lambda: None), StuckAsync(shelf), SCHEMA, call_limit=0.3)
        await store.open()
        try:
            await store.put("a", routing())
            await store.get("a")
        finally:
            with pytest.raises(e.StoreUnavailableError):
                await store.close(timeout=0.1)

    with pytest.raises(e.StoreUnavailableError, match="does not answer"):
        asyncio.run(read())


def test_a_store_that_keeps_nothing_refuses_to_read(shelf: Shelf) -> None:
    with open_memory(shelf, schema=SCHEMA, has=Capability.NONE) as store:
        store.put("a", routing())
        with pytest.raises(e.UnsupportedError):
            store.get("a")


def test_an_operating_system_error_is_a_typed_one(shelf: Shelf) -> None:
    class Refusing(BlockingMemory):
        def _put(self, name: str, header: bytes, payload: Any) -> None:
            raise ConnectionResetError("peer went away")

    with (
        open_memory(shelf, form=Refusing, schema=SCHEMA) as store,
        pytest.raises(e.StoreUnavailableError, match="peer went away"),
    ):
        store.put("a", routing())


def test_many_threads_share_one_handle(store: SyncStore) -> None:
    def work(index: int) -> None:
        store.put(f"r{index}", routing(50, seed=index))
        if not np.array_equal(store.get(f"r{index}").routing, routing(50, seed=index)):
            wrong.append(index)

    wrong: list[int] = []
    threads = [threading.Thread(target=work, args=(index,)) for index in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(store.list()) == 32


@pytest.mark.parametrize("form", [BlockingMemory, AsyncMemory])
def test_opening_and_closing_leaves_no_thread_behind(shelf: Shelf, form: type) -> None:
    before = threading.active_count()
    for _ in range(50):
        open_memory(shelf, form=form).close()
    assert threading.active_count() <= before


def test_the_asynchronous_form_serves_a_blocking_backend(shelf: Shelf) -> None:
    async def trip() -> Any:
        async with RoutingStore(resolved(lambda: None), as_async(BlockingMemory(shelf)), SCHEMA) as store:
            waiting = [asyncio.create_task(store.get(f"r{i}", timeout=30)) for i in range(40)]
            await asyncio.sleep(0.05)
            await asyncio.gather(*[store.put(f"r{i}", routing(seed=i)) for i in range(40)])
            return await asyncio.gather(*waiting)

    for index, record in enumerate(asyncio.run(trip())):
        np.testing.assert_array_equal(record.routing, routing(seed=index))
