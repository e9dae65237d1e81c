"""A small tmpfs for one question, in a mount namespace of its own: nobody else sees it, and it ends with the process.

``answer`` asks there, or, where no namespace is allowed, here with a file system that says it is that small.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fastdeploy_routing_plugins.arena import file as files
from fastdeploy_routing_plugins.arena.arena import Arena
from fastdeploy_routing_plugins.arena.room import SHM, choose_size
from fastdeploy_routing_plugins.errors import ArenaRoomError

_MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && exec "$@"'


@lru_cache(maxsize=1)
def _namespace() -> list[str] | None:
    """Returns the command that makes a mount namespace in which a tmpfs can be mounted; None if none does."""
    for command in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        probe = [*command, "sh", "-c", _MOUNT, "sh", "1m", SHM, "true"]
        try:
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return command
        except FileNotFoundError:
            return None
    return None


def answer(question: str, where: str, mib: int, size: int | None) -> dict[str, Any]:
    """Asks about a tmpfs of so many MiB.

    Args:
        question: ``choose`` an arena's size; ``create`` an arena file; ``create_late``, when the room was taken after
            it was looked at; ``create_arena``, with its pins.
        where: Where the tmpfs is mounted.
        mib: Its size.
        size: Of the arena.

    Returns:
        The size, or the error's message and hint, and which files are left.
    """
    namespace = _namespace()
    if namespace is None:
        small = SimpleNamespace(f_bavail=mib << 8, f_frsize=4096, f_blocks=mib << 8)
        with mock.patch.object(os, "statvfs", return_value=small), _room_for(mib << 20):
            return _ask(question, where, size)
    ask = [sys.executable, str(Path(__file__)), question, where, json.dumps(size)]
    command = [*namespace, "sh", "-c", _MOUNT, "sh", f"{mib}m", where, *ask]
    said: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return said


def _room_for(nbytes: int) -> Any:
    """Makes ``posix_fallocate`` say that so many bytes are all there is."""
    real, taken = os.posix_fallocate, [0]

    def fallocate(fd: int, at: int, size: int) -> None:
        if taken[0] + size > nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken[0] += size
        real(fd, at, size)

    return mock.patch.object(os, "posix_fallocate", fallocate)


def _ask(question: str, where: str, size: int | None) -> dict[str, Any]:
    try:
        return {"size": _DO[question](where, size)}
    except ArenaRoomError as err:
        return {"message": err.message, "hint": err.hint, "left": os.listdir(where)}


def _create(where: str, size: int) -> int:
    file = files.create(where, size, b"")
    file.remove()
    return file.nbytes


def _create_late(where: str, size: int) -> int:
    unlimited = SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=0)
    with mock.patch.object(os, "fstatvfs", return_value=unlimited):
        return _create(where, size)


def _create_arena(where: str, size: int) -> int:
    arena = Arena.create(where, size, b"")
    arena.close(remove=True)
    return size


_DO: dict[str, Callable[..., int]] = {
    "choose": choose_size,
    "create": _create,
    "create_late": _create_late,
    "create_arena": _create_arena,
}


if __name__ == "__main__":
    print(json.dumps(_ask(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
