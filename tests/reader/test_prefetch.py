"""Reading ahead: what was prefetched is taken once, bounds hold, and errors are left to whoever asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_routing_plugins import ParallelLayout, RoutingReader
from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.backend import Blob, Ranges
from fastdeploy_routing_plugins.spec import Capability

from ..store.memory import AsyncMemory
from .places import NAMES, Place, memory, place, routing

ONE = routing().nbytes


@pytest.fixture(params=NAMES)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store of each kind with five rollouts."""
    found = place(request.param, tmp_path)
    fill(found)
    return found


def fill(place: Place) -> None:
    with place.store() as store:
        for number in range(5):
            store.put(f"p:{number}", routing(seed=number))


IDS = [f"p:{number}" for number in range(5)]


def held(reader: RoutingReader) -> tuple[int, int]:
    begun = reader._own().begun
    return (0, 0) if begun is None else begun.prefetched.held


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def ready(reader: RoutingReader, count: int) -> bool:
    """Waits until so many rollouts were read."""
    entries = reader._own().concurrent().prefetched._entries
    return until(lambda: sum(entry.found is not None for entry in list(entries.values())) == count)


def test_what_was_prefetched_is_right(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(IDS)
        assert ready(reader, 5)
        np.testing.assert_array_equal(reader.get("p:3").routing, routing(seed=3))


def test_what_was_prefetched_needs_no_store() -> None:
    place = memory(AsyncMemory)
    fill(place)
    with place.reader() as reader:
        reader.prefetch(IDS)
        assert ready(reader, 5)
        place.shelf.clear()
        assert reader.get_batch(IDS).lengths.tolist() == [10] * 5


def test_what_was_taken_is_held_no_longer(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(IDS)
        assert ready(reader, 5)
        reader.get("p:0")
        reader.get_batch(["p:1", "p:2"])
        assert held(reader) == (2, 2 * ONE)


def test_iteration_takes_what_was_prefetched(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(IDS)
        assert ready(reader, 5)
        list(reader.as_completed(IDS))
        assert held(reader) == (0, 0)


def test_release_frees_what_was_prefetched(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(IDS)
        assert ready(reader, 5)
        reader.release(["p:1", "p:4"])
        assert held(reader) == (3, 3 * ONE)


def test_no_more_rollouts_are_held_than_allowed(there: Place) -> None:
    with there.reader(prefetch_records=2) as reader:
        reader.prefetch(IDS)
        assert ready(reader, 2)
        assert held(reader) == (2, 2 * ONE)


def test_no_more_bytes_are_held_than_allowed(there: Place) -> None:
    with there.reader(prefetch_bytes=3 * ONE + 5) as reader:
        reader.prefetch(IDS)
        assert ready(reader, 3)
        assert held(reader)[1] == 3 * ONE


def test_the_next_one_takes_the_place_of_what_was_taken(there: Place) -> None:
    with there.reader(prefetch_records=2, prefetch_bytes=2 * ONE) as reader:
        reader.prefetch(IDS)
        for key in IDS:
            assert until(lambda: held(reader)[1] > 0)
            reader.get(key)
        assert until(lambda: held(reader) == (0, 0))


def test_what_does_not_fit_is_read_when_it_is_needed(there: Place) -> None:
    with there.reader(prefetch_bytes=ONE - 1) as reader:
        reader.prefetch(IDS)
        assert until(lambda: held(reader) == (0, 0))
        assert reader.get_batch(IDS).lengths.tolist() == [10] * 5


def test_a_rollout_that_waits_for_room_is_read_at_once(there: Place) -> None:
    with there.reader(prefetch_bytes=ONE) as reader:
        reader.prefetch(IDS)
        assert ready(reader, 1)
        np.testing.assert_array_equal(reader.get("p:4").routing, routing(seed=4))


def test_what_is_absent_is_waited_for_in_the_background(there: Place) -> None:
    with there.store() as store, there.reader() as reader:
        reader.prefetch(["late"])
        store.put("late", routing(3))
        assert ready(reader, 1)
        assert held(reader)[1] == routing(3).nbytes


def test_who_gets_what_is_not_there_yet_waits_as_ever(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(["never"])
        with pytest.raises(e.NotFoundError):
            reader.get("never", 0.1)


def test_waiting_in_the_background_ends(there: Place) -> None:
    with there.reader(prefetch_records=1) as reader:
        reader.prefetch(["never"], 0.1)
        reader.prefetch(IDS[:1])
        assert ready(reader, 1)


def test_errors_are_met_by_whoever_gets_the_rollout(there: Place) -> None:
    with there.store() as store, there.reader() as reader:
        store.abort("gone", "why")
        reader.prefetch(["gone"])
        assert until(lambda: held(reader) == (0, 0))
        with pytest.raises(e.AbortedError, match="why"):
            reader.get("gone")


def test_other_ranges_than_the_prefetched_ones_are_read(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(IDS, layers=(0, 2))
        assert ready(reader, 5)
        np.testing.assert_array_equal(reader.get("p:0", layers=(2, 5)).routing, routing()[2:5])


def test_ranges_are_taken_however_they_were_written(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(["p:0"], layers=slice(0, 2))
        assert ready(reader, 1)
        reader.get("p:0", layers=(0, 2))
        assert held(reader) == (0, 0)


def test_an_older_attempt_than_asked_for_is_not_taken(there: Place) -> None:
    with there.store() as store, there.reader() as reader:
        reader.prefetch(["p:0"])
        assert ready(reader, 1)
        store.put("p:0", routing(seed=9), attempt=4)
        assert reader.get("p:0", min_attempt=4).attempt == 4


def test_a_prefetched_rollout_must_have_the_length_that_is_asked_for(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(["p:0"])
        assert ready(reader, 1)
        with pytest.raises(e.LengthMismatchError):
            reader.get("p:0", num_tokens=11)


def test_a_ranks_share_is_prefetched(there: Place) -> None:
    with there.reader(ParallelLayout(2, cp=2).rank(1)) as reader:
        reader.prefetch(IDS, num_tokens=[11] * 5, rows="n-1")
        assert ready(reader, 5)
        assert held(reader)[1] == 5 * ONE // 10 * 6
        reader.get_batch(IDS, num_tokens=[11] * 5, rows="n-1")
        assert held(reader) == (0, 0)


def test_a_range_does_not_keep_the_memory_of_the_whole() -> None:
    place = memory(AsyncMemory, has=Capability.READ | Capability.LIST)  # whole objects only
    fill(place)
    with place.reader() as reader:
        reader.prefetch(["p:0"], layers=(0, 1))
        assert ready(reader, 1)
        assert reader.get("p:0", layers=(0, 1)).routing.base is None


def test_prefetching_twice_is_prefetching_once(there: Place) -> None:
    with there.reader() as reader:
        reader.prefetch(IDS)
        reader.prefetch(IDS)
        assert ready(reader, 5)
        assert held(reader) == (5, 5 * ONE)


def test_closing_ends_what_is_under_way(there: Place) -> None:
    reader = there.reader()
    reader.prefetch(["never"])
    begin = time.monotonic()
    reader.close()
    assert time.monotonic() - begin < 10


class Slow(AsyncMemory):
    """A backend that takes a while to hand out payloads."""

    async def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        if "/slow/" in name and ranges != ():
            await asyncio.sleep(600)
        return await super()._get(name, ranges)


def test_a_taker_that_gives_up_leaves_nothing_behind() -> None:
    place = memory(Slow)
    with place.store() as store, place.reader() as reader:
        store.put("slow", routing())
        store.abort("gone", "why")
        reader.prefetch(["slow"])
        assert until(lambda: held(reader) == (1, ONE))  # it is being read
        with pytest.raises(e.AbortedError):
            reader.get_batch(["slow", "gone"], 60)
        assert held(reader) == (0, 0)


def test_what_is_being_read_is_waited_for(there: Place) -> None:
    with there.reader() as reader:
        for _ in range(20):
            reader.prefetch(IDS)
            assert reader.get_batch(IDS).lengths.tolist() == [10] * 5


@given(st.lists(st.tuples(st.sampled_from(["prefetch", "get", "batch", "release"]), st.integers(0, 4)), max_size=25))
@settings(max_examples=40)
def test_whatever_is_done_routing_is_right_and_bounds_hold(steps: list[tuple[str, int]]) -> None:
    place = memory(AsyncMemory)
    fill(place)
    with place.reader(prefetch_records=3, prefetch_bytes=2 * ONE) as reader:
        for step, number in steps:
            match step:
                case "prefetch":
                    reader.prefetch(IDS[number:])
                case "get":
                    np.testing.assert_array_equal(reader.get(IDS[number]).routing, routing(seed=number))
                case "batch":
                    np.testing.assert_array_equal(reader.get_batch(IDS[number:]).routing[0], routing(seed=number))
                case "release":
                    reader.release([IDS[number]])
            records, nbytes = held(reader)
            assert records <= 3
            assert nbytes <= 2 * ONE
        reader.release(IDS)
        assert held(reader) == (0, 0)
