"""Memory to receive into, used again and again: touching fresh memory costs several times as much as copying to it."""

from __future__ import annotations

import mmap
import threading
import time
from collections import deque
from typing import Final

import numpy as np

from .forks import Forgetful
from .layout import PAGE
from .lent import lend

SMALL: Final = 96 << 10  # bytes; below, the C library's own recycling is faster
IDLE_BYTES: Final = 256 << 20
IDLE_SECONDS: Final = 60.0
_TRIM = 1.0  # s between looks at what has become too old


class _Chunk:
    """Memory of one size class."""

    __slots__ = ("address", "memory", "nbytes", "since")

    def __init__(self, nbytes: int) -> None:
        self.memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address: int = np.frombuffer(self.memory, np.uint8).__array_interface__["data"][0]
        self.nbytes = nbytes
        self.since = 0.0


class Pool(Forgetful):
    """Recycled memory. Methods may be called from several threads.

    Args:
        idle_bytes: How many bytes are kept while nobody uses them.
        idle_seconds: For how long; looked at whenever memory is taken or comes back.
    """

    def __init__(self, idle_bytes: int = IDLE_BYTES, idle_seconds: float = IDLE_SECONDS) -> None:
        self._limit = idle_bytes
        self._seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: dict[int, list[_Chunk]] = {}  # by size; what came back last is at the end
        self._idle_bytes = 0
        self._returned: deque[_Chunk] = deque()
        self._trimmed = 0.0
        self.remember()

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept and not used."""
        return self._idle_bytes

    def take(self, nbytes: int) -> memoryview:
        """Returns writable memory of unknown content, which comes back once nothing refers to it any more.

        From ``SMALL`` bytes on it begins on a page border.

        Raises:
            MemoryError: there is none.
        """
        if nbytes < SMALL:
            return np.empty(nbytes, np.uint8).data
        size = size_class(nbytes)
        with self._lock:
            if self._returned:
                self._sweep()
            same = self._idle.get(size)
            chunk = same.pop() if same else None
            if chunk is not None:
                self._idle_bytes -= size
        if chunk is None:
            try:
                chunk = _Chunk(size)
            except (OSError, OverflowError, ValueError) as err:
                raise MemoryError(f"no memory for {nbytes} bytes") from err
        return lend(chunk.address, nbytes, self._give, chunk, writable=True)

    def _give(self, chunk: _Chunk) -> None:
        """Takes memory back. Never waits: the garbage collector may call this in the middle of ``take``."""
        self._returned.append(chunk)
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    def _sweep(self) -> None:
        """Puts away what came back. Called with the lock held."""
        now = time.monotonic()
        while self._returned:
            chunk = self._returned.popleft()
            chunk.since = now
            self._idle.setdefault(chunk.nbytes, []).append(chunk)
            self._idle_bytes += chunk.nbytes
        if self._idle_bytes > self._limit or now > self._trimmed + _TRIM:
            self._trim(now)

    def _trim(self, now: float) -> None:
        """Lets go of what is too much or too old, the oldest first. Called with the lock held."""
        self._trimmed = now
        idle = sorted([chunk for same in self._idle.values() for chunk in same], key=lambda chunk: chunk.since)
        for chunk in idle:  # each is the first of its class
            if self._idle_bytes <= self._limit and chunk.since > now - self._seconds:
                break
            del self._idle[chunk.nbytes][0]
            self._idle_bytes -= chunk.nbytes

    def close(self) -> None:
        """Lets go of what is idle; what is in use stays valid, and goes when it comes back."""
        with self._lock:
            self._limit = 0
            self._sweep()

    def forget(self) -> None:
        """In a forked child, whose memory is its own: a thread that is not here may hold the lock."""
        self._lock = threading.Lock()
        self._idle, self._idle_bytes = {}, 0


def size_class(nbytes: int) -> int:
    """Returns the size of the memory that is taken for so many bytes: a multiple of pages, at most a quarter more."""
    step = max(PAGE, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return -(-nbytes // step) * step
