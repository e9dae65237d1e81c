"""Arena files: made, locked, found and removed.

The lock belongs to the open file description that the engine makes and the worker inherits, so the kernel frees it
when the last of the two is gone: whoever gets the lock holds an arena that nobody else uses, across containers too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ArenaError, ArenaRoomError
from .head import plan, read_head, write_head
from .layout import PAGE, WORD, Live

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"fd-routing-(\d+)-[0-9a-f]{16}\.(arena|shelf)", re.ASCII)
ENGINE, SHELF = "arena", "shelf"  # kinds: an engine's, and one that a store made for itself
_STEP = 16 << 20
_TRIES, _PAUSE = 20, 0.001  # for the lock of an arena, and s between: others look whether it is in use


class ArenaFile:
    """A mapped arena. ``data`` are its bytes, ``words`` the same as u64.

    Attributes:
        path: Where it is.
        fd: Its descriptor.
        head: What its first page says.
    """

    def __init__(self, path: str, fd: int, *, populate: bool = False) -> None:
        self.path = path
        self.fd = fd
        size = os.fstat(fd).st_size
        self.head = read_head(path, fd, size)
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if populate else 0)
        try:
            # A mapping keeps a descriptor of its own, which forked children inherit: it must not carry the lock.
            unlocked = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
            try:
                self.map = mmap.mmap(unlocked, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            finally:
                os.close(unlocked)
        except (OSError, ValueError) as err:
            raise ArenaError(f"{path} cannot be mapped: {err}") from err
        self.data = memoryview(self.map)
        self.words = self.data.cast("Q")

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.head.pages * PAGE

    @property
    def text(self) -> bytes:
        """What the owner wrote for adopters."""
        return bytes(self.data[2 * PAGE : 2 * PAGE + self.head.text_bytes])

    def close(self) -> None:
        """Gives the lock back and unmaps the arena, or leaves the mapping to whoever still looks at it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        with contextlib.suppress(BufferError):
            self.words.release()
            self.data.release()
            self.map.close()

    def remove(self) -> None:
        """Removes the arena and its pins from the file system. Only for its owner, or for who holds its lock."""
        _remove(self.path)


def pins_path(path: str) -> str:
    """Returns where the pins of an arena are."""
    return f"{path}.pins"


def start_time(pid: int) -> int:
    """Returns when a process started, in clock ticks since boot; 0 if there is none, or only its entry is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def alive(pid: int, started: int) -> bool:
    """Whether a process still is the one that started then."""
    return pid > 0 and started > 0 and start_time(pid) == started


def create(folder: str, size: int, text: bytes, kind: str = ENGINE) -> ArenaFile:
    """Makes an arena of ``size`` bytes: allocated, locked, for this user alone.

    Raises:
        ArenaRoomError: the room was taken meanwhile.
        ArenaError: the folder does not allow it.
    """
    folder = os.path.realpath(folder)  # readers, and this process later, may have another working directory
    while True:
        path = os.path.join(folder, f"fd-routing-{os.geteuid()}-{os.urandom(8).hex()}.{kind}")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        except OSError as err:
            raise ArenaError(f"no arena can be made in {folder}: {err.strerror}", hint="set arena_dir") from err
        try:
            if not _lock(fd) or os.fstat(fd).st_nlink == 0:  # somebody takes it for a leftover
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                os.close(fd)
                continue
            _fill(fd, size, text)
            return ArenaFile(path, fd, populate=True)
        except BaseException as err:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.close(fd)
            if not isinstance(err, OSError):
                raise
            if err.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                raise ArenaRoomError(f"{folder} has no room for {size} bytes", hint="set arena_bytes lower") from err
            if err.errno == errno.EFBIG:
                raise ArenaError(
                    f"no file of {size} bytes can be made: {err.strerror}", hint="the process has a limit: ulimit -f"
                ) from err
            raise ArenaError(f"no arena can be made in {folder}: {err.strerror}", hint="set arena_dir") from err


def _fill(fd: int, size: int, text: bytes) -> None:
    head = plan(size, text, os.getpid(), start_time(os.getpid()))
    room = os.fstatvfs(fd)
    if room.f_blocks and size > room.f_bavail * room.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    # Allocated now: a tmpfs that is full later would kill the process that writes to the mapping. In steps: a signal
    # undoes a step, and an engine may be profiled by hundreds of them a second.
    for at in range(0, size, _STEP):
        os.posix_fallocate(fd, at, min(_STEP, size - at))
    write_head(fd, head, text)


def _lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Found:
    """An arena of this user that lies in a folder.

    Attributes:
        path: Where it is.
        nbytes: Its size.
        used: Whether its engine or its worker lives.
        made: Age of the file in seconds.
    """

    path: str
    nbytes: int
    used: bool
    made: float


def find(folder: str, *, tidy: bool = True, kind: str = ENGINE) -> Iterator[Found]:
    """Yields this user's arenas in a folder, in use or not.

    Args:
        folder: The folder.
        tidy: Whether half-made arenas of dead processes, and pins without an arena, are removed on the way.
        kind: Which kind of arenas.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) != os.geteuid() or match[2] != kind:
            continue
        found = _look_at(os.path.join(folder, name), tidy)
        if found is not None:
            yield found
    if tidy:
        _remove_lonely_pins(folder, names)


