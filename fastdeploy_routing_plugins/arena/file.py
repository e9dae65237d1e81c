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
from .layout import FILE_HEAD, FILE_MAGIC, PAGE, RING_SLOTS, VERSION, WORD, Live, pages_for

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"fd-routing-(\d+)-[0-9a-f]{16}\.arena", re.ASCII)
_MAX_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class FileHead:
    """The first page of an arena; see ``layout``."""

    pages: int
    key: int
    ring_page: int
    ring_slots: int
    heap_page: int
    text_bytes: int
    owner_pid: int
    owner_start: int


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
        self.head = _read_head(path, fd, size)
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if populate else 0)
        # A mapping keeps a descriptor of its own, which forked children inherit: it must not carry the lock.
        unlocked = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self.map = mmap.mmap(unlocked, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(unlocked)
        self.data = memoryview(self.map)
        self.words = self.data.cast("Q")

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.data)

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
        for path in (self.path, pins_path(self.path)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def pins_path(path: str) -> str:
    """Returns where the pins of an arena are."""
    return f"{path}.pins"


def start_time(pid: int) -> int:
    """Returns when a process started, in clock ticks since boot; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def alive(pid: int, started: int) -> bool:
    """Whether a process still is the one that started then."""
    return pid > 0 and started > 0 and start_time(pid) == started


def create(folder: str, size: int, text: bytes) -> ArenaFile:
    """Makes an arena of ``size`` bytes: allocated, locked, for this user alone.

    Raises:
        ArenaRoomError: the room was taken meanwhile.
        ArenaError: the folder does not allow it.
    """
    while True:
        path = os.path.join(folder, f"fd-routing-{os.geteuid()}-{os.urandom(8).hex()}.arena")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        except OSError as err:
            raise ArenaError(f"no arena can be made in {folder}: {err.strerror}", hint="set arena_dir") from err
        try:
            if not _lock(fd) or os.fstat(fd).st_nlink == 0:  # somebody took it for a leftover
                os.close(fd)
                continue
            _fill(fd, size, text)
            return ArenaFile(path, fd, populate=True)
        except BaseException as err:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.close(fd)
            if isinstance(err, OSError) and err.errno in (errno.ENOSPC, errno.ENOMEM):
                raise ArenaRoomError(f"{folder} has no room for {size} bytes", hint="set arena_bytes lower") from err
            raise


def _fill(fd: int, size: int, text: bytes) -> None:
    if len(text) > _MAX_TEXT:
        raise ArenaError(f"the configuration has {len(text)} bytes, an arena keeps {_MAX_TEXT}")
    # Allocated now: a tmpfs that is full later would kill the process that writes to the mapping.
    os.posix_fallocate(fd, 0, size)
    ring_page = 2 + pages_for(len(text))
    heap_page = ring_page + pages_for(RING_SLOTS * WORD)
    if heap_page + 2 > size // PAGE:
        raise ArenaRoomError(f"{size} bytes are too few for an arena", hint="set arena_bytes higher")
    os.pwrite(fd, text, 2 * PAGE)
    key = int.from_bytes(os.urandom(8), "little")
    pid = os.getpid()
    numbers = (VERSION, size // PAGE, key, ring_page, RING_SLOTS, heap_page, len(text), pid, start_time(pid))
    head = FILE_HEAD.pack(FILE_MAGIC, *numbers)
    os.pwrite(fd, head[WORD:], WORD)
    os.pwrite(fd, head[:WORD], 0)  # the magic comes last: a file without it was never used


def _read_head(path: str, fd: int, size: int) -> FileHead:
    raw = os.pread(fd, FILE_HEAD.size, 0)
    if len(raw) < FILE_HEAD.size:
        raise ArenaError(f"{path} is no arena")
    magic, version, *numbers = FILE_HEAD.unpack(raw)
    if magic != FILE_MAGIC or version != VERSION:
        raise ArenaError(f"{path} is no arena of this version", hint="`fd-routing clean` of its own version reads it")
    head = FileHead(*numbers)
    text_end = 2 + pages_for(head.text_bytes)
    ring_end = head.ring_page + pages_for(head.ring_slots * WORD)
    sound = (
        size == head.pages * PAGE
        and head.text_bytes <= _MAX_TEXT
        and text_end <= head.ring_page
        and 0 < head.ring_slots <= 1 << 20
        and ring_end <= head.heap_page < head.pages
    )
    if not sound:
        raise ArenaError(f"{path} is damaged: its head contradicts its size")
    return head


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def find(folder: str) -> Iterator[Found]:
    """Yields this user's arenas in a folder, in use or not; half-made ones of dead processes are removed."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) != os.geteuid():
            continue
        found = _look_at(os.path.join(folder, name))
        if found is not None:
            yield found
    _remove_lonely_pins(folder, names)


def _look_at(path: str) -> Found | None:
    """Returns what an arena file is; removes it, and returns None, if its maker died before it was one."""
    try:
        fd = _open(path)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        used = not _lock(fd)
        if not used and os.pread(fd, WORD, 0) == bytes(WORD):
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
        if _lock(fd) and os.fstat(fd).st_nlink > 0:
            return ArenaFile(path, fd)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


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


def _unlink_if_same(path: str, found: os.stat_result) -> None:
    with contextlib.suppress(OSError):
        if os.path.samestat(os.lstat(path), found):
            os.unlink(path)


def _remove_lonely_pins(folder: str, names: list[str]) -> None:
    for name in names:
        arena = name.removesuffix(".pins")
        if (
            arena != name
            and arena not in names
            and (match := _NAME.fullmatch(arena))
            and int(match[1]) == os.geteuid()
        ):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if not os.path.lexists(os.path.join(folder, arena)):
                    os.unlink(path)
