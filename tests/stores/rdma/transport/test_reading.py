"""What every transport does alike: objects whole, in part and in batches, from another process; and absences."""

from __future__ import annotations

import gc
import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.errors import (
    AbsentError,
    CorruptDataError,
    RoutingError,
    StoreUnavailableError,
    SupersededError,
)
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place, encode
from fastdeploy_routing_plugins.stores.rdma.transport.base import Source

from .process import Process, answer, run, soon, start, tell
from .producing import blob_of, is_whole, want

Opened = Callable[[str, OwnerInfo], Source]
KINDS = ("shm", "tcp")
_numbers = itertools.count()


def fresh() -> str:
    """Returns a name that no other test has."""
    return f"ns/reading-{os.getpid()}-{next(_numbers)}/p"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A transport."""
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def source(kind: str, opened: Opened, other: Process) -> Source:
    """A way to the producer in the other process."""
    return opened(kind, other.info)


def content(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


def read(source: Source, name: str, place: Place, ranges: Any = None, *, view: bool = False) -> Blob | RoutingError:
    return source.read([want(name, place, ranges)], soon(), view=view)[0]


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("size", [1, 4096, 40_000, 3_000_001])
def test_an_object_comes_whole(source: Source, other: Process, size: int, lent: bool, view: bool) -> None:
    name = fresh()
    place = other.put(name, size, lent=lent)
    found = blob_of(read(source, name, place, view=view))
    other.ask("delete", name)
    assert is_whole(found, name)


def test_an_object_without_payload_is_one_empty_piece(source: Source, other: Process) -> None:
    name = fresh()
    found = blob_of(read(source, name, other.put(name, 0)))
    other.ask("delete", name)
    assert (is_whole(found, name), [len(each) for each in found.payload]) == (True, [0])


@pytest.mark.parametrize("lent", [False, True])
def test_without_ranges_only_the_header_comes(source: Source, other: Process, lent: bool) -> None:
    name = fresh()
    found = blob_of(read(source, name, other.put(name, 5000, lent=lent), ()))
    other.ask("delete", name)
    assert (found.header.decode().split()[0], found.payload) == (name, ())


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 1)],
        [(0, 0)],
        [(99_999, 100_000)],
        [(0, 10), (10, 20), (500, 501)],
        [(3, 3), (4, 60_000), (99_000, 100_000)],
    ],
)
def test_ranges_come_as_pieces(source: Source, other: Process, ranges: list[tuple[int, int]], view: bool) -> None:
    name = fresh()
    found = blob_of(read(source, name, other.put(name), ranges, view=view))
    other.ask("delete", name)
    whole = content(name, 100_000)
    assert [bytes(each) for each in found.payload] == [whole[start:stop] for start, stop in ranges]


def test_many_ranges_come_as_pieces(source: Source, other: Process) -> None:
    name = fresh()
    place = other.put(name, 65_536 * 3)
    ranges = [(at, at + 1) for at in range(0, 65_536 * 3, 3)]
    found = blob_of(read(source, name, place, ranges))
    other.ask("delete", name)
    assert b"".join(found.payload) == content(name, 65_536 * 3)[::3]


@pytest.mark.parametrize("ranges", [[(0, 100_001)], [(5, 4)], [(0, 10), (9, 20)], [(-1, 5)]])
def test_ranges_that_the_payload_does_not_have_are_an_error_in_place(
    source: Source, other: Process, ranges: list[tuple[int, int]]
) -> None:
    name = fresh()
    found = read(source, name, other.put(name), ranges)
    other.ask("delete", name)
    assert isinstance(found, CorruptDataError)


@pytest.mark.parametrize("view", [False, True])
def test_a_batch_comes_in_order_with_absences_in_place(source: Source, other: Process, view: bool) -> None:
    names = [fresh() for _ in range(200)]
    places = [other.put(name, 10_000 + 77 * index) for index, name in enumerate(names)]
    for name in names[::3]:
        other.ask("delete", name)
    found = source.read([want(*each) for each in zip(names, places, strict=True)], soon(), view=view)
    outcome = [
        isinstance(each, AbsentError) if isinstance(each, RoutingError) else is_whole(each, name)
        for each, name in zip(found, names, strict=True)
    ]
    kinds = [isinstance(each, Blob) for each in found]
    for index, name in enumerate(names):
        if index % 3:
            other.ask("delete", name)
    assert (all(outcome), kinds) == (True, [index % 3 > 0 for index in range(200)])


def test_an_empty_batch_is_empty(source: Source) -> None:
    assert source.read([], soon()) == []


@pytest.mark.parametrize("lent", [False, True])
def test_what_was_deleted_is_absent(source: Source, other: Process, lent: bool) -> None:
    name = fresh()
    place = other.put(name, lent=lent)
    read(source, name, place)
    other.ask("delete", name)
    assert isinstance(read(source, name, place), AbsentError)


def test_what_took_the_place_of_another_is_not_taken_for_it(source: Source, other: Process) -> None:
    first, second = fresh(), fresh()
    place = other.put(first)
    other.ask("delete", first)
    again = other.put(second)
    found = read(source, first, place)
    other.ask("delete", second)
    assert (again.card, isinstance(found, AbsentError)) == (place.card, True)


def test_what_was_read_is_the_readers_own(source: Source, other: Process) -> None:
    name = fresh()
    place = other.put(name)
    first = blob_of(read(source, name, place))
    memoryview(first.payload[0])[:] = bytes(100_000)
    second = blob_of(read(source, name, place))
    other.ask("delete", name)
    assert is_whole(second, name)


def test_what_was_read_outlives_the_source(source: Source, other: Process) -> None:
    name = fresh()
    place = other.put(name)
    arrays = [
        np.frombuffer(blob_of(read(source, name, place, view=view)).payload[0], np.uint8) for view in (False, True)
    ]
    source.close()
    found = [array.tobytes() == content(name, 100_000) for array in arrays]
    del arrays
    other.ask("delete", name)
    assert found == [True, True]


def test_a_closed_source_reads_nothing(source: Source, other: Process) -> None:
    name = fresh()
    place = other.put(name)
    source.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        read(source, name, place)
    other.ask("delete", name)


def test_threads_share_a_source(source: Source, other: Process) -> None:
    names = [fresh() for _ in range(8)]
    places = {name: other.put(name, 300_000) for name in names}
    whole: list[bool] = []

    def body(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(25):
            batch = chosen.sample(names, 3)
            found = source.read([want(name, places[name]) for name in batch], soon(), view=chosen.random() < 0.5)
            whole.extend(is_whole(blob_of(each), name) for each, name in zip(found, batch, strict=True))

    threads = [threading.Thread(target=body, args=(seed,)) for seed in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for name in names:
        other.ask("delete", name)
    assert whole == [True] * 600


def test_a_forked_child_reads_by_itself(kind: str, other: Process) -> None:
    name = fresh()
    place = other.put(name)
    found = run("fork_and_read", kind, encode(other.info).hex(), name, encode(place).hex())
    other.ask("delete", name)
    assert found == {"parent": [True, True], "child": [True, True], "parent again": [True, True]}


def test_a_child_that_ends_gives_nothing_back_that_is_its_parents(other: Process) -> None:
    name = fresh()
    used = other.ask("used")
    place = other.put(name)
    held = other.ask("used")
    reader = start("fork_and_hold", "shm", encode(other.info).hex(), name, encode(place).hex())
    with reader:
        answer(reader)  # the child has ended, with all that it had
        other.ask("delete", name)
        while_held = other.ask("used")
        tell(reader)
        whole = answer(reader)
    assert (whole, while_held - used, other.ask("used") - used) == (True, held - used, 0)


def test_no_memory_is_kept_for_a_view_that_is_gone(source: Source, other: Process) -> None:
    used = other.ask("used")
    name = fresh()
    place = other.put(name, lent=True)
    found = blob_of(read(source, name, place, view=True))
    del found
    other.ask("delete", name)
    assert comes_to(other, used)


def comes_to(other: Process, used: int) -> bool:
    """Whether a producer uses so much memory soon: who sent it over TCP lets go of it a moment after it arrived."""
    end = time.monotonic() + 20
    while other.ask("used") != used:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_what_is_absent_does_not_keep_what_came_with_it(source: Source, other: Process) -> None:
    used = other.ask("used")
    names = [fresh(), fresh()]
    places = [other.put(name, lent=True) for name in names]
    other.ask("delete", names[1])
    gc.disable()
    try:
        found = source.read([*map(want, names, places), want(names[0], places[0], [(9, 8)])], soon(), view=True)
        del found
        other.ask("delete", names[0])
        assert comes_to(other, used)
    finally:
        gc.enable()


def test_a_place_that_makes_no_sense_is_an_error(source: Source, other: Process) -> None:
    name = fresh()
    place = other.put(name)
    wrong = [
        Place(1 << 63, 1, 10, 10, 0, 1 << 63, 1, 0),
        Place(0, 0, 0, 0, 0, 0, 0, 0),
        Place(place.card, place.generation, place.header_bytes, 10, 63, 5, 5, 5),
        Place(place.card, place.generation, place.header_bytes + 1, place.payload_bytes, *_rest(place)),
        Place(place.card, place.generation + 1, place.header_bytes, place.payload_bytes, *_rest(place)),
    ]
    found = [_outcome(source, name, each) for each in wrong]
    other.ask("delete", name)
    assert all(issubclass(each, (AbsentError, CorruptDataError, SupersededError)) for each in found), found


def _outcome(source: Source, name: str, place: Place) -> type[object]:
    try:
        return type(read(source, name, place))
    except CorruptDataError as err:
        return type(err)


def _rest(place: Place) -> tuple[int, int, int, int]:
    return place.arena, place.page, place.block_generation, place.payload_at
