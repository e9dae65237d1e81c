"""Recycled memory: never seen by two, never too much of it kept, and the same again for the next."""

from __future__ import annotations

import gc
import os
import random
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.arena.layout import PAGE
from fastdeploy_routing_plugins.arena.pool import SMALL, Pool, size_class

MIB = 1 << 20


@pytest.fixture
def pool():
    pool = Pool()
    yield pool
    pool.close()


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@given(st.integers(1, 1 << 45))
def test_a_size_class_holds_what_is_asked_and_little_more(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= max(PAGE, nbytes * 5 // 4 + PAGE)
    assert size % PAGE == 0


@pytest.mark.parametrize("nbytes", [1, 100, SMALL - 1, SMALL, SMALL + 1, MIB, 3 * MIB + 5])
def test_what_is_taken_has_the_size_that_is_asked_and_can_be_written(pool: Pool, nbytes: int) -> None:
    view = pool.take(nbytes)
    view[-1] = 7
    assert (view.nbytes, view.format, view.ndim, view[-1]) == (nbytes, "B", 1, 7)


@pytest.mark.parametrize("nbytes", [SMALL, MIB, 3 * MIB + 5])
def test_large_memory_begins_on_a_page_border(pool: Pool, nbytes: int) -> None:
    assert address(pool.take(nbytes)) % PAGE == 0


def test_what_comes_back_is_handed_out_again(pool: Pool) -> None:
    first = address(pool.take(MIB))
    assert address(pool.take(MIB - 7)) == first


@pytest.mark.parametrize(
    "keep", [lambda view: view, lambda view: view[100:200], lambda view: np.frombuffer(view, "u2")[5:10]]
)
def test_what_somebody_still_sees_is_not_handed_out(pool: Pool, keep: object) -> None:
    assert callable(keep)
    first = pool.take(MIB)
    where = address(first)
    kept = keep(first)
    del first
    assert address(pool.take(MIB)) != where
    assert len(kept)


def test_what_a_cycle_of_rubbish_still_sees_is_not_handed_out(pool: Pool) -> None:
    seen: list[bool] = []

    class Late:
        def __init__(self) -> None:
            self.me = self
            self.view = pool.take(MIB)

        def __del__(self) -> None:
            seen.append(address(pool.take(MIB)) != address(self.view))

    Late()
    gc.collect()
    assert seen == [True]


def test_idle_memory_is_bounded() -> None:
    pool = Pool(idle_bytes=4 * MIB)
    taken = [pool.take(MIB) for _ in range(10)]
    while taken:
        taken.pop()
        assert pool.idle_bytes <= 4 * MIB
    assert pool.idle_bytes == 4 * MIB


def test_of_too_much_idle_memory_the_oldest_goes_first() -> None:
    pool = Pool(idle_bytes=5 * MIB)
    large, small = pool.take(4 * MIB), pool.take(MIB)
    del large, small  # in this order
    other = pool.take(MIB // 2)
    del other
    assert pool.idle_bytes == MIB + MIB // 2


def test_idle_memory_goes_when_it_is_old() -> None:
    pool = Pool(idle_seconds=0.05)
    pool.take(MIB)
    time.sleep(1.1)  # it is looked at once a second
    view = pool.take(2 * MIB)
    del view
    assert pool.idle_bytes == 2 * MIB


def test_a_closed_pool_keeps_nothing_and_takes_nothing_away(pool: Pool) -> None:
    view = pool.take(MIB)
    pool.take(MIB)
    pool.close()
    view[:] = b"x" * MIB
    kept = bytes(view) == b"x" * MIB
    del view
    assert (kept, pool.idle_bytes) == (True, 0)


def test_memory_that_cannot_be_had_is_an_error(pool: Pool) -> None:
    with pytest.raises(MemoryError, match="no memory for"):
        pool.take(1 << 60)


def test_zero_bytes_can_be_taken(pool: Pool) -> None:
    assert pool.take(0).nbytes == 0


def test_threads_never_see_each_others_memory(pool: Pool) -> None:
    wrong: list[int] = []

    def body(mark: int) -> None:
        chosen = random.Random(mark)
        held: list[memoryview] = []
        for _ in range(300):
            view = pool.take(chosen.choice([100_000, 110_000, 200_000]))
            view[:] = bytes([mark]) * len(view)
            held.append(view)
            if len(held) > chosen.randrange(5):
                old = held.pop(chosen.randrange(len(held)))
                if bytes(old) != bytes([mark]) * len(old):
                    wrong.append(mark)

    threads = [threading.Thread(target=body, args=(mark,)) for mark in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_a_pool_that_is_dropped_leaves_no_mapping() -> None:
    before = mappings()
    pool = Pool()
    views = [pool.take(64 * MIB) for _ in range(4)]
    during = mappings()
    del pool, views
    assert (during - before >= 256 * MIB, mappings() - before < 128 * MIB) == (True, True)


def mappings() -> int:
    """Bytes of address space."""
    with open(f"/proc/{os.getpid()}/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * PAGE
