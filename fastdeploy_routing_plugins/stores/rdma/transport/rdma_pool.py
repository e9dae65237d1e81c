"""The memory that RDMA reads arrive in: one region, registered once.

Registering memory for each read costs far more than the read itself, so all reads share one region and take pieces of
it. A piece comes back when nobody holds it any more: the reader, what the reader handed out, and the engine, which may
still write to it long after a reader gave up waiting. Such a piece is in quarantine until its transfers have ended.

A result is handed out where it arrived, without a copy, while results take up at most half of the region; beyond that
they are copied to ordinary memory, so that a consumer that keeps what it read cannot end all reading.

Memory that a network card writes to belongs to one process: in a fork, the kernel copies all of it to the child, or
the RDMA library leaves it out there. Here the child gets what was handed out, and nothing else.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
import weakref
from collections import deque
from functools import lru_cache
from typing import Final

import numpy as np

from ....arena.allocator import Extents
from ....arena.layout import PAGE, pages_for
from ....arena.lent import lend

DEFAULT_BYTES: Final = 256 << 20
MIN_BYTES: Final = 8 << 20  # a card, which has up to 1 MiB, must fit into a quarter
_PAUSE: Final = 0.001  # s between looks for room; pieces come back from the garbage collector, which cannot notify


class Piece:
    """Some of a pool's memory.

    Attributes:
        nbytes: Its size.
        address: Where it begins in this process.
        data: Its bytes.
    """

    __slots__ = ("_first", "_holds", "_lent", "_pages", "_pool", "address", "data", "nbytes")

    def __init__(self, pool: ReceivePool, first: int, pages: int) -> None:
        self._pool = pool
        self._first = first
        self._pages = pages
        self._holds = 1
        self._lent = False
        self.nbytes = pages * PAGE
        self.address = pool.address + first * PAGE
        self.data = pool.data[first * PAGE : first * PAGE + self.nbytes]

    def hold(self) -> None:
        """Sees to it that the piece stays until one more ``drop``."""
        with self._pool.lock:
            self._holds += 1

    def drop(self, _: object = None) -> None:
        """Lets go of the piece once. Never waits: the garbage collector may call this in the middle of anything."""
        self._pool.dropped.append(self)

    def view(self, start: int, stop: int) -> memoryview | None:
        """Hands some of the piece out, read-only, until nothing refers to it; None if too much is out already."""
        if not self._pool.lends(self):
            return None
        self.hold()
        return lend(self.address + start, stop - start, self.drop, None, keep=self._pool)


class ReceivePool:
    """One region of memory, and who has which piece of it. Methods may be called from several threads.

    Args:
        nbytes: Its size; a multiple of the page size.

    Attributes:
        address: Where it begins.
        nbytes: Its size.
        data: Its bytes.
        lock: Guards the book-keeping.
        dropped: Pieces that were let go of, not looked at yet.
        largest: Bytes of the largest piece that anybody may take, so that several fit at once.
    """

    def __init__(self, nbytes: int = DEFAULT_BYTES) -> None:
        nbytes = max(MIN_BYTES, nbytes - nbytes % PAGE)
        # Private: a forked child keeps what it was handed as it was. Nobody here writes to it but the engine.
        self._map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # kernels may be built without
                self._map.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to pin
        self.address: int = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        self.data = memoryview(self._map)
        self.nbytes = nbytes
        self.largest = nbytes // 4
        self.lock = threading.Lock()
        self.dropped: deque[Piece] = deque()
        self._free = Extents(0, nbytes // PAGE)
        self._lent: dict[int, Piece] = {}  # by first page
        self._lent_bytes = 0
        self._apart = False

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        with self.lock:
            self._sweep()
            return self._free.free * PAGE

    def take(self, nbytes: int) -> Piece | None:
        """Returns a piece of at least so many bytes, held once, or None if there is no room now.

        Raises:
            ValueError: it is more than ``largest``.
        """
        if nbytes > self.largest:
            raise ValueError(f"{nbytes} bytes are more than the {self.largest} that one read may take")
        pages = max(1, pages_for(nbytes))
        with self.lock:
            self._sweep()
            first = self._free.take(pages)
        return None if first is None else Piece(self, first, pages)

    def wait(self, nbytes: int, deadline: float) -> Piece | None:
        """As ``take``, but waits for room until the deadline. The caller must hold nothing that others wait for."""
        while (piece := self.take(nbytes)) is None and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return piece

    def lends(self, piece: Piece) -> bool:
        """Whether a piece may be handed out as it is; counts it if so."""
        with self.lock:
            if not piece._lent:
                self._sweep()
                if self._lent_bytes + piece.nbytes > self.nbytes // 2:
                    return False
                self._lent_bytes += piece.nbytes
                self._lent[piece._first] = piece
                piece._lent = True
            return True

    def _sweep(self) -> None:
        """Takes back what was let go of. Called with the lock held."""
        while self.dropped:
            piece = self.dropped.popleft()
            piece._holds -= 1
            if piece._holds == 0:
                self._free.give(piece._first, piece._pages)
                if piece._lent:
                    self._lent_bytes -= piece.nbytes
                    del self._lent[piece._first]

    # --- forks ------------------------------------------------------------------------------------------------------

    def keep_apart(self) -> None:
        """Keeps the memory from forked children, but for what has been handed out; called when a card writes to it."""
        with self.lock:
            if not self._apart:
                self._apart = True
                self._map.madvise(mmap.MADV_DONTFORK)
                _apart().add(self)

    def before_fork(self) -> None:
        """Lets the child have what was handed out. The child gets a copy of its own, from Linux 5.12 on."""
        self.lock.acquire()
        self._advise(mmap.MADV_DOFORK)

    def after_fork(self) -> None:
        """In the parent: undoes that."""
        self._advise(mmap.MADV_DONTFORK)
        self.lock.release()

    def _advise(self, advice: int) -> None:
        for piece in self._lent.values():
            self._map.madvise(advice, piece._first * PAGE, piece.nbytes)


@lru_cache(maxsize=1)
def _apart() -> weakref.WeakSet[ReceivePool]:
    """The pools that are kept apart."""
    pools: weakref.WeakSet[ReceivePool] = weakref.WeakSet()
    held: list[ReceivePool] = []

    def before() -> None:
        held.extend(pools)
        for pool in held:
            pool.before_fork()

    def after() -> None:
        while held:
            held.pop().after_fork()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=held.clear)
    return pools
