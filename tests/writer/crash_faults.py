"""What goes wrong with a store while an engine works: no space, no right to write, a backend that misbehaves."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from . import crash_processes as processes


class Fault:
    """Nothing goes wrong with the store.

    Attributes:
        name: Which store.
        options: Its options.
        spice: What ids must have in them for the store to misbehave.
        read_back: Whether only reading back shows it.
        heals: Whether the store works after ``end``.
    """

    name = "local"
    spice = ""
    read_back = False
    heals = True

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.options: dict[str, object] = {}

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def prepare(self) -> None:
        """What happens before the engine starts."""

    def begin(self) -> None:
        """What happens at a random moment."""

    def end(self) -> None:
        """Makes the store work again; harmless before ``begin``."""

    def remove(self) -> None:
        """Takes away what ``prepare`` made."""


class Full(Fault):
    """A file system of a few MiB that somebody else fills."""

    def prepare(self) -> None:
        self.store.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={self.chance.choice([2, 6, 20])}m", "none", str(self.store))

    def begin(self) -> None:
        while True:  # the worker frees and takes space meanwhile
            room = os.statvfs(self.store)
            if room.f_bavail == 0:
                return
            with (self.store / "filler").open("ab") as file, contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), file.tell(), room.f_bavail * room.f_frsize)

    def end(self) -> None:
        (self.store / "filler").unlink(missing_ok=True)
        _mount("-o", "remount,size=60m", str(self.store))

    def remove(self) -> None:
        _run("umount", "--lazy", str(self.store))


class Limited(Fault):
    """Workers that may not write files of more than so many bytes."""

    def begin(self) -> None:
        size = self.chance.choice([0, 4096, 100_000])
        self._limit(size)

    def end(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        for pid in processes.workers(self.folder):
            with contextlib.suppress(ProcessLookupError):
                hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


class Unwritable(Fault):
    """Folders whose modes forbid writing."""

    def begin(self) -> None:
        self._set_modes(0o500)

    def end(self) -> None:
        self._set_modes(0o700)

    def _set_modes(self, mode: int) -> None:
        for folder, _, _ in os.walk(self.store):
            with contextlib.suppress(FileNotFoundError):
                os.chmod(folder, mode)


class ReadOnly(Fault):
    """A file system that is mounted read-only."""

    def prepare(self) -> None:
        self.store.mkdir()
        _mount("--bind", str(self.store), str(self.store))

    def begin(self) -> None:
        for _ in range(1000):  # refused as long as a file is open for writing
            if _try("mount", "-o", "remount,bind,ro", str(self.store)):
                return
            time.sleep(0.001)

    def end(self) -> None:
        _mount("-o", "remount,bind,rw", str(self.store))

    def remove(self) -> None:
        _run("umount", "--lazy", str(self.store))


class Hanging(Fault):
    name = "hanging"
    spice = "hang"
    heals = False


class Deadly(Fault):
    name = "deadly"
    spice = "deadly"
    heals = False


class Flaky(Fault):
    name = "flaky"


class Crowded(Fault):
    name = "crowded"


class Lying(Fault):
    name = "lying"
    heals = False


class Garbling(Fault):
    name = "garbling"
    read_back = True
    heals = False


class Unavailable(Fault):
    """A service that goes down for a while."""

    name = "unavailable"

    def prepare(self) -> None:
        self.options = {"flag": str(self.folder / "down")}

    def begin(self) -> None:
        (self.folder / "down").touch()

    def end(self) -> None:
        (self.folder / "down").unlink(missing_ok=True)


def kinds(mounts: bool) -> dict[str, list[Callable[[Path, random.Random], Fault]]]:
    """Returns the faults by name; several to a name take turns. ``mounts``: whether this process may mount."""
    return {
        "full": [Full, Limited] if mounts else [Limited],
        "read_only": [ReadOnly, Unwritable] if mounts else [Unwritable],
        "hang": [Hanging, Hanging, Deadly],
        "flaky": [Flaky, Crowded, Unavailable],
        "lie": [Lying, Garbling],
    }


def _mount(*arguments: str) -> None:
    _run("mount", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


def _try(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True, timeout=30).returncode == 0
