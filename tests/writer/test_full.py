"""A full arena holds the engine up for a moment, then says so; memory is bounded in bytes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fastdeploy_routing_plugins import RoutingWriter
from fastdeploy_routing_plugins.arena.layout import Live
from fastdeploy_routing_plugins.errors import ArenaFullError

from .filling import MANY, PART, fill, stuck, used_again
from .helpers import BIG, MIB, PATIENCE, Place, routing, until


@pytest.fixture(scope="module")
def opened(shared_place: Place) -> Iterator[RoutingWriter]:
    with stuck(shared_place) as writer:
        yield writer


@pytest.fixture
def writer(opened: RoutingWriter, shared_place: Place) -> Iterator[RoutingWriter]:
    """A writer that does not wait when its arena is full, over a store that is away."""
    with used_again(opened, shared_place):
        yield opened


@pytest.fixture
def come_back(shared_place: Place) -> Callable[[], None]:
    """Makes the shared writers' store work."""
    return shared_place.flag.unlink


def test_the_arena_is_the_limit(writer: RoutingWriter) -> None:
    assert len(fill(writer)) in (6, 7)  # of 8 MiB, heads and the ring included


def test_a_full_arena_holds_the_engine_up(place: Place) -> None:
    with stuck(place, on_full_wait=0.4) as writer:
        began = time.monotonic()
        fill(writer)
        assert time.monotonic() - began > 0.35


def test_a_full_arena_holds_the_engine_up_once_in_total(place: Place) -> None:
    with stuck(place, on_full_wait=1.0) as writer:
        fill(writer)
        began = time.monotonic()
        for number in range(40):
            with pytest.raises(ArenaFullError):
                writer.submit(f"y:{number}", PART)
        assert time.monotonic() - began < 20


def test_a_store_that_keeps_payloads_is_asked_for_room(place: Place) -> None:
    with place.writer("yielding", schema=BIG, limits={"on_full_wait": PATIENCE}) as writer:
        for number in range(40):
            writer.submit(f"y:{number}", PART)
        assert writer.flush().stored == 40
        assert writer.stats().retained_bytes > PART.nbytes
        assert writer._gate.arena._words[Live.WANTED] == 0


def test_nobody_is_asked_for_room_once_the_engine_has_given_up(place: Place) -> None:
    with place.writer("keeping", schema=BIG, limits={"on_full_wait": 0.2}) as writer:
        fill(writer)
        assert writer._gate.arena._words[Live.WANTED] == 0
        place.flag.touch()


def test_threads_share_what_a_full_arena_may_hold_up(place: Place) -> None:
    def refused() -> None:
        with pytest.raises(ArenaFullError):
            writer.submit("y", PART)

    with stuck(place, on_full_wait=1.0) as writer:
        fill(writer)
        threads = [threading.Thread(target=refused) for _ in range(40)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert time.monotonic() - began < 20


def test_the_engine_goes_on_as_soon_as_there_is_room(place: Place) -> None:
    with stuck(place, on_full_wait=PATIENCE) as writer:
        threading.Timer(0.3, place.flag.unlink).start()
        for number in range(12):
            writer.submit(f"x:{number}", PART)
        assert (writer.flush().stored, writer.stats().refused) == (12, 0)


def test_the_patience_is_whole_again_after_there_was_room(place: Place) -> None:
    with stuck(place, on_full_wait=0.4) as writer:
        fill(writer)
        place.flag.unlink()
        writer.flush()
        place.flag.touch()
        began = time.monotonic()
        fill(writer, MANY // 2)
        assert time.monotonic() - began > 0.35


def test_an_operation_without_payload_does_not_make_the_patience_whole(place: Place) -> None:
    with stuck(place, on_full_wait=0.3) as writer:
        fill(writer)
        began = time.monotonic()
        for number in range(30):
            with pytest.raises(ArenaFullError):
                writer.submit(f"y:{number}", PART)
            writer.abort(f"y:{number}", "lost")
        assert time.monotonic() - began < 0.3 * 15


def test_a_spilled_part_does_not_make_the_patience_whole(place: Place) -> None:
    with stuck(place, on_full_wait=0.3, spill_dir=str(place.root / "spill")) as writer:
        began = time.monotonic()
        for number in range(40):
            writer.submit(f"y:{number}", PART)
        assert time.monotonic() - began < 0.3 * 15


def test_the_error_names_the_numbers(writer: RoutingWriter) -> None:
    taken = fill(writer)
    with pytest.raises(ArenaFullError) as caught:
        writer.submit("y", PART)
    waiting, kept, _, asked = (int(number) for number in re.findall(r"\d+", caught.value.message))
    assert (waiting, kept, asked) == (len(taken) * MIB, 0, MIB)


def test_the_error_says_what_frees_memory(writer: RoutingWriter) -> None:
    fill(writer)
    with pytest.raises(ArenaFullError, match=r"flush\(\) waits for it; or set arena_bytes higher, or spill_dir"):
        writer.submit("y", PART)


def test_a_reservation_is_refused_like_a_submit(writer: RoutingWriter) -> None:
    fill(writer)
    with pytest.raises(ArenaFullError, match="the arena is full"):
        writer.reserve("y", MANY)


def test_what_was_refused_is_counted(writer: RoutingWriter) -> None:
    before = writer.stats().refused
    fill(writer)
    assert writer.stats().refused == before + 1


def test_what_was_refused_is_not_reported_as_failed(writer: RoutingWriter, come_back: Callable[[], None]) -> None:
    taken = fill(writer)
    come_back()
    report = writer.flush()
    assert (report.stored, report.failed) == (len(taken), 0)


def test_a_full_arena_still_takes_a_small_part(writer: RoutingWriter, come_back: Callable[[], None]) -> None:
    fill(writer)
    ticket = writer.submit("small", PART[:, :10])
    come_back()
    assert ticket.result(PATIENCE).code == ""


def test_an_arena_without_any_room_still_takes_orders(writer: RoutingWriter, come_back: Callable[[], None]) -> None:
    fill(writer)
    fill(writer, 10)
    tickets = [writer.abort("x:900", "no room"), writer.seal(f"x:{MANY}:0", MANY), writer.delete(f"x:{MANY}:1")]
    come_back()
    assert [ticket.result(PATIENCE).code for ticket in tickets] == ["", "", ""]


def test_after_a_flush_there_is_room_again(writer: RoutingWriter, come_back: Callable[[], None]) -> None:
    free = writer.stats().arena_free_bytes
    fill(writer)
    come_back()
    writer.flush()
    assert until(lambda: writer.stats().arena_free_bytes == free)


def test_a_part_larger_than_the_arena_is_refused_at_once(place: Place) -> None:
    with place.writer(schema=BIG, limits={"on_full_wait": PATIENCE}) as writer:
        began = time.monotonic()
        with pytest.raises(ArenaFullError, match=rf"{10 * MIB} bytes does not fit into an arena of {8 * MIB} bytes"):
            writer.submit("x", routing(10 * MANY, schema=BIG))
        assert time.monotonic() - began < PATIENCE / 2


def test_a_hundred_large_parts_go_through_a_small_arena(place: Place) -> None:
    with place.writer("slow", schema=BIG, delay=0.005, limits={"on_full_wait": PATIENCE}) as writer:
        most = 0
        for number in range(100):
            writer.submit(f"x:{number}", PART)
            most = max(most, writer.stats().queue_bytes)
        assert (writer.flush().stored, most <= 8 * MIB) == (100, True)
