"""With a folder to spill to, parts that the arena has no room for are stored all the same, in order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from fastdeploy_routing_plugins import RoutingWriter
from fastdeploy_routing_plugins.errors import ArenaError, ArenaFullError
from fastdeploy_routing_plugins.writer.tickets import Ticket

from .filling import MANY, stuck, used_again
from .helpers import BIG, MIB, PATIENCE, Place, routing, same, until


@pytest.fixture
def come_back(shared_place: Place) -> Callable[[], None]:
    """Makes the shared writers' store work."""
    return shared_place.flag.unlink


def spilling(place: Place, **limits: Any) -> AbstractContextManager[RoutingWriter]:
    return stuck(place, spill_dir=str(place.root / "spill"), **limits)


@pytest.fixture(scope="module")
def opened(shared_place: Place) -> Iterator[RoutingWriter]:
    with spilling(shared_place) as writer:
        yield writer


@pytest.fixture
def writer(opened: RoutingWriter, shared_place: Place) -> Iterator[RoutingWriter]:
    """The same writer, with a folder to spill to."""
    with used_again(opened, shared_place):
        yield opened


def spilled(place: Place) -> list[str]:
    return os.listdir(place.root / "spill")


def submit(writer: RoutingWriter, count: int = 12, *, line: str = "x") -> list[Ticket]:
    return [writer.submit(f"{line}:{number}", routing(MANY, seed=number, schema=BIG)) for number in range(count)]


def test_with_a_spill_folder_nothing_is_refused(writer: RoutingWriter, come_back: Callable[[], None]) -> None:
    submit(writer)
    come_back()
    assert (writer.flush().stored, writer.stats().refused) == (12, 0)


def test_spilled_parts_are_stored_exactly(
    writer: RoutingWriter, shared_place: Place, come_back: Callable[[], None]
) -> None:
    submit(writer)
    come_back()
    writer.flush()
    with shared_place.read() as store:
        assert all(same(store, f"x:{number}", routing(MANY, seed=number, schema=BIG)) for number in range(12))


@pytest.mark.parametrize("layout", ["layer_first", "token_first"])
def test_a_spilled_part_may_have_any_form(
    writer: RoutingWriter, shared_place: Place, come_back: Callable[[], None], layout: str
) -> None:
    expected = routing(9 * MANY, seed=1, schema=BIG)  # larger than the arena
    given = expected.astype(">i2") if layout == "layer_first" else expected.transpose(1, 0, 2)
    come_back()
    writer.submit("x", given, layout=layout).result(PATIENCE)
    with shared_place.read() as store:
        assert same(store, "x", expected)


def test_what_is_spilled_is_counted(writer: RoutingWriter, shared_place: Place) -> None:
    submit(writer)
    assert writer.stats().spilled_bytes == len(spilled(shared_place)) * MIB > 0


def test_spilled_files_are_for_this_user_alone(writer: RoutingWriter, shared_place: Place) -> None:
    submit(writer)
    folder = shared_place.root / "spill"
    assert {os.stat(folder / name).st_mode & 0o777 for name in os.listdir(folder)} == {0o600}


def test_spilled_files_go_when_their_parts_are_stored(
    writer: RoutingWriter, shared_place: Place, come_back: Callable[[], None]
) -> None:
    submit(writer)
    come_back()
    writer.flush()
    assert (until(lambda: writer.stats().spilled_bytes == 0), spilled(shared_place)) == (True, [])


def test_spilled_parts_keep_their_order(
    writer: RoutingWriter, shared_place: Place, come_back: Callable[[], None]
) -> None:
    for attempt in range(1, 13):
        writer.submit("x:0:0:0", routing(MANY, seed=attempt, schema=BIG), attempt=attempt)
    assert spilled(shared_place)
    come_back()
    assert writer.flush().failed == 0  # an attempt that comes too late is superseded


def test_threads_may_spill_at_once(writer: RoutingWriter, come_back: Callable[[], None]) -> None:
    threads = [threading.Thread(target=submit, args=(writer, 4), kwargs={"line": f"x{name}"}) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    come_back()
    report = writer.flush()
    assert (report.stored, report.failed) == (32, 0)


def test_reservations_are_not_spilled(writer: RoutingWriter) -> None:
    submit(writer)
    with pytest.raises(ArenaFullError):
        writer.reserve("y", MANY)


def test_spilled_files_go_when_their_parts_fail(place: Place) -> None:
    with spilling(place, retry_for=0.0) as writer:
        submit(writer)
        writer.flush()
        assert (until(lambda: writer.stats().spilled_bytes == 0), spilled(place)) == (True, [])


def test_a_full_spill_folder_refuses(place: Place) -> None:
    with spilling(place, spill_bytes=2 * MIB) as writer, pytest.raises(ArenaFullError, match="its limit is"):
        submit(writer)


def test_a_full_spill_folder_holds_no_more_than_its_limit(place: Place) -> None:
    with spilling(place, spill_bytes=2 * MIB) as writer:
        with pytest.raises(ArenaFullError):
            submit(writer)
        assert sum(os.path.getsize(place.root / "spill" / name) for name in spilled(place)) == 2 * MIB


def test_a_refused_spill_leaves_no_file(place: Place) -> None:
    with spilling(place, spill_bytes=2 * MIB) as writer:
        with pytest.raises(ArenaFullError):
            submit(writer)
        place.flag.unlink()
        writer.flush()
        assert (until(lambda: writer.stats().spilled_bytes == 0), spilled(place)) == (True, [])


def test_a_spill_folder_that_cannot_be_made_is_refused(place: Place) -> None:
    place.log.touch()
    with pytest.raises(ArenaError, match=r"spill_dir .* cannot be used"):
        place.writer(limits={"spill_dir": str(place.log / "spill")})


def test_spilled_parts_of_a_worker_that_died_are_stored(place: Place) -> None:
    with spilling(place) as writer:
        submit(writer)
        os.kill(writer.stats().worker_pid, 9)
        place.flag.unlink()
        assert writer.flush().stored == 12
