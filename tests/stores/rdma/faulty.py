"""What the fault and stress tests share: a place to work in, child processes, and routing that tells whose it is."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdeploy_routing_plugins import RoutingSchema, RoutingWriter, SyncStore, open_store, open_writer
from fastdeploy_routing_plugins.errors import RoutingError

LAYERS, TOP_K, EXPERTS = 8, 8, 256
SCHEMA = RoutingSchema(EXPERTS, TOP_K, range(LAYERS))
PATIENCE = 60.0  # s for what takes a few
SECONDS = float(os.environ.get("FD_ROUTING_TEST_SOAK_SECONDS", "0"))  # 600 is the long form
KILLS = max(3, int(os.environ.get("FD_ROUTING_TEST_KILLS", "60")) // 20)  # 50 with the long form's 1000
LONG = SECONDS > 0
MIB = 1 << 20
ROOM = max(32, 2 * KILLS) * MIB  # of a producer
_ROOT = Path(__file__).parents[3]
_TOKENS = 1 << 15
_numbers = itertools.count()

_POOL: list[npt.NDArray[np.uint8]] = []


def routing(key: str, attempt: int = 0) -> npt.NDArray[np.uint8]:
    """Returns a rollout's routing, ``[layers, tokens, top_k]``, which follows from its key and attempt alone."""
    if not _POOL:
        first = np.random.default_rng(5).integers(0, EXPERTS, (LAYERS, 2 * _TOKENS, 1), dtype=np.uint8)
        _POOL.append(first + 29 * np.arange(TOP_K, dtype=np.uint8))
    mark = zlib.crc32(f"{key}@{attempt}".encode())
    start = mark % _TOKENS
    return _POOL[0][:, start : start + 1 + mark // 7 % (100 if key.startswith("small") else 1500)]


def is_right(record: Any, key: str) -> bool:
    """Whether a record is what was put under this key in its attempt."""
    return bool(np.array_equal(record.routing, routing(key, record.attempt)))


def until(what: Callable[[], Any], *, within: float = PATIENCE) -> Any:
    """Waits until something is true, and returns it."""
    end = time.monotonic() + within
    while not (found := what()):
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.02)
    return found


def get(store: SyncStore, key: str, *, within: float = PATIENCE) -> Any:
    """Gets a record, trying again while there is an error."""
    end = time.monotonic() + within
    while True:
        try:
            return store.get(key, timeout=1)
        except RoutingError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


@dataclass
class Ground:
    """A namespace and a folder of its own.

    Attributes:
        folder: For shared memory.
        namespace: The namespace.
        server: The service's address; empty: the shared one of this host and user.
    """

    folder: Path
    namespace: str
    server: str = ""
    limits: dict[str, Any] = field(default_factory=dict)

    def config(self, **options: Any) -> dict[str, Any]:
        """Returns the store's configuration."""
        own = {"namespace": self.namespace, "server": self.server, "arena_dir": str(self.folder), "capacity": ROOM}
        return {"routing_store_type": "rdma", "routing_store_config": {**own, **options}}

    def store(self, transport: str = "auto", **options: Any) -> SyncStore:
        """Opens the store."""
        return open_store(self.config(transport=transport, **options), schema=SCHEMA)

    def writer(self, **options: Any) -> RoutingWriter:
        """Opens a writer."""
        limits = {"arena_bytes": ROOM, "arena_dir": str(self.folder), **self.limits}
        return open_writer(self.config(producer="engine", linger=0, **options), schema=SCHEMA, limits=limits)

    def child(self, role: str, transport: str = "auto", *arguments: Any, **options: Any) -> Child:
        """Starts a process of ``faulty_children``."""
        return Child(role, self.config(transport=transport, **options), *arguments)


@contextlib.contextmanager
def ground(server: str = "") -> Iterator[Ground]:
    """Makes a place to work in; whatever is left of it is removed, once nobody uses it."""
    folder = Path("/dev/shm") / f"fd-routing-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        yield Ground(folder, f"faults-{os.getpid()}-{next(_numbers)}", server)
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


class Child:
    """A process of ``faulty_children``, or of a like module; killed at the end of the block, if it still runs."""

    def __init__(self, role: str, *arguments: Any, module: str = f"{__package__}.faulty_children") -> None:
        command = [sys.executable, "-m", module, role, *map(json.dumps, arguments)]
        self.process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None and self.process.poll() is None:
            with contextlib.suppress(OSError):
                self.say("end")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def say(self, verb: str, *arguments: Any) -> None:
        """Tells it to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self, within: float = PATIENCE) -> Any:
        """Returns the next thing that it says."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], within)[0], f"no answer within {within} s"
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(PATIENCE)}"
        return json.loads(line)

    def ask(self, verb: str, *arguments: Any, within: float = PATIENCE) -> Any:
        """Tells it to do something, and returns what it answers."""
        self.say(verb, *arguments)
        return self.answer(within)

    def kill(self) -> None:
        """Kills it; returns when it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stops processes for a while."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
