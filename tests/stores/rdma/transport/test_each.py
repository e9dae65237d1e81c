"""Objects handed over one by one, while others are on their way; small and large ones and absences in any mixture."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place
from fastdeploy_routing_plugins.stores.rdma.transport.base import Source, Wanted

from .process import Process, soon
from .producing import is_whole, want

Opened = Callable[[str, OwnerInfo], Source]
SIZES = (0, 1, 3000, 60_000, 100_000, 255 << 10, 257 << 10, 1_200_000)
"""Some are received together with others, some are told to the kernel, see ``link``."""

_numbers = itertools.count()


@pytest.fixture(params=["shm", "tcp"])
def source(request: pytest.FixtureRequest, opened: Opened, other: Process) -> Source:
    """A way to the producer in the other process."""
    return opened(request.param, other.info)


@contextmanager
def stored(other: Process, sizes: list[int], gone: set[int]) -> Iterator[list[tuple[str, Place]]]:
    """Puts objects, and deletes some of them again."""
    names = [f"ns/each-{os.getpid()}-{next(_numbers)}/p" for _ in sizes]
    places = [
        other.put(name, size, lent=index % 2 == 1) for index, (name, size) in enumerate(zip(names, sizes, strict=True))
    ]
    for index in gone:
        other.ask("delete", names[index])
    try:
        yield list(zip(names, places, strict=True))
    finally:
        for index, name in enumerate(names):
            if index not in gone:
                other.ask("delete", name)


def handed_over(source: Source, wanted: list[Wanted], *, view: bool) -> list[tuple[int, bool]]:
    """Returns which were handed over, in order, and whether each was whole at that moment. Keeps none of them.

    Two threads hand over what is much in shared memory, each in its own order.
    """
    found: list[tuple[int, bool]] = []
    source.each(
        wanted, soon(), lambda index, blob: found.append((index, is_whole(blob, wanted[index].name))), view=view
    )
    return sorted(found) if source.kind == "shm" else found


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_there_comes_in_order_and_whole(source: Source, other: Process, seed: int, view: bool) -> None:
    chosen = random.Random(seed)
    sizes = [chosen.choice(SIZES if seed % 2 else SIZES[:5]) for _ in range(40 if seed % 2 else 150)]
    while sum(sizes) > 12 << 20:
        sizes.pop()
    gone = {index for index in range(len(sizes)) if chosen.random() < (0.0, 0.1, 0.6)[seed % 3]}
    with stored(other, sizes, gone) as objects:
        wanted = [want(*each) for each in objects]
        expected = [(index, True) for index in range(len(sizes)) if index not in gone]
        assert handed_over(source, wanted, view=view) == expected
        again = source.read(wanted, soon(), view=view)  # the connection is where it should be
    assert [index for index, each in enumerate(again) if isinstance(each, Blob)] == [index for index, _ in expected]
    assert all(isinstance(again[index], RoutingError) for index in gone)


@pytest.mark.parametrize("seed", range(4))
def test_what_has_a_place_is_put_there(source: Source, other: Process, seed: int) -> None:
    chosen = random.Random(seed)
    sizes = [chosen.choice(SIZES if seed % 2 else SIZES[:5]) for _ in range(30)]
    while sum(sizes) > 12 << 20:
        sizes.pop()
    gone = {index for index in range(len(sizes)) if chosen.random() < 0.2}
    rooms = [memoryview(bytearray(size)) if chosen.random() < 0.7 else None for size in sizes]
    found: dict[int, bool] = {}
    with stored(other, sizes, gone) as objects:
        wanted = [Wanted(name, place, None, room) for (name, place), room in zip(objects, rooms, strict=True)]

        def take(index: int, blob: Blob) -> None:
            room = rooms[index]
            there = room is None or not sizes[index] or blob.payload[0] is room
            found[index] = there and is_whole(blob, wanted[index].name)

        source.each(wanted, soon(), take, view=True)
        assert found == {index: True for index in range(len(sizes)) if index not in gone}
        for index in found:
            if (room := rooms[index]) is not None:  # what came later left it alone
                assert bytes(room) == random.Random(wanted[index].name).randbytes(sizes[index])


def test_a_place_of_another_size_is_not_taken(source: Source, other: Process) -> None:
    with stored(other, [200_000], set()) as objects:
        room = memoryview(bytearray(199_999))
        assert handed_over(source, [Wanted(*objects[0], None, room)], view=True) == [(0, True)]
        assert not any(room)


def test_nothing_wanted_is_nothing_handed_over(source: Source) -> None:
    assert handed_over(source, [], view=True) == []


def test_ranges_come_as_pieces(source: Source, other: Process) -> None:
    with stored(other, [100_000] * 3, set()) as objects:
        wanted = [want(*each, [(0, 10), (500, 501)]) for each in objects]
        found: dict[int, list[bytes]] = {}
        source.each(wanted, soon(), lambda index, blob: found.update({index: [bytes(each) for each in blob.payload]}))
    for index, (name, _) in enumerate(objects):
        content = random.Random(name).randbytes(100_000)
        assert found[index] == [content[0:10], content[500:501]]


@pytest.mark.parametrize("size", [1000, 400_000])
def test_what_takes_them_may_fail_and_the_next_read_is_right(source: Source, other: Process, size: int) -> None:
    class OwnError(Exception):
        pass

    def fail(index: int, blob: Blob) -> None:
        if index == 5:
            raise OwnError

    with stored(other, [size] * 20, set()) as objects:
        wanted = [want(*each) for each in objects]
        with pytest.raises(OwnError):
            source.each(wanted, soon(), fail)
        assert handed_over(source, wanted, view=False) == [(index, True) for index in range(20)]


def test_no_pin_and_no_lease_is_left(source: Source, other: Process) -> None:
    with stored(other, [200_000] * 12, set()) as objects:
        handed_over(source, [want(*each) for each in objects], view=True)
        used = other.ask("used")
    assert other.ask("leases") == 0
    assert other.ask("used") < used  # nothing is kept for a reader
