"""A producer for the transports' tests: objects in arenas, cards on a shelf, leases, and a board that shows places."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import xxhash

from fastdeploy_routing_plugins.arena.arena import Arena, Block
from fastdeploy_routing_plugins.backend import Blob, Ranges
from fastdeploy_routing_plugins.errors import DeletedError, RoutingError, SupersededError
from fastdeploy_routing_plugins.stores.rdma import place as places
from fastdeploy_routing_plugins.stores.rdma.card import encode_card
from fastdeploy_routing_plugins.stores.rdma.place import ArenaInfo, OwnerInfo, Place
from fastdeploy_routing_plugins.stores.rdma.transport.base import Wanted

OWNER = "0123456789abcdef" * 2
SIZE = 16 << 20
"""Bytes of a test's arena."""


class Producer:
    """Holds objects; a ``Holdings`` for the TCP server."""

    def __init__(self, folder: str | Path, nbytes: int = SIZE) -> None:
        self.shelf = Arena.create(str(folder), nbytes, b"{}")
        self.engine = Arena.create(str(folder), nbytes, b"{}")
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Block, Block | None, Place, bytes]] = {}
        self._leases: dict[Block, int] = {}

    def put(self, name: str, payload: bytes, *, lent: bool = False) -> Place:
        """Takes an object: its payload goes to its card's block, or is lent from the engine's arena."""
        with self._lock:
            return self._put(name, payload, lent)

    def _put(self, name: str, payload: bytes, lent: bool) -> Place:
        header = header_of(name, payload)
        if lent:
            body = filled(self.engine, b"operation", payload)
            where = 1, body.page, body.generation, body.payload_at
            block = filled(self.shelf, encode_card(name, header, *where, len(payload)), b"")
        else:
            body = None
            block = filled(self.shelf, encode_card(name, header, 0, 0, 0, 0, len(payload)), payload)
            where = 0, block.page, block.generation, block.payload_at
        found = Place(block.page, block.generation, len(header), len(payload), *where)
        self._held[name] = block, body, found, header
        return found

    def replace(self, name: str, payload: bytes, *, lent: bool = False) -> Place:
        """Deletes an object and takes another of the same name, usually in the same pages."""
        with self._lock:
            self._delete(name)
            return self._put(name, payload, lent)

    def delete(self, name: str) -> None:
        """Lets go of an object."""
        with self._lock:
            self._delete(name)

    def _delete(self, name: str) -> None:
        block, body, _, _ = self._held.pop(name)
        if self._leases.get(block):
            self._leases[block] += 1 << 32  # whoever gives the last lease back lets go
        else:
            self._free(block, body)

    def _free(self, block: Block, body: Block | None) -> None:
        self.shelf.release(block)
        if body is not None:
            self.engine.release(body)

    @contextlib.contextmanager
    def lease(self, name: str, card: int, generation: int) -> Iterator[tuple[bytes, memoryview]]:
        with self._lock:
            if name not in self._held:
                raise DeletedError(f"{name} was deleted")
            block, body, found, header = self._held[name]
            if (found.card, found.generation) != (card, generation):
                raise SupersededError(f"{name} was put again", attempt=7)
            self._leases[block] = self._leases.get(block, 0) + 1
        arena = self.shelf if body is None else self.engine
        data = arena.file.data[found.payload_at : found.payload_at + found.payload_bytes]
        try:
            yield header, data.toreadonly()
        finally:
            with self._lock:
                self._leases[block] -= 1
                if not self._leases[block] & 0xFFFFFFFF and self._leases.pop(block):
                    self._free(block, body)

    @property
    def leases(self) -> int:
        """How many leases are out."""
        with self._lock:
            return sum(each & 0xFFFFFFFF for each in self._leases.values())

    @property
    def used(self) -> int:
        """Bytes that are not free, after a look at the pins."""
        for each in self.arenas:
            with each._lock:
                each._sweep()
                each._reclaim()
        return sum(each.capacity - each.free for each in self.arenas)

    def info(self, tcp: str = "", *, host: str = "here", revision: int = 0) -> OwnerInfo:
        arenas = tuple(ArenaInfo(each.file.path, each.file.nbytes, each.file.head.key) for each in self.arenas)
        return OwnerInfo(OWNER, host, socket.gethostname(), os.getpid(), "test", arenas, tcp, "", revision)

    @property
    def arenas(self) -> tuple[Arena, Arena]:
        return self.shelf, self.engine

    def close(self) -> None:
        for each in self.arenas:
            each.close(remove=True)


def filled(arena: Arena, meta: bytes, payload: bytes) -> Block:
    """Returns a published block."""
    block = arena.allocate(meta, len(payload))
    assert block is not None, "the test's arena is too small"
    arena.file.data[block.payload_at : block.payload_at + len(payload)] = payload
    assert arena.publish(block) is not None
    arena.restart_ring()  # nobody reads it
    return block


def header_of(name: str, payload: bytes) -> bytes:
    """Returns a header by which a test knows what it got."""
    return f"{name} {xxhash.xxh3_64_hexdigest(payload)}".encode()


def name_of(number: int) -> str:
    """Returns a name of usual length."""
    return f"ns/rollout-{number:06d}/000000/routing/{0:019d}/p-0000000000-0000002048-0000002048-00000-00048-00048"


def is_whole(blob: Blob, name: str) -> bool:
    """Whether a whole object is the one that is meant, to the last byte."""
    stored, digest = blob.header.decode().split(" ")
    return stored == name and xxhash.xxh3_64_hexdigest(b"".join(blob.payload)) == digest


def want(name: str, place: Place, ranges: Ranges | None = None) -> Wanted:
    return Wanted(name, place, ranges)


def blob_of(found: Blob | RoutingError) -> Blob:
    """Returns a result that is no error; raises it if it is one."""
    if isinstance(found, RoutingError):
        raise found
    return found


class Board:
    """Places of objects as another process writes them, by number; each slot carries a checksum."""

    SLOT = 128

    def __init__(self, path: str | Path, slots: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._fd, self.SLOT * slots)
        self.slots = slots

    def write(self, slot: int, found: Place) -> None:
        raw = places.encode(found)
        os.pwrite(self._fd, bytes([len(raw)]) + zlib.crc32(raw).to_bytes(4, "little") + raw, slot * self.SLOT)

    def read(self, slot: int) -> Place | None:
        data = os.pread(self._fd, self.SLOT, slot * self.SLOT)
        raw = data[5 : 5 + data[0]]
        return places.decode(raw, Place) if raw and zlib.crc32(raw).to_bytes(4, "little") == data[1:5] else None

    def close(self) -> None:
        os.close(self._fd)
