"""Spilled payloads: files in a folder of the user's for parts that a full arena has no room for.

Their order and their descriptions stay in the arena; a file holds the payload alone, under the arena's name and a
number, and goes when its part is stored or reported.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from ..errors import ArenaError, StoreUnavailableError

if TYPE_CHECKING:
    import numpy.typing as npt

_NAME = re.compile(r"(fd-routing-(\d+)-[0-9a-f]{16})-\d+\.spill", re.ASCII)


class SpillFolder:
    """The engine's side: writes payloads, and keeps count of their bytes.

    Args:
        folder: The user's folder; made if it does not exist.
        arena: The arena's path, which names the files.
        limit: How many bytes may lie there.
    """

    def __init__(self, folder: str, arena: str, limit: int) -> None:
        self._folder = os.path.abspath(os.path.expanduser(folder))
        self._stem = os.path.basename(arena).removesuffix(".arena")
        self._limit = limit
        self._count = 0
        self._lock = threading.Lock()
        self.nbytes = 0
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        except OSError as err:
            raise ArenaError(f"spill_dir {folder} cannot be used: {err.strerror}") from err

    def write(self, payload: npt.NDArray[Any]) -> str:
        """Writes an array's bytes, C order, and returns the file's name.

        Raises:
            StoreUnavailableError: the folder has no room, or its limit is reached.
        """
        with self._lock:
            if self.nbytes + payload.nbytes > self._limit:
                raise StoreUnavailableError(
                    f"spill_dir {self._folder} holds {self.nbytes} bytes, its limit is reached"
                )
            self.nbytes += payload.nbytes
            self._count += 1
            name = f"{self._stem}-{self._count}.spill"
        path = os.path.join(self._folder, name)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                rest = memoryview(payload.tobytes())
                while rest:
                    rest = rest[os.write(fd, rest) :]
            finally:
                os.close(fd)
        except BaseException as err:
            self.remove(name, payload.nbytes)
            if isinstance(err, OSError):
                raise StoreUnavailableError(f"spill_dir {self._folder}: {err.strerror}") from err
            raise
        return name

    def remove(self, name: str, nbytes: int) -> None:
        """Removes a file whose part is stored or was reported."""
        with self._lock:
            self.nbytes -= nbytes
        remove_spilled(self._folder, name)


def read_spilled(folder: str | None, name: str, nbytes: int) -> memoryview:
    """Returns a spilled payload.

    Raises:
        ArenaError: it is gone, or cut off.
    """
    path = _path(folder, name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            data = file.read(nbytes + 1)
    except OSError as err:
        raise ArenaError(f"the spilled payload {path} cannot be read: {err.strerror}") from err
    if len(data) != nbytes:
        raise ArenaError(f"the spilled payload {path} does not have {nbytes} bytes")
    return memoryview(data)


def remove_spilled(folder: str | None, name: str) -> None:
    """Removes a spilled payload, if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(_path(folder, name))


def spilled_in(folder: str) -> list[tuple[str, str]]:
    """Returns this user's spilled payloads in a folder: the path of each, and the name of the arena that it is of."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = [(name, match) for name in names if (match := _NAME.fullmatch(name)) and int(match[2]) == os.geteuid()]
    return [(os.path.join(folder, name), f"{match[1]}.arena") for name, match in found]


def _path(folder: str | None, name: str) -> str:
    if folder is None or not _NAME.fullmatch(name):
        raise ArenaError(f"{name!r} is no spilled payload")
    return os.path.join(folder, name)
