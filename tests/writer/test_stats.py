"""Statistics agree with what was done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from fastdeploy_routing_plugins import WriterStats

from .helpers import MIB, PATIENCE, Place, alive, routing, until

SIZE = routing().nbytes


@pytest.fixture(scope="module")
def stats(shared_place: Place) -> Iterator[WriterStats]:
    """The statistics after a known sequence, everything at rest."""
    bad = routing().astype("i2")
    bad[0, 0, 0] = 99
    with shared_place.writer() as writer:
        for number in range(5):
            writer.submit(f"x:{number}", routing(seed=number))
        writer.submit("x:0", routing(seed=0))  # a duplicate
        writer.submit("x:1", routing(seed=9))  # a conflict
        writer.submit("x:5", bad)
        writer.submit("x:6", bad)
        with writer.reserve("x:7", 10) as slot:
            slot.view[...] = routing()
        writer.reserve("x:8", 10).cancel()
        writer.submit("x:9", routing(4), tokens=(0, 4))
        writer.seal("x:9", 4)
        writer.seal("x:0", 11)  # a conflict
        writer.abort("x:10", "why")
        writer.delete("x:2")
        writer.flush()
        until(lambda: writer.stats().pending == 0)
        yield writer.stats()


def test_parts_handed_over_are_counted(stats: WriterStats) -> None:
    assert (stats.submitted, stats.submitted_bytes) == (11, 8 * SIZE + 2 * 2 * SIZE + routing(4).nbytes)


def test_parts_stored_are_counted(stats: WriterStats) -> None:
    assert (stats.stored, stats.stored_bytes) == (8, 7 * SIZE + routing(4).nbytes)


def test_duplicates_are_counted_among_them(stats: WriterStats) -> None:
    assert stats.duplicates == 1


def test_failures_are_counted_by_cause(stats: WriterStats) -> None:
    assert stats.failed == {"invalid_record": 2, "conflict": 2}


def test_nothing_is_pending_at_rest(stats: WriterStats) -> None:
    assert (stats.pending, stats.queue_bytes, stats.retained_bytes, stats.oldest_pending_s) == (0, 0, 0, 0.0)


def test_nothing_was_refused_or_spilled(stats: WriterStats) -> None:
    assert (stats.refused, stats.spilled_bytes, stats.worker_restarts) == (0, 0, 0)


def test_every_hand_over_of_a_part_was_timed(stats: WriterStats) -> None:
    assert stats.hand_over.count == stats.submitted


def test_every_stored_part_was_timed(stats: WriterStats) -> None:
    assert stats.store.count == stats.stored


def test_percentiles_are_in_order(stats: WriterStats) -> None:
    latency = stats.store
    assert 0 < latency.p50 <= latency.p99 <= latency.max


def test_the_arena_is_described(stats: WriterStats) -> None:
    assert (stats.arena_bytes, 0 < stats.arena_free_bytes <= stats.arena_bytes) == (8 * MIB, True)


def test_the_worker_is_described(stats: WriterStats) -> None:
    assert (alive(stats.worker_pid), stats.transport.endswith("local")) == (True, True)


def test_statistics_become_json(stats: WriterStats) -> None:
    assert json.loads(json.dumps(stats.to_dict()))["failed"] == {"invalid_record": 2, "conflict": 2}


def test_what_waits_is_counted(place: Place) -> None:
    place.flag.touch()
    with place.writer("unavailable") as writer:
        for number in range(3):
            writer.submit(f"x:{number}", routing())
        writer.seal("x:0", 10)
        stats = writer.stats()
        place.flag.unlink()
        assert (stats.pending, stats.queue_bytes, stats.stored) == (4, 3 * SIZE, 0)


def test_the_oldest_waiting_operation_gets_older(place: Place) -> None:
    place.flag.touch()
    with place.writer("unavailable") as writer:
        writer.submit("x", routing())
        until(lambda: writer.stats().oldest_pending_s > 0.2)
        place.flag.unlink()
        writer.flush()
        assert writer.stats().oldest_pending_s == 0.0


def test_the_time_in_the_queue_is_no_time_of_the_store(place: Place) -> None:
    with place.writer("slow", delay=0.1, limits={"lanes": 1}) as writer:
        began = time.monotonic()
        for number in range(5):
            writer.submit(f"x:{number}", routing())
        writer.flush()
        longest = time.monotonic() - began - 4 * 0.1  # the others took as long at least, one after the other
        assert 0.1 <= writer.stats().store.max <= longest


def test_a_ticket_knows_how_long_the_store_took(place: Place) -> None:
    with place.writer("slow", delay=0.1) as writer:
        assert 0.1 <= writer.submit("x", routing()).result(PATIENCE).seconds < PATIENCE
