"""The ways that come with the package: Paddle's files, NumPy's, p2pstore, Redis."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_routing_plugins.bench.peers import PeerKind
from fastdeploy_routing_plugins.bench.servers import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.bench.arrays import Array
    from fastdeploy_routing_plugins.bench.peers import Site


class _Simple(ABC):
    """What most have in common."""

    def prepare(self, arrays: Sequence[Array]) -> None:  # noqa: B027
        """Needs nothing."""

    @abstractmethod
    def put(self, key: str, array: Array) -> object:
        """See ``Peer``."""

    def put_many(self, items: Sequence[tuple[str, Array]]) -> object:
        """See ``Peer``."""
        for key, array in items:
            self.put(key, array)
        return None

    def close(self) -> None:  # noqa: B027
        """Holds nothing."""


class Paddle(_Simple):
    """A file for each array, as FastDeploy's store ``local`` has them. Tensors are made before the clock starts."""

    def __init__(self, site: Site) -> None:
        self._paddle: Any = import_module("paddle")
        self._paddle.set_device("cpu")
        self._folder = site.folder
        self._tensors: dict[tuple[int, int], Any] = {}

    def prepare(self, arrays: Sequence[Array]) -> None:
        """Makes tensors of arrays."""
        for array in arrays:
            if _where(array) not in self._tensors:
                self._tensors[_where(array)] = self._paddle.to_tensor(array)

    def put(self, key: str, array: Array) -> object:
        """See ``Peer``."""
        self._paddle.save(self._tensors[_where(array)], self._path(key))
        return None

    def get(self, key: str) -> Any:
        """See ``Peer``."""
        return self._paddle.load(self._path(key))

    def delete(self, keys: Sequence[str]) -> None:
        """See ``Peer``."""
        for key in keys:
            os.unlink(self._path(key))

    def _path(self, key: str) -> str:
        return str(self._folder / f"{key}.pdtensor")


def _where(array: Array) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


class Numpy(_Simple):
    """``numpy.save`` and ``numpy.load``."""

    def __init__(self, site: Site) -> None:
        self._folder = site.folder

    def put(self, key: str, array: Array) -> object:
        """See ``Peer``."""
        np.save(self._path(key), array)
        return None

    def get(self, key: str) -> Any:
        """See ``Peer``."""
        return np.load(self._path(key), allow_pickle=False)

    def delete(self, keys: Sequence[str]) -> None:
        """See ``Peer``."""
        for key in keys:
            os.unlink(self._path(key))

    def _path(self, key: str) -> str:
        return str(self._folder / f"{key}.npy")


class P2pStore(_Simple):
    """p2pstore's own client, as trainers make it, by its TCP transport."""

    def __init__(self, site: Site) -> None:
        from fastdeploy_routing_plugins.stores.rdma.p2pstore import logs  # noqa: PLC0415 - only if it is measured

        p2pstore = logs.load()
        server = f"redis://127.0.0.1:{site.redis_port}/0"
        own = f"127.0.0.1:{free_ports(1)[0]}"
        self._loop = asyncio.new_event_loop()
        self._client = p2pstore.P2PClient(
            p2pstore.P2PConfig(metadata_server=server, local_host=own, protocol="tcp")
        )  # fmt: skip

    def put(self, key: str, array: Array) -> object:
        """See ``Peer``."""
        return self._checked(self._loop.run_until_complete(self._client.put(key, array)))

    def put_many(self, items: Sequence[tuple[str, Array]]) -> object:
        """Puts all at once, as FastDeploy does it."""

        async def together() -> list[object]:
            return list(await asyncio.gather(*[self._client.put(key, array) for key, array in items]))

        return [self._checked(done) for done in self._loop.run_until_complete(together())]

    def get(self, key: str) -> Any:
        """See ``Peer``."""
        found = self._loop.run_until_complete(self._client.get(key))
        if found is None:
            raise RuntimeError("p2pstore returned None")
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """See ``Peer``."""
        for key in keys:
            self._loop.run_until_complete(self._client.delete(key))

    def close(self) -> None:
        """See ``Peer``."""
        self._client.close()
        self._loop.close()

    @staticmethod
    def _checked(done: object) -> object:
        if done is False:
            raise RuntimeError("p2pstore returned False")
        return done


class Redis(_Simple):
    """Bytes as values of a redis-server."""

    def __init__(self, site: Site) -> None:
        self._client: Any = import_module("redis").Redis(port=site.redis_port)

    def put(self, key: str, array: Array) -> object:
        """See ``Peer``."""
        return self._client.set(key, array.reshape(-1).view(np.uint8).data)

    def get(self, key: str) -> Any:
        """See ``Peer``."""
        found = self._client.get(key)
        if found is None:
            raise RuntimeError("Redis has no such key")
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """See ``Peer``."""
        self._client.delete(*keys)

    def close(self) -> None:
        """See ``Peer``."""
        self._client.close()


KINDS = {
    kind.name: kind
    for kind in (
        PeerKind("paddle", "paddle.save", "paddle.load", Paddle, ("paddle",), fastdeploy=True),
        PeerKind("numpy", "numpy.save", "numpy.load", Numpy),
        PeerKind(
            "p2pstore",
            "p2pstore.put",
            "p2pstore.get",
            P2pStore,
            ("p2pstore", "redis", "mooncake"),
            redis=True,
            exposed=True,
            fastdeploy=True,
        ),
        PeerKind("redis", "redis SET", "redis GET", Redis, ("redis",), redis=True),
    )
}
