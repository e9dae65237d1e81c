"""Reading a producer's objects through Mooncake."""

from __future__ import annotations

import msgspec
import pytest

from .agent import MIB, content, digest, header_of
from .conftest import Start, need_mooncake
from .remote import Remote

need_mooncake()

SIZES = (64 << 10, MIB, 8 * MIB)


@pytest.fixture(scope="module")
def producer(module_start: Start, folder: str) -> Remote:
    producer = module_start()
    producer("open")
    producer("serve", folder, 48 * MIB)
    return producer


@pytest.fixture(scope="module")
def reader(module_start: Start) -> Remote:
    reader = module_start()
    reader("open", 64 * MIB)
    return reader


@pytest.fixture(scope="module")
def small(module_start: Start) -> Remote:
    """A reader with as little receive memory as there can be."""
    small = module_start()
    small("open", 1)
    return small


def whole(name: str, seed: int, nbytes: int) -> tuple[object, ...]:
    return header_of(name, seed), (nbytes, digest(content(seed, nbytes)))


@pytest.mark.parametrize("lent", [False, True], ids=["on the shelf", "lent by an engine"])
@pytest.mark.parametrize("nbytes", [1, 4096, *SIZES])
def test_an_object_comes_as_it_was_put(producer: Remote, reader: Remote, nbytes: int, lent: bool) -> None:
    name = f"whole/{nbytes}/{lent}"
    place = producer("put", name, nbytes, nbytes, lent)
    assert reader("read", producer("info"), (name, place)) == [whole(name, nbytes, nbytes)]
    producer("drop", name)


def test_an_object_without_payload_comes(producer: Remote, reader: Remote) -> None:
    place = producer("put", "seal", 1, 0)
    assert reader("read", producer("info"), ("seal", place)) == [whole("seal", 1, 0)]


@pytest.mark.parametrize("lent", [False, True], ids=["on the shelf", "lent by an engine"])
def test_ranges_come(producer: Remote, reader: Remote, lent: bool) -> None:
    name, nbytes = f"ranges/{lent}", 3 * MIB
    place = producer("put", name, 7, nbytes, lent)
    ranges = ((0, 10), (10, 10), (10, 5000), (40_000, 40_001), (MIB, 2 * MIB), (nbytes - 3, nbytes))
    [(header, *pieces)] = reader("read", producer("info"), (name, place, ranges))
    data = content(7, nbytes)
    expected = [(stop - start, digest(data[start:stop])) for start, stop in ranges]
    assert (header, pieces) == (header_of(name, 7), expected)
    producer("drop", name)


def test_the_header_comes_alone(producer: Remote, reader: Remote) -> None:
    place = producer("put", "header", 8, MIB)
    assert reader("read", producer("info"), ("header", place, ())) == [(header_of("header", 8),)]


def test_a_batch_comes_in_order(producer: Remote, reader: Remote) -> None:
    names = [(f"batch/{index}", 100 + index, 1000 * (index + 1)) for index in range(64)]
    wanted = [(name, producer("put", name, seed, nbytes, seed % 2 == 0)) for name, seed, nbytes in names]
    assert reader("read", producer("info"), *wanted) == [whole(*each) for each in names]


def test_more_than_the_receive_memory_holds_comes_in_one_call(producer: Remote, small: Remote) -> None:
    names = [(f"many/{index}", 200 + index, 200_000) for index in range(48)]
    wanted = [(name, producer("put", name, seed, nbytes)) for name, seed, nbytes in names]
    assert small("read", producer("info"), *wanted) == [whole(*each) for each in names]
    producer("drop", *[name for name, _, _ in names])


@pytest.mark.parametrize("lent", [False, True], ids=["on the shelf", "lent by an engine"])
def test_an_object_larger_than_the_receive_memory_comes(producer: Remote, small: Remote, lent: bool) -> None:
    place = producer("put", "large", 9, 5 * MIB + 3, lent)
    told = small("read", producer("info"), ("large", place), ("large", place, ((5, 6), (9, 4 * MIB))))
    part = content(9, 4 * MIB)
    ranges = [(1, digest(part[5:6])), (4 * MIB - 9, digest(part[9:]))]
    producer("drop", "large")
    assert told == [whole("large", 9, 5 * MIB + 3), (header_of("large", 9), *ranges)]


