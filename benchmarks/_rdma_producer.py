"""The producer of the benchmark of ``rdma``: puts by every candidate, and serves what bounds are measured with."""

from __future__ import annotations

import cProfile
import gc
import io
import logging
import pstats
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from _peer import LAYERS, SCHEMA, TOP_K, Array, routing, shared_memory
from _rdma_peers import others

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.digests import CHUNK_TOKENS

PUT, COPY, XXH3, ONE_PASS = "put, acknowledged", "memory copy", "XXH3", "XXH3, one pass"
VARIANTS = 4
CAPACITY = 512 << 20
ASK = struct.Struct("<2Q")

Call = Callable[[str, Array], object]


def config(server: str, folder: Path, transport: str, **options: Any) -> dict[str, Any]:
    """Returns the configuration of a store ``rdma``."""
    own = {"server": server, "transport": transport, "arena_dir": str(folder), "capacity": CAPACITY, **options}
    return {"routing_store_type": "rdma", "routing_store_config": own}


def array_of(tokens: int, number: int) -> Array:
    """Returns what is put under a number: never what lay in the same memory before."""
    return routing(tokens, number % VARIANTS)


def profiled(call: Callable[[], object], lines: int = 14) -> str:
    """Returns where the time of a call went."""
    profile = cProfile.Profile()
    profile.runcall(call)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(lines)
    return text.getvalue()


class Producer:
    """The other process.

    Args:
        server: Address of the metadata service.
        folder: A tmpfs.
        redis_port: Where a redis-server is; 0: there is none.
        plain_bytes: Size of the shared memory that bounds are measured with.
        only_local: Whether nothing may listen on all interfaces.
    """

    def __init__(self, server: str, folder: Path, redis_port: int, plain_bytes: int, only_local: bool) -> None:
        gc.disable()
        logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.ERROR)
        self._config = server, folder
        self._store = open_store(config(server, folder, "auto"), schema=SCHEMA)
        self._others = others(folder, redis_port, only_local)
        self._plain = shared_memory(folder / "plain", plain_bytes)
        self._at = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        self._mooncake: Any = None

    def others(self) -> list[str]:
        return list(self._others)

    def port(self) -> int:
        """Returns the port of the plain stream: 16 bytes ask for a range of the shared memory, which follows."""
        return int(self._listener.getsockname()[1])

    def _serve(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        memory = self._plain.data
        while len(asked := peer.recv(ASK.size, socket.MSG_WAITALL)) == ASK.size:
            start, nbytes = ASK.unpack(asked)
            peer.sendall(memory[start : start + nbytes])
        peer.close()

    # --- putting --------------------------------------------------------------------------------------------------

    def put(self, keys: Sequence[str], first: int, tokens: int, turn: int) -> dict[str, list[float]]:
        """Puts arrays by every candidate; returns microseconds of each.

        Args:
            keys: Under which.
            first: Number of the first array.
            tokens: Their size.
            turn: Number of the round.
        """
        gc.collect()
        candidates: dict[str, Call] = {
            COPY: self._copy,
            XXH3: _digest,
            ONE_PASS: _digest_at_once,
            PUT: self._store.put,
        }
        candidates.update({name: other.put for name, other in self._others.items()})
        names = list(candidates)
        arrays = [array_of(tokens, first + index) for index in range(len(keys))]
        for other in self._others.values():
            for array in arrays:
                getattr(other, "tensor", len)(array)
        self._at = 0
        times = {}
        for name in random.Random(turn).sample(names, len(names)):
            times[name] = [
                _timed(candidates[name], key, array) for key, array in zip(keys, arrays, strict=True)
            ]  # fmt: skip
        return {name: times[name] for name in names}

    def _copy(self, key: str, array: Array) -> None:
        target = self._plain[self._at : self._at + array.size]
        np.copyto(target, array.reshape(-1))
        self._at += array.size

    def delete(self, keys: Sequence[str]) -> int:
        for other in self._others.values():
            other.delete(keys)
        return self._store.delete(*keys)

    def explain(self, keys: Sequence[str], tokens: int) -> str:
        """Returns where the time of puts goes."""
        array = array_of(tokens, 0)
        found = profiled(lambda: [self._store.put(key, array) for key in keys])
        self._store.delete(*keys)
        return found

    def put_ours(self, keys: Sequence[str], tokens: int) -> None:
        """Puts a batch by the store alone, and copies it for the bounds."""
        self._at = 0
        for index, key in enumerate(keys):
            self._store.put(key, array_of(tokens, index))
            self._copy(key, array_of(tokens, index))

    def delete_ours(self, keys: Sequence[str]) -> int:
        return self._store.delete(*keys)

    # --- Mooncake ---------------------------------------------------------------------------------------------------

    def begin_mooncake(self) -> tuple[str, int]:
        """Begins to serve by Mooncake; returns the bare engine's name, and where it has the shared memory."""
        from _rdma_mooncake import bare_engine

        server, folder = self._config
        self._mooncake = open_store(config(server, folder, "rdma", allow_tcp=True, device=""), schema=SCHEMA)
        self._engine = bare_engine(self._plain)
        return f"127.0.0.1:{self._engine.get_rpc_port()}", self._plain.ctypes.data

    def put_mooncake(self, keys: Sequence[str], first: int, tokens: int) -> None:
        self._at = 0
        for index, key in enumerate(keys):
            self._copy(key, array_of(tokens, first + index))
            self._mooncake.put(key, array_of(tokens, first + index))

    def delete_mooncake(self, keys: Sequence[str]) -> int:
        return int(self._mooncake.delete(*keys))

    def end(self) -> None:
        for each in (self._store, self._mooncake, *self._others.values()):
            if each is not None:
                each.close()
        self._listener.close()


def digest(data: memoryview, tokens: int) -> bytes:
    """Digests what the format asks for, each layer by 4,096 tokens, in a bare loop."""
    step, layer = CHUNK_TOKENS * TOP_K, tokens * TOP_K
    starts = [
        (at, min(at + step, end))
        for end in range(layer, LAYERS * layer + 1, layer)
        for at in range(end - layer, end, step)
    ]
    return b"".join([xxhash.xxh3_64_digest(data[at:stop]) for at, stop in starts])


def _digest(key: str, array: Array) -> None:
    digest(array.data.cast("B"), array.shape[1])


def _digest_at_once(key: str, array: Array) -> None:
    xxhash.xxh3_64_intdigest(array.data.cast("B"))


def _timed(call: Call, key: str, array: Array) -> float:
    start = time.perf_counter_ns()
    call(key, array)
    return (time.perf_counter_ns() - start) / 1e3
