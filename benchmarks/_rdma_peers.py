"""What the store ``rdma`` is compared with: p2pstore, Redis, and Paddle's files. Each only if it is installed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from _peer import Array
from _rdma_network import free_ports, installed

P2PSTORE, REDIS, PADDLE = "p2pstore, its TCP", "Redis SET/GET", "paddle.save/load, tmpfs"


class Other(Protocol):
    """Another way for an array from one process to another."""

    def put(self, key: str, array: Array) -> object: ...

    def get(self, key: str) -> Any: ...

    def delete(self, keys: Sequence[str]) -> None: ...

    def close(self) -> None: ...


class P2pStore:
    """p2pstore's own client, as a trainer makes it."""

    def __init__(self, redis_port: int) -> None:
        from fastdeploy_routing_plugins.stores.rdma.p2pstore import logs

        p2pstore = logs.load()
        logging.getLogger("p2pstore").setLevel(logging.CRITICAL)
        (port,) = free_ports(1)
        config = p2pstore.P2PConfig(
            metadata_server=f"redis://127.0.0.1:{redis_port}/0", local_host=f"127.0.0.1:{port}", protocol="tcp"
        )
        self._loop = asyncio.new_event_loop()
        self._client = p2pstore.P2PClient(config)

    def put(self, key: str, array: Array) -> object:
        return self._loop.run_until_complete(self._client.put(key, array))

    def get(self, key: str) -> Any:
        return self._loop.run_until_complete(self._client.get(key))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._loop.run_until_complete(self._client.delete(key))

    def close(self) -> None:
        self._client.close()
        self._loop.close()


class Redis:
    """Bytes as values of a redis-server."""

    def __init__(self, port: int) -> None:
        import redis

        self._client = redis.Redis(port=port)

    def put(self, key: str, array: Array) -> object:
        return self._client.set(key, array.data.cast("B"))

    def get(self, key: str) -> Any:
        return self._client.get(key)

    def delete(self, keys: Sequence[str]) -> None:
        self._client.delete(*keys)

    def close(self) -> None:
        self._client.close()


class Paddle:
    """A file for each array. The tensors are made before the clock starts."""

    def __init__(self, folder: Path) -> None:
        import paddle

        paddle.set_device("cpu")
        self._paddle = paddle
        self._folder = folder
        self._tensors: dict[int, tuple[Array, Any]] = {}  # with its array, so that no other one has the same id

    def put(self, key: str, array: Array) -> None:
        self._paddle.save(self.tensor(array), self._path(key))

    def tensor(self, array: Array) -> Any:
        if id(array) not in self._tensors:
            self._tensors[id(array)] = array, self._paddle.to_tensor(array)
        return self._tensors[id(array)][1]

    def get(self, key: str) -> Any:
        return self._paddle.load(self._path(key))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            os.unlink(self._path(key))

    def close(self) -> None:
        self._tensors.clear()

    def _path(self, key: str) -> str:
        return str(self._folder / f"{key}.pdparams")


def others(folder: Path, redis_port: int, only_local: bool) -> dict[str, Other]:
    """Returns those that can be measured, by name.

    Args:
        folder: A tmpfs, for files.
        redis_port: Where a redis-server is; 0: there is none.
        only_local: Whether nothing may listen on all interfaces.
    """
    found: dict[str, Other] = {}
    if redis_port and installed("redis"):
        if installed("p2pstore") and not only_local:
            found[P2PSTORE] = P2pStore(redis_port)
        found[REDIS] = Redis(redis_port)
    if installed("paddle"):
        found[PADDLE] = Paddle(folder)
    return found


def absent(redis_port: int, why: str) -> Iterator[tuple[str, str]]:
    """Yields what is not measured, and why.

    Args:
        redis_port: Where a redis-server is; 0: there is none.
        why: Why nothing may listen on all interfaces; empty: it may.
    """
    redis = "" if redis_port else "redis-server is not installed"
    redis = redis or ("" if installed("redis") else "not installed")
    yield P2PSTORE, redis if installed("p2pstore") and redis else why if installed("p2pstore") else "not installed"
    yield REDIS, redis
    yield PADDLE, "" if installed("paddle") else "not installed"
    yield "Mooncake", why if installed("mooncake") else "not installed"


def flat(found: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the bytes of what any of them returned."""
    if found is None:
        return np.empty(0, np.uint8)
    if isinstance(found, (bytes, bytearray, memoryview)):
        return np.frombuffer(found, np.uint8)
    array = found if isinstance(found, np.ndarray) else found.numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
