"""Backends that misbehave on purpose. ``stores.install`` makes plugins of another distribution of this module.

All of them keep objects exactly as ``local`` does, so any process reads them back with ``local`` and the same folder.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastdeploy_routing_plugins.arena.file import ArenaFile
from fastdeploy_routing_plugins.backend import Backend, Blob, Buffer, Ranges
from fastdeploy_routing_plugins.errors import StoreUnavailableError
from fastdeploy_routing_plugins.spec import Capability, StoreContext, StoreSpec
from fastdeploy_routing_plugins.stores.local.backend import LocalBackend
from fastdeploy_routing_plugins.stores.local.config import LocalConfig

FULL = Capability.READ | Capability.LIST | Capability.RANGE


@dataclass(frozen=True, slots=True)
class Config:
    """What all of these stores take; each looks at what concerns it.

    Attributes:
        store_dir: The folder, as of ``local``.
        delay: How long a put takes, in seconds.
        every: Every so-manieth put of a process fails or lies.
        flag: A file that switches something on while it exists.
        log: A file that gets a line for each put that begins, and one for each that was made.
        password: Something that no log may show.
    """

    store_dir: str = "/nowhere"
    delay: float = 0.0
    every: int = 3
    flag: str = "/nowhere/flag"
    log: str = ""
    password: str = field(default="", metadata={"secret": True})


class Plain(LocalBackend):
    """``local`` with a diary: ``begin NAME`` and ``end NAME``."""

    def __init__(self, config: Config) -> None:
        super().__init__(LocalConfig(config.store_dir))
        self.config = config
        self._count = itertools.count(1)
        self._counting = threading.Lock()

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        self.note(f"begin {name}")
        self.put(name, header, payload)
        self.note(f"end {name}")

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        """What a subclass does differently."""
        self.keep(name, header, payload)

    def keep(self, name: str, header: bytes, payload: Buffer) -> None:
        """Stores an object as ``local`` does."""
        super()._put(name, header, payload)

    def note(self, line: str) -> None:
        """Writes a line to the diary; lines of several processes do not mix."""
        if self.config.log:
            fd = os.open(self.config.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, f"{line}\n".encode())
            os.close(fd)

    def is_turn(self) -> bool:
        """Whether this is an every-so-manieth call."""
        with self._counting:
            return next(self._count) % self.config.every == 0

    @property
    def flagged(self) -> bool:
        """Whether the flag file exists."""
        return os.path.exists(self.config.flag)


class Slow(Plain):
    """Takes its time for each put."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        time.sleep(self.config.delay)
        self.keep(name, header, payload)


class Flaky(Plain):
    """Every third put raises something that no contract has."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        if self.is_turn():
            raise RuntimeError("out of luck")
        self.keep(name, header, payload)


class Crowded(Plain):
    """Every third put finds no space, for the moment."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        if self.is_turn():
            raise StoreUnavailableError("no space left")
        self.keep(name, header, payload)


class Broken(Plain):
    """A put of routing under an id with "broken" in it always raises; marks are taken."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        if "broken" in name and payload.nbytes:
            raise RuntimeError("broken for good")
        self.keep(name, header, payload)


class Lying(Plain):
    """Every third put says yes and stores nothing."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        if not self.is_turn():
            self.keep(name, header, payload)


class Garbling(Plain):
    """Every third put stores other bytes."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        if payload.nbytes and self.is_turn():
            payload = Buffer(memoryview(bytes(255 - byte for byte in payload.data)), payload.shape, payload.dtype)
        self.keep(name, header, payload)


class Hanging(Plain):
    """A put of an id with "hang" in it never returns."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        while "hang" in name:
            time.sleep(60)
        self.keep(name, header, payload)