def test_a_header_of_any_size_comes(producer: Remote, small: Remote) -> None:
    name = "n" * 400
    place = producer("put_header", name, b"h" * 1_000_000)
    [(header,)] = small("read", producer("info"), (name, place, ()))
    assert header == b"h" * 1_000_000


def test_what_is_gone_has_moved(producer: Remote, reader: Remote) -> None:
    place = producer("put", "gone", 10, MIB)
    producer("drop", "gone")
    assert reader("read", producer("info"), ("gone", place)) == [("not_found", True)]


def test_what_lies_in_an_unknown_arena_has_moved(producer: Remote, reader: Remote) -> None:
    place = producer("put", "far", 11, MIB, True)
    info = producer("info")
    old = msgspec.structs.replace(info, arenas=info.arenas[:1], revision=0)
    assert reader("read", old, ("far", place)) == [("not_found", True)]
    producer("drop", "far")


def test_a_place_that_another_object_took_has_moved(producer: Remote, reader: Remote) -> None:
    place = producer("put", "old", 12, MIB)
    producer("drop", "old")
    again = producer("put", "new", 13, MIB)
    assert again.card == place.card  # else the test would show nothing
    assert reader("read", producer("info"), ("old", place)) == [("not_found", True)]
    producer("drop", "new")


def test_one_absence_leaves_the_rest_of_a_batch_alone(producer: Remote, reader: Remote) -> None:
    gone = producer("put", "absent", 14, 5000)
    there = producer("put", "present", 15, 5000)
    producer("drop", "absent")
    told = reader("read", producer("info"), ("absent", gone), ("present", there))
    assert told == [("not_found", True), whole("present", 15, 5000)]


def test_a_card_of_another_name_is_corrupt(producer: Remote, reader: Remote) -> None:
    place = producer("put", "mine", 16, 5000)
    assert reader("read", producer("info"), ("yours", place)) == [("corrupt_data", False)]


@pytest.mark.parametrize("payload", [True, False], ids=["whole", "header"])
def test_a_damaged_card_is_corrupt(producer: Remote, reader: Remote, payload: bool) -> None:
    name = f"damaged/{payload}"
    place = producer("put", name, 17, 5000)
    producer("damage", place.card * 4096 + 140)
    told = reader("read", producer("info"), (name, place, None if payload else ()))
    assert told == [("corrupt_data", False)]


def test_what_is_kept_beyond_half_of_the_receive_memory_is_copied(producer: Remote, reader: Remote) -> None:
    place = producer("put", "kept", 18, 7 * MIB)
    for _ in range(6):
        reader("read", producer("info"), ("kept", place), keep=True)
    lie_there = reader("in_place")
    reader("forget_kept")
    producer("drop", "kept")
    assert lie_there == [True, True, True, True, False, False]


def test_what_is_kept_stays_as_it_is_while_more_is_read(producer: Remote, reader: Remote) -> None:
    names = [(f"stays/{index}", 300 + index, 3 * MIB) for index in range(20)]
    for name, seed, nbytes in names:
        place = producer("put", name, seed, nbytes)
        reader("read", producer("info"), (name, place), keep=True)
        producer("drop", name)
    kept = reader("kept")
    reader("forget_kept")
    assert kept == [[whole(*each)] for each in names]


def test_receive_memory_comes_back_when_results_are_forgotten(producer: Remote, reader: Remote) -> None:
    place = producer("put", "back", 19, 900_000)
    reader("read", producer("info"), ("back", place), keep=True)
    held = reader("memory")[0]
    reader("forget_kept")
    assert (held > 0, reader("settle")) == (True, True)


def test_threads_share_an_engine(producer: Remote, reader: Remote) -> None:
    place = producer("put", "shared", 20, MIB)
    for _ in range(8):
        reader("begin", "read", producer("info"), *[("shared", place)] * 8)
    assert [reader("result") for _ in range(8)] == [[whole("shared", 20, MIB)] * 8] * 8


def test_a_process_reads_what_it_holds_itself(producer: Remote) -> None:
    place = producer("put", "own", 21, MIB)
    assert producer("read", producer("info"), ("own", place)) == [whole("own", 21, MIB)]
