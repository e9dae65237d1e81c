"""Memory to receive into, used again and again: touching fresh memory costs several times as much as copying to it."""

from __future__ import annotations

import mmap
import time
from collections import deque
from contextlib import suppress
from typing import Final

import numpy as np

from .forks import Forgetful
from .layout import PAGE
from .lent import lend

SMALL: Final = 96 << 10  # bytes; below, the C library's own recycling is faster
IDLE_BYTES: Final = 256 << 20
IDLE_SECONDS: Final = 60.0
_TRIM = 1.0  # s between looks at what has become too old
_HUGE = 4 << 20  # bytes from which on the kernel is asked for large pages: copying is a tenth faster


class _Chunk:
    """Memory of one size class."""

    __slots__ = ("address", "memory", "nbytes", "since")

    def __init__(self, nbytes: int) -> None:
        try:
            self.memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as err:
            raise MemoryError(f"no memory for {nbytes} bytes") from err
        if nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.address: int = np.frombuffer(self.memory, np.uint8).__array_interface__["data"][0]
        self.nbytes = nbytes
        self.since = 0.0


class Pool(Forgetful):
    """Recycled memory. Methods may be called from several threads, and from finalizers and signal handlers amid them.

    There is no lock, which an interrupt could leave locked: each step is one operation of a deque or a dict, and all
    that can go wrong between two of them is that memory is not recycled.

    Args:
        idle_bytes: How many bytes are kept while nobody uses them.
        idle_seconds: For how long; looked at whenever memory is taken or comes back.
    """

    def __init__(self, idle_bytes: int = IDLE_BYTES, idle_seconds: float = IDLE_SECONDS) -> None:
        self._limit = idle_bytes
        self._seconds = idle_seconds
        self._idle: dict[int, deque[_Chunk]] = {}  # by size; what came back last is at the end
        self._trimmed = 0.0
        self.remember()

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept and not used."""
        return sum([size * len(same) for size, same in list(self._idle.items())])

    def take(self, nbytes: int) -> memoryview:
        """Returns writable memory of unknown content, which comes back once nothing refers to it any more.

        From ``SMALL`` bytes on it begins on a page border.

        Raises:
            MemoryError: there is none.
        """
        if nbytes < SMALL:
            return np.empty(nbytes, np.uint8).data
        size = size_class(nbytes)
        if time.monotonic() > self._trimmed + _TRIM:
            self._trim()
        same = self._idle.get(size)
        try:
            chunk = same.pop() if same else _Chunk(size)
        except IndexError:  # another thread was faster
            chunk = _Chunk(size)
        return lend(chunk.address, nbytes, self._give, chunk, writable=True)

    def _give(self, chunk: _Chunk) -> None:
        """Takes memory back. Never waits: the garbage collector may call this in the middle of anything."""
        chunk.since = time.monotonic()
        self._idle.setdefault(chunk.nbytes, deque()).append(chunk)
        if self.idle_bytes > self._limit or chunk.since > self._trimmed + _TRIM:
            self._trim()

    def _trim(self) -> None:
        """Lets go of what is too much or too old, the oldest first."""
        self._trimmed = now = time.monotonic()
        while idle := [same for same in list(self._idle.values()) if same]:
            with suppress(IndexError):  # another thread takes from it
                oldest = min(idle, key=lambda same: same[0].since)
                if self.idle_bytes <= self._limit and oldest[0].since > now - self._seconds:
                    return
                oldest.popleft()

    def close(self) -> None:
        """Lets go of what is idle; what is in use stays valid, and goes when it comes back."""
        self._limit = 0
        self._trim()

    def forget(self) -> None:
        """In a forked child: the memory is its own, what the parent has idle is not worth keeping."""
        self._idle = {}


def size_class(nbytes: int) -> int:
    """Returns the size of the memory that is taken for so many bytes: a multiple of pages, at most a quarter more."""
    step = max(PAGE, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return -(-nbytes // step) * step
