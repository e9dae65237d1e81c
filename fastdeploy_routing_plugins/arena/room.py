"""How much shared memory an arena may take, checked before it is used."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArenaRoomError
from .layout import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

SHM = "/dev/shm"  # noqa: S108 - every file there is created exclusively, under a random name, for its owner alone
MAX_AUTO = 4 << 30
MIN_AUTO = 32 << 20
MIN_ARENA = 1 << 20
BESIDE = 1 << 18  # room for the pins beside the arena
_NO_LIMIT = sys.maxsize
_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def choose_size(folder: str, wanted: int | None) -> int:
    """Returns the size of a new arena in bytes, a multiple of the page size.

    Free room is what is free in the folder, or in memory if that is less.

    Args:
        folder: Where it will be.
        wanted: What the user asks for; None: a quarter of the free room, at most 4 GiB.

    Raises:
        ArenaRoomError: there is not enough room; says how to make some.
    """
    if wanted is not None and wanted < MIN_ARENA:
        raise ArenaRoomError(f"arena_bytes={wanted} is too small", hint=f"at least {MIN_ARENA} bytes")
    here, memory = _folder_room(folder), min(_memory(), default=_NO_LIMIT)
    free = min(here, memory)
    room = max(0, free - BESIDE)
    size = min(MAX_AUTO, free // 4) if wanted is None else wanted
    size -= size % PAGE
    if size <= room and (wanted is not None or size >= MIN_AUTO):
        return size
    need = f"{wanted >> 20:,} MiB and a little more" if wanted else f"at least {4 * MIN_AUTO >> 20} MiB"
    if memory < here:
        raise ArenaRoomError(
            f"the machine, or this container, has {free >> 20} MiB of free memory, the arena needs {need}",
            hint="set arena_bytes lower, or give it more memory; `fd-routing clean` removes what dead processes left",
        )
    raise ArenaRoomError(f"{folder} has room for {free >> 20} MiB, the arena needs {need}", hint=_cure(folder))


def modest_size(folder: str, limit: int) -> int:
    """Returns the size of an arena that has to fit into whatever room there is: a quarter of it, at most ``limit``.

    Raises:
        ArenaRoomError: the folder cannot be used.
    """
    room = min(_folder_room(folder), limit * 4, *_memory())
    return max(MIN_ARENA, room // 4 // PAGE * PAGE)


def _cure(folder: str) -> str:
    if Path(SHM) in (where := Path(os.path.realpath(folder)), *where.parents):
        return (
            "a container gets 64 MiB unless told otherwise: docker run --shm-size=8g (Kubernetes: an emptyDir with "
            "medium: Memory at /dev/shm); or set arena_bytes to what it may take, or arena_dir to another tmpfs; "
            "`fd-routing clean` removes what dead processes left there"
        )
    return (
        f"set arena_bytes to what it may take ({MIN_ARENA >> 20} MiB at least), or arena_dir to a tmpfs with more room"
    )


def _folder_room(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except OSError as err:
        raise ArenaRoomError(
            f"the arena's folder {folder} cannot be used: {err.strerror}", hint="arena_dir names an existing tmpfs"
        ) from err
    return found.f_bavail * found.f_frsize if found.f_blocks else _NO_LIMIT  # so says a tmpfs without a limit


def _memory() -> Iterator[int]:
    """Free memory of the machine and of the container, in bytes, as far as the kernel tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            yield from [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
        groups = [line.split(":", 2) for line in _MEMBERSHIP.read_text().splitlines()]
    except (OSError, ValueError, IndexError):
        return
    for _, controllers, path in groups:
        if not controllers:
            yield from _group_rooms(_CGROUP, path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            yield from _group_rooms(
                _CGROUP / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
            )


def _group_rooms(root: Path, path: str, limit: str, used: str, prefix: str) -> Iterator[int]:
    """What is left of the limits of a control group and of those around it; in a container its own is the root."""
    group = root / os.path.normpath("/" + path).lstrip("/")
    for folder in (group, *group.parents):
        try:
            allowed = int((folder / limit).read_text())
            left = allowed - int((folder / used).read_text()) + _cached(folder / "memory.stat", prefix)
            yield max(0, min(allowed, left))
        except (OSError, ValueError):
            pass  # "max", or no such files at this level
        if folder == root:
            return


def _cached(stat: Path, prefix: str) -> int:
    """Memory of files that were read, a model's weights above all, which goes when somebody needs it."""
    try:
        numbers = dict(line.split() for line in stat.read_text().splitlines())
        return sum(int(numbers.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    except (OSError, ValueError):
        return 0
