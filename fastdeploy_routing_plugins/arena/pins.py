"""Pins: how a reader that looks at a block in place keeps the owner from reusing it.

A pin is a slot of the file beside the arena: process id, its start time, block, generation. The reader also holds a
lock on the slot's bytes, which the kernel frees when the reader dies, even in another container where process ids mean
something else; so the lock decides whether a pin counts, and the numbers are for people.

Pins belong to the process that made them. A child that it forks could keep them beyond its parent's end, or give them
back behind its parent's back, so ``Pins`` lets go of the file there: the child opens its own, and looks at what it
pinned itself.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
import weakref
from functools import lru_cache
from typing import Final

import numpy as np

from ..errors import ArenaError
from .file import pins_path, start_time

_log = logging.getLogger(__name__)

SLOTS: Final = 4096
_SLOT = struct.Struct("<4Q")
_ZEROS = bytes(SLOTS * _SLOT.size)
_EVER = len(_ZEROS)  # where the byte is that tells whether anybody ever pinned; an owner without readers pays nothing
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


def _lock(fd: int, slot: int, kind: int) -> bool:
    """Locks or unlocks a slot for this open file; False if somebody else holds it."""
    request = _FLOCK.pack(kind, os.SEEK_SET, slot * _SLOT.size, _SLOT.size, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
    except OSError as err:
        if err.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _locked(fd: int, slot: int) -> bool:
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot * _SLOT.size, _SLOT.size, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))[0]
    return kind != fcntl.F_UNLCK


class Pins:
    """One process's pins on an arena.

    Args:
        arena: The arena's path.
    """

    def __init__(self, arena: str) -> None:
        try:
            self._fd = _open(arena, 0)
        except OSError as err:
            raise ArenaError(f"the pins of {arena} cannot be opened: {err.strerror}") from err
        self._lock = threading.RLock()  # the garbage collector may unpin in the middle of ``pin``
        self._mine: set[int] = set()
        self._identity = os.getpid(), start_time(os.getpid())
        _open_pins().add(self)

    def pin(self, page: int, generation: int) -> int:
        """Pins a block and returns the slot. Ask for the block's state *after* this: it may be gone already.

        Raises:
            ArenaError: all slots are taken, or the pins are closed.
        """
        with self._lock:
            if self._fd < 0:
                raise ArenaError("these pins are closed, or a parent process opened them", hint="open them here")
            os.pwrite(self._fd, b"\1", _EVER)
            first = (page * 0x9E3779B1) % SLOTS
            for probe in range(SLOTS):
                slot = (first + probe) % SLOTS
                if slot not in self._mine and _lock(self._fd, slot, fcntl.F_WRLCK):
                    os.pwrite(self._fd, _SLOT.pack(*self._identity, page, generation), slot * _SLOT.size)
                    self._mine.add(slot)
                    return slot
        raise ArenaError(f"all {SLOTS} pins are in use", hint="release views that are no longer needed")

    def unpin(self, slot: int) -> None:
        """Gives a pin back."""
        with self._lock:
            if slot in self._mine:
                os.pwrite(self._fd, bytes(_SLOT.size), slot * _SLOT.size)
                self._mine.discard(slot)
                _lock(self._fd, slot, fcntl.F_UNLCK)

    def close(self) -> None:
        """Gives all pins back."""
        for slot in list(self._mine):
            self.unpin(slot)
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def forget(self) -> None:
        """In a forked child: lets go of the parent's pins, which stay."""
        self._lock = threading.RLock()  # a thread that is not here may hold the old one
        self._mine.clear()
        self.close()


@lru_cache(maxsize=1)
def _open_pins() -> weakref.WeakSet[Pins]:
    """The pins of this process."""
    pins: weakref.WeakSet[Pins] = weakref.WeakSet()

    def forget() -> None:
        for each in list(pins):
            each.forget()
        pins.clear()

    os.register_at_fork(after_in_child=forget)
    return pins


def _open(arena: str, flags: int) -> int:
    """Opens the file of an arena's pins; refuses one that somebody else put there."""
    fd = os.open(pins_path(arena), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o600)
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(errno.EPERM, "a foreign file")
    return fd


class PinBook:
    """All readers' pins, as the arena's owner sees them.

    Args:
        arena: The arena's path; the file is made if there is none.
    """

    def __init__(self, arena: str) -> None:
        self._path = pins_path(arena)
        self._cut = False
        self._fd = _open(arena, os.O_CREAT)
        try:
            os.posix_fallocate(self._fd, 0, _EVER + 1)
        except BaseException:
            self.close()
            raise

    def pinned(self) -> set[tuple[int, int]] | None:
        """Returns ``(page, generation)`` of every block that a living reader looks at; drops pins of dead ones.

        None: somebody cut the file off, and any block may be pinned.
        """
        # By a system call, after which every reader sees what the owner wrote to the arena before.
        ever = os.pread(self._fd, 1, _EVER)
        if ever == b"\0":
            return set()
        raw = os.pread(self._fd, len(_ZEROS), 0)
        if not ever or len(raw) < len(_ZEROS):
            if not self._cut:
                _log.error("%s was cut off: nothing of its arena is freed any more", self._path)
            self._cut = True
            return None
        if raw == _ZEROS:
            return set()
        rows = np.frombuffer(raw, "<u8", len(raw) // _SLOT.size * 4).reshape(-1, 4)
        found = set()
        for slot in np.flatnonzero(rows[:, 0]).tolist():
            if _locked(self._fd, slot):
                found.add((int(rows[slot, 2]), int(rows[slot, 3])))
            elif _lock(self._fd, slot, fcntl.F_WRLCK):
                os.pwrite(self._fd, bytes(_SLOT.size), slot * _SLOT.size)
                _lock(self._fd, slot, fcntl.F_UNLCK)
        return found

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