class Unavailable(Plain):
    """No put works while the flag file exists."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        if self.flagged:
            raise StoreUnavailableError("the service is down", hint="is it running?")
        self.keep(name, header, payload)


class Undurable(Plain):
    """Takes everything, and cannot flush while the flag file exists."""

    def _flush(self) -> None:
        if self.flagged:
            raise StoreUnavailableError("the disk does not answer")


class Shut(Plain):
    """Does not open while the flag file exists."""

    def _open(self) -> None:
        if self.flagged:
            raise StoreUnavailableError("the service refuses connections", hint="start the service")
        super()._open()


class Stuck(Plain):
    """Does not return from opening while the flag file exists."""

    def _open(self) -> None:
        while self.flagged:
            time.sleep(0.05)
        super()._open()


class Stillborn(Plain):
    """Ends its process when it is opened while the flag file exists."""

    def _open(self) -> None:
        if self.flagged:
            print("cannot live like this", file=sys.stderr, flush=True)
            os._exit(3)
        super()._open()


class Deadly(Plain):
    """A put of an id with "deadly" in it ends its process; of one with "fatal", once, until the flag file exists."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        if "deadly" in name:
            os._exit(3)
        if "fatal" in name and not self.flagged:
            Path(self.config.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.keep(name, header, payload)


class Loud(Plain):
    """Prints and logs while it puts."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        print("printed to stdout", flush=True)
        print("printed to stderr", file=sys.stderr, flush=True)
        logging.getLogger("some.library").warning("logged by a library")
        self.keep(name, header, payload)


class Keeping(Plain):
    """Stores, and keeps the payload where it lies until the flag file exists."""

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        self.keep(name, header, payload)
        if payload.nbytes:
            threading.Thread(target=self._release_later, args=(payload.retain(),), daemon=True).start()

    def _release_later(self, payload: Buffer) -> None:
        while not self.flagged:
            time.sleep(0.02)
        payload.release()


class Yielding(Plain):
    """Stores, and keeps payloads where they lie until the engine wants room."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._kept: list[Buffer] = []

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        self.keep(name, header, payload)
        if payload.nbytes:
            self._kept.append(payload.retain())

    def _make_room(self, arena: ArenaFile, nbytes: int) -> int:
        freed = 0
        while freed < nbytes and self._kept:
            payload = self._kept.pop(0)
            assert payload.block is not None
            assert payload.block.arena.path == arena.path
            freed += payload.nbytes
            payload.release()
        return freed


class Blind(Plain):
    """Can neither list nor read."""


class Asynchronous(Backend):
    """The same objects behind the asynchronous contract; waits as ``Slow`` and hangs as ``Hanging`` do."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._inner = Plain(config)

    async def _open(self) -> None:
        self._inner._open()

    async def _close(self) -> None:
        self._inner._close()

    async def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        while "hang" in name:
            await asyncio.sleep(60)
        await asyncio.sleep(self._config.delay)
        self._inner._put(name, header, payload)

    async def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        return self._inner._get(name, ranges)

    async def _delete(self, names: Sequence[str]) -> int:
        return self._inner._delete(names)

    async def _list(self, prefix: str) -> list[str]:
        return self._inner._list(prefix)


STORES: dict[str, tuple[type, Capability]] = {
    "plain": (Plain, FULL),
    "slow": (Slow, FULL),
    "slow_async": (Asynchronous, FULL),
    "flaky": (Flaky, FULL),
    "crowded": (Crowded, FULL),
    "broken": (Broken, FULL),
    "lying": (Lying, FULL),
    "garbling": (Garbling, FULL),
    "hanging": (Hanging, FULL),
    "hanging_async": (Asynchronous, FULL),
    "unavailable": (Unavailable, FULL),
    "undurable": (Undurable, FULL),
    "shut": (Shut, FULL),
    "stuck": (Stuck, FULL),
    "stillborn": (Stillborn, FULL),
    "deadly": (Deadly, FULL),
    "loud": (Loud, FULL),
    "keeping": (Keeping, FULL | Capability.RETAIN),
    "yielding": (Yielding, FULL | Capability.RETAIN),
    "blind": (Blind, Capability.NONE),
}


def spec(name: str) -> StoreSpec:
    """Declares one of the stores."""
    return StoreSpec(
        name=name,
        api_version=(1, 0),
        summary="a store for tests",
        load_config=lambda: Config,
        create=functools.partial(_create, name),
        capabilities=STORES[name][1],
    )


def _create(name: str, context: StoreContext) -> object:
    return STORES[name][0](context.config)