def _look_at(path: str, tidy: bool) -> Found | None:
    """Returns what an arena file is; None, and may remove it, if its maker died before it was one."""
    try:
        fd = _open(path)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        used = not _lock(fd, fcntl.LOCK_SH)  # several may look at once
        if not used and not any(os.pread(fd, WORD, 0)):
            if tidy:
                _unlink_if_same(path, found)
            return None
        return Found(path, found.st_size, used, max(0.0, time.time() - found.st_mtime))
    finally:
        os.close(fd)


def take(path: str) -> ArenaFile | None:
    """Opens and locks an arena that nobody uses; None if somebody does, or if it is gone.

    Raises:
        ArenaError: it is damaged or of another version.
    """
    try:
        fd = _open(path)
    except OSError:
        return None
    try:
        if _claim(fd):
            return ArenaFile(path, fd)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def peek(path: str) -> ArenaFile:
    """Opens an arena without its lock, only to look at it.

    Raises:
        ArenaError: it is damaged or of another version.
        OSError: it is gone, or somebody else's.
    """
    fd = _open(path)
    try:
        return ArenaFile(path, fd)
    except BaseException:
        os.close(fd)
        raise


def remove_unread(path: str) -> bool:
    """Removes an arena that nobody uses, whatever is in it; returns whether it did."""
    try:
        fd = _open(path)
    except FileNotFoundError:
        return False
    try:
        if not _claim(fd):
            return False
        _remove(path)
        return True
    finally:
        os.close(fd)


def worker_of(file: ArenaFile) -> tuple[int, int]:
    """Returns process id and start time of the arena's worker."""
    return file.words[Live.WORKER_PID], file.words[Live.WORKER_START]


def _open(path: str) -> int:
    """Opens an arena file of this user; anything else raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(errno.EPERM, "a foreign file")
    return fd


def _claim(fd: int) -> bool:
    """Locks an arena file that nobody uses; False if somebody does, or removed it. Others may look at it meanwhile."""
    for _ in range(_TRIES):
        if _lock(fd):
            return os.fstat(fd).st_nlink > 0
        time.sleep(_PAUSE)
    return False


def _remove(path: str) -> None:
    for each in (path, pins_path(path)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(each)


def _unlink_if_same(path: str, found: os.stat_result) -> None:
    with contextlib.suppress(OSError):
        if os.path.samestat(os.lstat(path), found):
            os.unlink(path)


def _remove_lonely_pins(folder: str, names: list[str]) -> None:
    for name in names:
        arena = name.removesuffix(".pins")
        match = _NAME.fullmatch(arena)
        if arena == name or arena in names or match is None or int(match[1]) != os.geteuid():
            continue
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if own and not os.path.lexists(os.path.join(folder, arena)):
                os.unlink(path)
