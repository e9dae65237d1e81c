"""Reserving: the engine gathers straight into shared memory, then publishes or gives the memory back, once."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingWriter, SyncStore, WeightSpan
from fastdeploy_routing_plugins.errors import ArenaFullError, InvalidRecordError, NotFoundError, StoreClosedError

from .helpers import BIG, MIB, PATIENCE, SCHEMA, Place, routing, same


@pytest.fixture(scope="module")
def writer(shared_place: Place) -> Iterator[RoutingWriter]:
    with shared_place.writer() as writer:
        yield writer


@pytest.fixture(scope="module")
def store(writer: RoutingWriter, shared_place: Place) -> Iterator[SyncStore]:
    with shared_place.read() as store:
        yield store


@pytest.fixture
def rollout(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}:0:0:0"


@pytest.fixture
def free(writer: RoutingWriter) -> int:
    """Free bytes of the arena before the test."""
    writer.flush()
    return writer.stats().arena_free_bytes


def test_what_was_gathered_is_stored(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    slot = writer.reserve(rollout, 30)
    slot.view[...] = routing(30, seed=rollout)
    slot.publish().result(PATIENCE)
    assert same(store, rollout, routing(30, seed=rollout))


def test_the_writer_publishes_a_reservation_too(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    slot = writer.reserve(rollout, 30)
    slot.view[...] = routing(30, seed=rollout)
    writer.publish(slot).result(PATIENCE)
    assert same(store, rollout, routing(30, seed=rollout))


def test_the_end_of_a_with_block_publishes(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    with writer.reserve(rollout, 30) as slot:
        slot.view[...] = routing(30, seed=rollout)
    writer.flush()
    assert same(store, rollout, routing(30, seed=rollout))


def test_the_view_has_the_schemas_form(writer: RoutingWriter, rollout: str) -> None:
    slot = writer.reserve(rollout, 30)
    slot.cancel()
    assert (slot.view.shape, slot.view.dtype.name, slot.view.flags.c_contiguous) == ((6, 30, 4), "uint8", True)


def test_another_dtype_is_narrowed_on_its_way(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    with writer.reserve(rollout, 30, dtype="int32") as slot:
        slot.view[...] = routing(30, seed=rollout)
    writer.flush()
    assert store.get(rollout).routing.tobytes() == routing(30, seed=rollout).tobytes()


def test_parts_can_be_reserved_with_all_that_belongs_to_them(
    writer: RoutingWriter, store: SyncStore, rollout: str
) -> None:
    expected = routing(10, seed=rollout)
    for layers in ((0, 2), (2, 6)):
        versions = [WeightSpan(0, 10, 3)]
        with writer.reserve(rollout, 10, layers=layers, choice=2, attempt=5, weight_versions=versions) as slot:
            slot.view[...] = expected[slice(*layers)]
    writer.flush()
    record = store.get(rollout, choice=2)
    assert (record.attempt, record.weight_versions, np.array_equal(record.routing, expected)) == (
        5,
        (WeightSpan(0, 10, 3),),
        True,
    )


def test_a_range_of_tokens_can_be_reserved(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    expected = routing(10, seed=rollout)
    for tokens in ((4, 10), (0, 4)):
        with writer.reserve(rollout, tokens[1] - tokens[0], tokens=tokens, total_tokens=10) as slot:
            slot.view[...] = expected[:, slice(*tokens)]
    writer.flush()
    assert same(store, rollout, expected)


def test_a_published_view_cannot_be_written_to(writer: RoutingWriter, rollout: str) -> None:
    with writer.reserve(rollout, 10) as slot:
        slot.view[...] = routing()
    with pytest.raises(ValueError, match="read-only"):
        slot.view[0, 0, 0] = 1


def test_a_reservation_is_published_once(writer: RoutingWriter, rollout: str) -> None:
    with writer.reserve(rollout, 10) as slot:
        slot.view[...] = routing()
    with pytest.raises(StoreClosedError, match="published or cancelled before"):
        slot.publish()


def test_publishing_inside_the_with_block_is_enough(writer: RoutingWriter, rollout: str) -> None:
    with writer.reserve(rollout, 10) as slot:
        slot.view[...] = routing()
        ticket = slot.publish()
    assert not ticket.result(PATIENCE).duplicate


def test_a_cancelled_reservation_is_not_published(writer: RoutingWriter, rollout: str) -> None:
    slot = writer.reserve(rollout, 10)
    slot.cancel()
    with pytest.raises(StoreClosedError):
        slot.publish()


def test_cancelling_gives_the_memory_back_once(writer: RoutingWriter, rollout: str, free: int) -> None:
    slot = writer.reserve(rollout, 1000)
    held = writer.stats().arena_free_bytes
    slot.cancel()
    slot.cancel()
    assert (held < free, writer.stats().arena_free_bytes) == (True, free)


def test_an_exception_in_the_with_block_gives_the_memory_back(writer: RoutingWriter, rollout: str, free: int) -> None:
    with pytest.raises(RuntimeError, match="gathering failed"), writer.reserve(rollout, 1000):
        raise RuntimeError("gathering failed")
    assert writer.stats().arena_free_bytes == free


def test_an_exception_in_the_with_block_publishes_nothing(
    writer: RoutingWriter, store: SyncStore, rollout: str
) -> None:
    with pytest.raises(RuntimeError), writer.reserve(rollout, 10):
        raise RuntimeError("gathering failed")
    writer.flush()
    with pytest.raises(NotFoundError):
        store.get(rollout)


def test_a_dropped_reservation_is_warned_about(
    writer: RoutingWriter, rollout: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer.reserve(rollout, 10)
    gc.collect()
    assert f"a reservation for '{rollout}' was dropped" in caplog.text


def test_a_dropped_reservation_gives_its_memory_back(writer: RoutingWriter, rollout: str, free: int) -> None:
    writer.reserve(rollout, 1000)
    gc.collect()
    assert writer.stats().arena_free_bytes == free


def test_a_reservation_that_was_never_filled_is_caught(writer: RoutingWriter, rollout: str) -> None:
    slot = writer.reserve(rollout, 10)
    slot.view[...] = 7  # the same expert in all places of a row
    with pytest.raises(InvalidRecordError, match="never filled"):
        slot.publish().result(PATIENCE)


def test_reserved_bytes_are_no_queue(writer: RoutingWriter, rollout: str, free: int) -> None:
    slot = writer.reserve(rollout, 1000)
    try:
        assert writer.stats().queue_bytes == 0
    finally:
        slot.cancel()


def test_a_reservation_that_does_not_fit_is_refused(writer: RoutingWriter, rollout: str) -> None:
    with pytest.raises(ArenaFullError, match="does not fit into an arena"):
        writer.reserve(rollout, 9 * MIB // SCHEMA.num_layers // SCHEMA.row_bytes)


def test_a_flush_does_not_wait_for_what_is_only_reserved(writer: RoutingWriter, rollout: str) -> None:
    slot = writer.reserve(rollout, 10)
    try:
        assert writer.flush(PATIENCE).pending == 0
    finally:
        slot.cancel()


def test_a_reservation_does_not_outlive_its_writer(place: Place) -> None:
    with place.writer() as writer:
        slot = writer.reserve("x", 10)
    with pytest.raises(StoreClosedError):
        slot.publish()


def test_a_view_of_a_closed_writer_can_still_be_written_to(place: Place) -> None:
    with place.writer() as writer:
        slot = writer.reserve("x", 10)
    slot.view[...] = 5
    assert slot.view.max() == 5
    slot.cancel()


def test_no_tokens_can_be_reserved(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.reserve(rollout, 0).publish().result(PATIENCE)
    assert store.get(rollout).num_tokens == 0


def test_many_reservations_lie_side_by_side(place: Place) -> None:
    with place.writer(schema=BIG) as writer, place.read() as store:
        slots = {number: writer.reserve(f"x:{number}", 500, tokens=(0, 500), total_tokens=500) for number in range(40)}
        for number, slot in slots.items():
            slot.view[...] = routing(500, seed=number, schema=BIG)
        for slot in reversed(slots.values()):
            slot.publish()
        writer.flush()
        assert all(same(store, f"x:{number}", routing(500, seed=number, schema=BIG)) for number in slots)
