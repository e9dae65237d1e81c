"""A store as its author would type it; nothing here may be an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.backend import Backend, Blob, BlockingBackend, Buffer, Ranges
from fastdeploy_routing_plugins.errors import AlreadyExistsError, NotFoundError
from fastdeploy_routing_plugins.hookspecs import hookimpl
from fastdeploy_routing_plugins.spec import Capability, StoreContext, StoreSpec

if TYPE_CHECKING:
    from fastdeploy_routing_plugins import ResolvedStore


@dataclass(frozen=True, slots=True)
class DictConfig:
    limit: int | None = field(default=None, metadata={"doc": "Most objects to keep."})


class DictBackend(BlockingBackend):
    threads = 2

    def __init__(self, config: DictConfig) -> None:
        self._limit = config.limit
        self._blobs: dict[str, tuple[bytes, bytes]] = {}

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        if name in self._blobs:
            raise AlreadyExistsError("it exists", header=self._blobs[name][0])
        self._blobs[name] = header, bytes(payload.data)

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        if name not in self._blobs:
            raise NotFoundError(f"{name} was never put")
        header, payload = self._blobs[name]
        return Blob(header, (payload,) if ranges is None else tuple(payload[start:stop] for start, stop in ranges))

    def _list(self, prefix: str) -> list[str]:
        return sorted(name for name in self._blobs if name.startswith(prefix))

    def _delete(self, names: Sequence[str]) -> int:
        return sum(self._blobs.pop(name, None) is not None for name in names)


class AsyncBackend(Backend):
    async def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        payload.retain().release()

    async def _delete(self, names: Sequence[str]) -> int:
        return 0


def create(context: StoreContext) -> DictBackend:
    return DictBackend(context.config)


def preflight(config: DictConfig) -> None:
    if config.limit == 0:
        raise ImportError("nothing to keep things in")


@hookimpl
def fd_routing_store() -> StoreSpec:
    return StoreSpec(
        name="dict",
        api_version=(1, 0),
        summary="a dictionary",
        load_config=lambda: DictConfig,
        create=create,
        capabilities=Capability.READ | Capability.LIST | Capability.RANGE,
        preflight=preflight,
        host_keys={"local_store_dir": "limit"},
    )


def asynchronous() -> StoreSpec:
    return StoreSpec("dict", (1, 0), "", lambda: DictConfig, lambda context: AsyncBackend())


def describe_store(store: ResolvedStore) -> tuple[str, str, StoreSpec]:
    return store.name, store.namespace, store.spec
