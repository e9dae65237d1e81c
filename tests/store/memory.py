"""Backends in memory: a dict behind each of the two contracts, with faults that tests switch on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins import RoutingSchema, SyncStore
from fastdeploy_routing_plugins.backend import Backend, Blob, BlockingBackend, Buffer, Ranges
from fastdeploy_routing_plugins.errors import AlreadyExistsError, NotFoundError
from fastdeploy_routing_plugins.spec import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FULL = Capability.READ | Capability.LIST | Capability.RANGE


class Shelf(dict[str, tuple[bytes, bytes]]):
    """What is stored, shared by all handles of a test; counts the payload bytes that were moved out."""

    moved = 0
    before: Callable[[str, str], None] | None = None  # called with (verb, name)

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        self._notify("put", name)
        if name in self:
            raise AlreadyExistsError("exists", header=self[name][0])
        self[name] = bytes(header), bytes(payload.data)

    def get(self, name: str, ranges: Ranges | None) -> Blob:
        self._notify("get", name)
        if name not in self:
            raise NotFoundError(f"no {name}")
        header, payload = self[name]
        pieces = (payload,) if ranges is None else tuple(payload[a:b] for a, b in ranges)
        self.moved += sum(map(len, pieces))
        return Blob(header, pieces)

    def delete(self, names: Sequence[str]) -> int:
        return sum(self.pop(name, None) is not None for name in names)

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self if name.startswith(prefix))

    def _notify(self, verb: str, name: str) -> None:
        if self.before is not None:
            self.before(verb, name)


class AsyncMemory(Backend):
    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    async def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        await asyncio.sleep(0)
        self.shelf.put(name, header, payload)

    async def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        await asyncio.sleep(0)
        return self.shelf.get(name, ranges)

    async def _delete(self, names: Sequence[str]) -> int:
        return self.shelf.delete(names)

    async def _list(self, prefix: str) -> list[str]:
        return self.shelf.list(prefix)


class BlockingMemory(BlockingBackend):
    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        self.shelf.put(name, header, payload)

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        return self.shelf.get(name, ranges)

    def _delete(self, names: Sequence[str]) -> int:
        return self.shelf.delete(names)

    def _list(self, prefix: str) -> list[str]:
        return self.shelf.list(prefix)


def resolved(
    make: Callable[[], Any], *, has: Capability = FULL, namespace: str = "default", producer: str = "me"
) -> Any:
    """What the resolver would return for a backend."""
    spec = SimpleNamespace(capabilities=has)
    return SimpleNamespace(name="memory", namespace=namespace, producer=producer, spec=spec, create_backend=make)


def open_memory(
    shelf: Shelf, *, form: type = BlockingMemory, schema: RoutingSchema | None = None, **options: Any
) -> SyncStore:
    return SyncStore(resolved(lambda: form(shelf), **options), schema)
