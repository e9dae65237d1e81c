"""Other processes of the benchmark, and the routing that all of them know."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fastdeploy_routing_plugins import RoutingSchema, open_store

LAYERS, TOP_K = 45, 8
SCHEMA = RoutingSchema(num_experts=256, top_k=TOP_K, layer_ids=range(1, LAYERS + 1))
SPAWN = multiprocessing.get_context("spawn")
VARIANTS = 2  # what lies somewhere from the last time is never what is expected there now
_PATIENCE = 120.0  # s for one answer
_VOID = "bytes were changed on the way: the measurement is void"

Array = np.ndarray[Any, np.dtype[np.uint8]]


def tokens_of(mib: float) -> int:
    """Returns how many tokens make a rollout of this size."""
    return round(mib * (1 << 20) / LAYERS / TOP_K)


@lru_cache(maxsize=8)
def routing(tokens: int, variant: int) -> Array:
    """Returns ids like a router's: eight different experts to a token."""
    rng = np.random.default_rng(variant)
    first = rng.integers(0, 256, (LAYERS, tokens, 1), dtype=np.uint8)
    step = rng.integers(0, 128, (LAYERS, tokens, 1), dtype=np.uint8) * 2 + 1
    return first + step * np.arange(TOP_K, dtype=np.uint8)


def local(folder: Path) -> dict[str, Any]:
    """Returns the configuration of a ``local`` store in a folder."""
    return {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder / "store")}}


def shared_memory(path: Path, nbytes: int = 0) -> Array:
    """Maps a file of shared memory; makes it, every page touched, if a size is given."""
    with open(path, "w+b" if nbytes else "r+b") as file:
        if nbytes:
            os.posix_fallocate(file.fileno(), 0, nbytes)
        memory = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
    if nbytes:
        memory[:] = 0
    return memory


class Peer:
    """Another process that answers calls.

    Args:
        handler: A class; the process makes one of it and calls its methods.
        args: For the class.
    """

    def __init__(self, handler: type, *args: Any) -> None:
        self._connection, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(theirs, handler, *args), daemon=True)
        self._process.start()
        theirs.close()
        self.answer()

    def tell(self, verb: str, *args: Any) -> None:
        """Asks for a call without waiting for the answer."""
        self._connection.send((verb, args))

    def answer(self) -> Any:
        """Waits for the answer."""
        if not self._connection.poll(_PATIENCE):
            raise SystemExit(f"another process of the benchmark did not answer within {_PATIENCE:.0f} s")
        try:
            return self._connection.recv()
        except EOFError:
            raise SystemExit("another process of the benchmark died") from None

    def verify(self, verb: str | None, *args: Any) -> None:
        """Waits for a verdict on what has arrived; None: of a call that was told before."""
        if verb is not None:
            self.tell(verb, *args)
        if not self.answer():
            raise SystemExit(_VOID)

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, handler: type, *args: Any) -> None:
    target = handler(*args)
    connection.send(True)
    while True:
        try:
            verb, arguments = connection.recv()
        except EOFError:
            return
        connection.send(getattr(target, verb)(*arguments))


class Consumer:
    """The other end of every candidate: takes what was handed over and compares every byte with the original.

    Args:
        folder: Holds the ``local`` store, and the shared memory of the plain copy.
        queues: By name.
    """

    def __init__(self, folder: Path, queues: dict[str, Any]) -> None:
        self._queues = queues
        self._memory = folder / "memory"
        self._store = open_store(local(folder), schema=SCHEMA)

    def take(self, queue: str, pieces: int, tokens: int, variant: int) -> bool:
        """Takes a rollout from a queue, whole or layer by layer."""
        found = [self._queues[queue].get()["data"] for _ in range(pieces)]
        return _same(found[0] if pieces == 1 else np.stack(found), tokens, variant)

    def look(self, tokens: int, variants: list[int]) -> bool:
        """Looks at the shared memory of the plain copy, where rollouts lie one behind the other."""
        size = LAYERS * tokens * TOP_K
        memory = shared_memory(self._memory)[: size * len(variants)].reshape(-1, LAYERS, tokens, TOP_K)
        return all(_same(found, tokens, variant) for found, variant in zip(memory, variants, strict=True))

    def read(self, keys: list[str], tokens: int, variant: int) -> bool:
        """Reads rollouts from the store and deletes them; variants alternate."""
        same = [
            _same(self._store.get(key).routing, tokens, (variant + index) % VARIANTS) for index, key in enumerate(keys)
        ]
        return self._store.delete(*keys) == len(keys) and all(same)

    def wait(self, key: str, tokens: int, variant: int) -> tuple[int, bool]:
        """Waits for a rollout; returns when a checked read of it was over (``CLOCK_MONOTONIC``)."""
        found = self._store.get(key, timeout=_PATIENCE / 2).routing
        over = time.monotonic_ns()
        return over, _same(found, tokens, variant)

    def remove(self, key: str) -> bool:
        """Deletes a rollout that was waited for; not before its writer knows that it is stored."""
        return self._store.delete(key) == 1


def _same(found: Any, tokens: int, variant: int) -> bool:
    expected = routing(tokens, variant)
    return bool(found.dtype == expected.dtype and np.array_equal(found, expected))
