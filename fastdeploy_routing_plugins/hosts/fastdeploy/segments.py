"""Shared memory with one owner: who only attached never removes it, and a living owner's is never taken for stale.

The owner keeps the file locked, in an open file of its own that forked children let go of. The kernel frees the lock
when the owner ends, however it ends, so what can be locked belongs to nobody; this holds across containers, whose
process numbers mean nothing to each other. Python's resource tracker is left out: until Python 3.13 it removes what a
process attached to when that process ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import re
import weakref
from multiprocessing import util

from ...errors import ArenaError, ArenaRoomError, ConflictError

FOLDER = "/dev/shm"  # noqa: S108 - where POSIX shared memory lives on Linux, not a temporary file
_NEW = ".new"  # ends the name of what is not finished
_ATTEMPTS = 100
_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


class Segment:
    """Shared memory that this process looks at, like ``multiprocessing.shared_memory.SharedMemory``.

    Attributes:
        name: Its name in the system.
        size: Its size in bytes.
        buf: Its bytes.
    """

    def __init__(self, name: str) -> None:
        """Attaches.

        Raises:
            FileNotFoundError: there is none of this name.
        """
        self.name = name
        fd = os.open(_path(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.size = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, self.size)
        finally:
            os.close(fd)
        self.buf = memoryview(self._map)

    def close(self) -> None:
        """Lets go of the memory; arrays that still look at it keep it mapped."""
        with contextlib.suppress(BufferError):
            self.buf.release()
            self._map.close()


class OwnedSegment(Segment):
    """Shared memory that this process made; removed at ``unlink``, or when the process ends."""

    def __init__(self, name: str, size: int) -> None:
        """Makes it, after removing one that a dead owner left.

        Raises:
            ConflictError: a living process owns one of this name.
            ArenaRoomError: there is not enough shared memory.
            ArenaError: shared memory cannot be made.
        """
        self._lock = _make(name, size)
        try:
            super().__init__(name)
        except BaseException:
            _remove(name, self._lock)
            raise
        _owned.add(self)
        self._end = util.Finalize(self, _remove, args=(name, self._lock), exitpriority=10)

    def unlink(self) -> None:
        """Removes it; does nothing in a forked child, which is no owner."""
        self._end()
        self._lock = -1

    def disown(self) -> None:
        """Lets the lock go in a forked child."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


_owned: weakref.WeakSet[OwnedSegment] = weakref.WeakSet()


def _after_fork() -> None:
    for segment in list(_owned):
        segment.disown()
    _owned.clear()


os.register_at_fork(after_in_child=_after_fork)


def _path(name: str) -> str:
    return os.path.join(FOLDER, name)


def _make(name: str, size: int) -> int:
    """Creates the file, allocated and locked; returns the descriptor that holds the lock."""
    try:
        _clear_away(name)  # first, for there may be no room for both
        _clear_unfinished(name)
        temporary, fd = _begin(name)
        try:
            # Memory that is not there would kill whoever touches it.
            os.posix_fallocate(fd, 0, max(size, 1))
            _publish(temporary, name)
        except BaseException:
            os.unlink(_path(temporary))
            os.close(fd)
            raise
        os.unlink(_path(temporary))
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.ENOMEM):
            raise ArenaRoomError(
                f"there is not enough shared memory for {size} bytes of routing ({FOLDER} is full)",
                hint="docker run --shm-size=…, or fewer KV cache blocks",
            ) from err
        raise ArenaError(f"shared memory {name} cannot be made: {err.strerror}") from err
    return fd


def _begin(name: str) -> tuple[str, int]:
    """Creates an empty file under another name, locked; returns that name and the descriptor."""
    for _ in range(_ATTEMPTS):
        temporary = f"{name}.{os.urandom(8).hex()}{_NEW}"
        fd = os.open(_path(temporary), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        # Until it is locked, another engine that starts may take it for a dead one's.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(temporary, fd):
                return temporary, fd
        os.close(fd)
    raise ConflictError(f"what becomes the shared memory {name} is removed as fast as it is made")


def _publish(temporary: str, name: str) -> None:
    """Gives a finished file its name.

    Raises:
        ConflictError: a living process has the name by now.
    """
    for _ in range(_ATTEMPTS):
        try:
            os.link(_path(temporary), _path(name))
        except FileExistsError:
            _clear_away(name)
        else:
            return
    raise ConflictError(f"shared memory {name} comes back as fast as it is removed")


def _clear_away(name: str) -> None:
    """Removes shared memory that nobody owns any more.

    Raises:
        ConflictError: its owner lives.
    """
    try:
        removed = _remove_if_dead(name)
    except FileNotFoundError:
        return
    except BlockingIOError:
        raise ConflictError(
            f"shared memory {name} belongs to an engine that runs",
            hint="two engines on one host need different --engine-worker-queue-port",
        ) from None
    if removed:
        _log.warning("removed the shared memory %s, which an engine that is gone left behind", name)


def _clear_unfinished(name: str) -> None:
    """Removes what engines left that died while they made a buffer of this kind, whatever port they had."""
    kind = re.escape(name.partition(".")[0])
    unfinished = re.compile(rf"{kind}(\..*)?\.[0-9a-f]{{16}}{re.escape(_NEW)}", re.DOTALL)
    for entry in filter(unfinished.fullmatch, os.listdir(FOLDER)):
        with contextlib.suppress(OSError):  # one that runs, or another user's, or gone by now
            if _remove_if_dead(entry):
                _log.warning("removed the shared memory %s, which an engine that was killed left behind", entry)


def _remove_if_dead(name: str) -> bool:
    """Removes a file whose owner is gone; returns False if the name leads elsewhere by now.

    Raises:
        BlockingIOError: its owner lives.
        OSError: there is none, or it is another user's.
    """
    fd = os.open(_path(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(name, fd):
            return False
        os.unlink(_path(name))
        return True
    finally:
        os.close(fd)


def _remove(name: str, lock: int) -> None:
    """Removes an owner's file, if its name still leads to it, and gives the lock back."""
    try:
        if _is_at(name, lock):
            os.unlink(_path(name))
    finally:
        os.close(lock)


def _is_at(name: str, fd: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(_path(name)), os.fstat(fd))
    return False
