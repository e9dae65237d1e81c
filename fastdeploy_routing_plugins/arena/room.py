"""How much shared memory an arena may take, checked before it is used."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ArenaRoomError
from .layout import PAGE

SHM = "/dev/shm"  # noqa: S108 - every file there is created exclusively, under a random name, for its owner alone
MAX_AUTO = 4 << 30
MIN_AUTO = 32 << 20
MIN_ARENA = 1 << 20
_CGROUP = Path("/sys/fs/cgroup")


def free_room(folder: str) -> int:
    """Returns how many bytes a file in a folder may take: free there, and free in memory, whichever is less.

    Raises:
        ArenaRoomError: the folder cannot be used.
    """
    try:
        found = os.statvfs(folder)
    except OSError as err:
        raise ArenaRoomError(
            f"the arena's folder {folder} cannot be used: {err.strerror}", hint="arena_dir names an existing tmpfs"
        ) from err
    limits = [found.f_bavail * found.f_frsize, *_memory()]
    return min(limits)


def _memory() -> list[int]:
    """Free memory of the machine and of the container, in bytes, as far as the kernel tells."""
    limits = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            limits = [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
        allowed = (_CGROUP / "memory.max").read_text()
        if allowed.strip().isdigit():
            limits.append(max(0, int(allowed) - int((_CGROUP / "memory.current").read_text())))
    except (OSError, ValueError):
        pass  # no cgroup v2 limit here
    return limits


def choose_size(folder: str, wanted: int | None) -> int:
    """Returns the size of a new arena in bytes, a multiple of the page size.

    Args:
        folder: Where it will be.
        wanted: What the user asks for; None: a quarter of the free room, at most 4 GiB.

    Raises:
        ArenaRoomError: there is not enough room; says how to make some.
    """
    room = free_room(folder)
    size = min(MAX_AUTO, room // 4) if wanted is None else wanted
    size -= size % PAGE
    if wanted is not None and size < MIN_ARENA:
        raise ArenaRoomError(f"arena_bytes={wanted} is too small", hint=f"at least {MIN_ARENA} bytes")
    if size > room or (wanted is None and size < MIN_AUTO):
        need = f"{wanted} bytes" if wanted is not None else f"at least {4 * MIN_AUTO >> 20} MiB"
        raise ArenaRoomError(
            f"{folder} has room for {room >> 20} MiB, the arena needs {need}",
            hint=_cure(folder),
        )
    return size


def _cure(folder: str) -> str:
    if folder == SHM:
        return (
            "a container gets 64 MiB unless told otherwise: docker run --shm-size=8g (Kubernetes: an emptyDir with "
            "medium: Memory at /dev/shm); or set arena_bytes lower, or arena_dir to another tmpfs; `fd-routing clean` "
            "removes what dead processes left there"
        )
    return "set arena_bytes lower, or arena_dir to a tmpfs with more room"
