"""Pins: how a reader that looks at a block in place keeps the owner from reusing it.

A pin is a slot of the file beside the arena: process id, its start time, block, generation. The reader also holds a
lock on the slot's bytes, which the kernel frees when the reader dies, even in another container where process ids mean
something else; so the lock decides whether a pin counts, and the numbers are for people.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import threading
from typing import Final

from ..errors import ArenaError
from .file import pins_path, start_time
from .layout import PAGE

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
            self._fd = os.open(pins_path(arena), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as err:
            raise ArenaError(f"the pins of {arena} cannot be opened: {err.strerror}") from err
        self._lock = threading.Lock()
        self._mine: set[int] = set()
        self._identity = os.getpid(), start_time(os.getpid())

    def pin(self, page: int, generation: int) -> int:
        """Pins a block and returns the slot. Look at the block's generation *after* this: it may be gone already.

        Raises:
            ArenaError: all slots are taken.
        """
        os.pwrite(self._fd, b"\1", _EVER)
        with self._lock:
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
        os.close(self._fd)


class PinBook:
    """All readers' pins, as the arena's owner sees them.

    Args:
        arena: The arena's path; the file is made if there is none.
    """

    def __init__(self, arena: str) -> None:
        self._fd = os.open(pins_path(arena), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, _EVER + PAGE)
        unlocked = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        self._ever = mmap.mmap(unlocked, PAGE, prot=mmap.PROT_READ, offset=_EVER)
        os.close(unlocked)

    def pinned(self) -> set[tuple[int, int]]:
        """Returns ``(page, generation)`` of every block that a living reader looks at; drops pins of dead ones."""
        if not self._ever[0]:
            return set()
        raw = os.pread(self._fd, len(_ZEROS), 0)
        if raw == _ZEROS:
            return set()
        found = set()
        for slot, (pid, _, page, generation) in enumerate(_SLOT.iter_unpack(raw)):
            if pid == 0:
                continue
            if _locked(self._fd, slot):
                found.add((page, generation))
            elif _lock(self._fd, slot, fcntl.F_WRLCK):
                os.pwrite(self._fd, bytes(_SLOT.size), slot * _SLOT.size)
                _lock(self._fd, slot, fcntl.F_UNLCK)
        return found

    def close(self) -> None:
        """Closes the file."""
        self._ever.close()
        os.close(self._fd)
