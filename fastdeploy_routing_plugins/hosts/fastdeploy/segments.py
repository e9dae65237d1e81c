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
import weakref
from multiprocessing import util

from ...errors import ArenaError, ArenaRoomError, ConflictError

FOLDER = "/dev/shm"  # noqa: S108 - where POSIX shared memory lives on Linux, not a temporary file
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
    path = _path(name)
    temporary = f"{path}.{os.urandom(8).hex()}.new"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Memory that is not there would kill whoever touches it.
        os.posix_fallocate(fd, 0, max(size, 1))
        for _ in range(100):
            try:
                os.link(temporary, path)
                break
            except FileExistsError:
                _clear_away(name)
        else:
            raise ConflictError(f"shared memory {name} comes back as fast as it is removed")
    except OSError as err:
        os.close(fd)
        if err.errno in (errno.ENOSPC, errno.ENOMEM):
            raise ArenaRoomError(
                f"there is not enough shared memory for {size} bytes of routing ({FOLDER} is full)",
                hint="docker run --shm-size=…, or fewer KV cache blocks",
            ) from err
        raise ArenaError(f"shared memory {name} cannot be made: {err.strerror}") from err
    except BaseException:
        os.close(fd)
        raise
    finally:
        os.unlink(temporary)
    return fd


def _clear_away(name: str) -> None:
    """Removes shared memory that nobody owns any more.

    Raises:
        ConflictError: its owner lives.
    """
    try:
        fd = os.open(_path(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(name, fd):
            os.unlink(_path(name))
            _log.warning("removed the shared memory %s, which an engine that is gone left behind", name)
    except BlockingIOError:
        raise ConflictError(
            f"shared memory {name} belongs to an engine that runs",
            hint="two engines on one host need different --engine-worker-queue-port",
        ) from None
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
