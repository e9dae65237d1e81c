"""Receive memory. These tests need no Mooncake."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fastdeploy_routing_plugins.arena.layout import PAGE
from fastdeploy_routing_plugins.stores.rdma.transport.rdma_pool import MIN_BYTES, Piece, ReceivePool


@pytest.fixture
def pool() -> ReceivePool:
    return ReceivePool(MIN_BYTES)


def test_a_piece_comes_back_when_it_is_dropped(pool: ReceivePool) -> None:
    piece = pool.take(5000)
    assert piece is not None
    assert pool.free == MIN_BYTES - 2 * PAGE
    piece.drop()
    assert pool.free == MIN_BYTES


def test_a_piece_stays_while_somebody_holds_it(pool: ReceivePool) -> None:
    piece = pool.take(5000)
    assert piece is not None
    piece.hold()
    piece.drop()
    assert pool.free < MIN_BYTES


def test_a_view_keeps_its_piece_until_the_last_slice_of_it_is_gone(pool: ReceivePool) -> None:
    piece = pool.take(10_000)
    assert piece is not None
    view = piece.view(100, 9000)
    piece.drop()
    assert view is not None
    array = np.frombuffer(view[5:50], np.uint8)
    del view, piece
    gc.collect()
    assert pool.free < MIN_BYTES
    del array
    assert pool.free == MIN_BYTES


def test_views_take_half_of_the_memory_at_most(pool: ReceivePool) -> None:
    pieces = [pool.take(pool.largest) for _ in range(3)]
    views = [piece.view(0, 10) for piece in pieces if piece is not None]
    assert [view is not None for view in views] == [True, True, False]


def test_two_views_of_a_piece_count_once(pool: ReceivePool) -> None:
    pieces = [pool.take(pool.largest) for _ in range(2)]
    views = [piece.view(at, at + 10) for piece in pieces if piece is not None for at in (0, 100)]
    assert all(view is not None for view in views)


def test_a_view_is_of_the_right_bytes_and_read_only(pool: ReceivePool) -> None:
    piece = pool.take(100)
    assert piece is not None
    piece.data[10:13] = b"abc"
    view = piece.view(10, 13)
    assert view is not None
    assert (bytes(view), view.readonly) == (b"abc", True)


def test_more_than_a_quarter_is_refused(pool: ReceivePool) -> None:
    with pytest.raises(ValueError, match="more than"):
        pool.take(pool.largest + 1)


def test_waiting_for_room_ends_at_the_deadline(pool: ReceivePool) -> None:
    held = [pool.take(pool.largest) for _ in range(4)]
    start = time.monotonic()
    assert pool.wait(PAGE, start + 0.05) is None
    assert 0.05 <= time.monotonic() - start < 5
    assert len(held) == 4


def test_waiting_for_room_ends_when_there_is_some(pool: ReceivePool) -> None:
    held = [pool.take(pool.largest) for _ in range(4)]
    view = held[0].view(0, 10) if held[0] is not None else None
    assert view is not None
    for piece in held:
        assert piece is not None
        piece.drop()
    del view
    assert pool.wait(PAGE, time.monotonic() + 20) is not None


def in_child(look: Callable[[], bool]) -> int:
    """Returns 0 if a forked child sees what it should, 1 if not, and minus a signal if looking ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that the child does not need
        pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        os._exit(0 if look() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_has_what_was_handed_out_as_it_was(pool: ReceivePool) -> None:
    pool.keep_apart()
    piece = pool.take(3 * PAGE)
    assert piece is not None
    piece.data[:] = b"x" * piece.nbytes
    view = piece.view(0, piece.nbytes)
    assert view is not None
    assert in_child(lambda: bytes(view) == b"x" * (3 * PAGE)) == 0


def test_a_child_has_nothing_else(pool: ReceivePool) -> None:
    pool.keep_apart()
    piece = pool.take(PAGE)
    assert piece is not None
    piece.data[:] = b"x" * PAGE
    assert in_child(lambda: bytes(piece.data) == b"") == -signal.SIGSEGV


def test_the_pool_goes_on_after_a_fork(pool: ReceivePool) -> None:
    pool.keep_apart()
    piece = pool.take(PAGE)
    assert piece is not None
    view = piece.view(0, 10)
    in_child(lambda: True)
    del view
    piece.drop()
    assert pool.free == MIN_BYTES


class Books(RuleBasedStateMachine):
    """Pieces are disjoint, inside, and what is free plus what is held is all."""

    @initialize()
    def begin(self) -> None:
        self.pool = ReceivePool(MIN_BYTES)
        self.held: list[tuple[Piece, int]] = []
        self.views: list[tuple[memoryview, Piece]] = []

    @rule(nbytes=st.integers(0, MIN_BYTES // 4))
    def take(self, nbytes: int) -> None:
        piece = self.pool.take(nbytes)
        if piece is not None:
            self.held.append((piece, 1))

    @rule(data=st.data())
    def hold(self, data: Any) -> None:
        if self.held:
            index = data.draw(st.integers(0, len(self.held) - 1))
            piece, holds = self.held[index]
            piece.hold()
            self.held[index] = piece, holds + 1

    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        if self.held:
            piece, holds = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            piece.drop()
            if holds > 1:
                self.held.append((piece, holds - 1))

    @rule(data=st.data())
    def view(self, data: Any) -> None:
        if self.held:
            piece, _ = data.draw(st.sampled_from(self.held))
            if (view := piece.view(0, 1)) is not None:
                self.views.append((view, piece))

    @rule()
    def look_away(self) -> None:
        if self.views:
            self.views.pop()

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "pool"):
            return
        used = {id(piece): piece for piece in [*[piece for piece, _ in self.held], *[each for _, each in self.views]]}
        places = sorted((piece.address, piece.address + piece.nbytes) for piece in used.values())
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(places))
        assert all(self.pool.address <= start and stop <= self.pool.address + MIN_BYTES for start, stop in places)
        assert self.pool.free + sum(stop - start for start, stop in places) == MIN_BYTES


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=max(10, settings.default.max_examples // 10), stateful_step_count=40)
