"""Objects as the store hands them to backends, and processes to kill."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import default_rng

from fastdeploy_routing_plugins import digests, envelope
from fastdeploy_routing_plugins.backend import Buffer
from fastdeploy_routing_plugins.keys import RoutingKey
from fastdeploy_routing_plugins.schema import RoutingSchema
from fastdeploy_routing_plugins.stores.local.backend import LocalBackend
from fastdeploy_routing_plugins.stores.local.config import LocalConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from fastdeploy_routing_plugins.names import ObjectName

# The tests' folder comes last on the path: names of its packages must not hide the standard library's.
_SERVER = "import sys; sys.path.append(sys.argv[1]); from stores.forks import serve; serve(sys.argv[2])"


@dataclass(frozen=True)
class Item:
    """An object to put, with what it must come back as."""

    name: str
    header: bytes
    array: npt.NDArray[np.generic]

    @property
    def payload(self) -> bytes:
        return self.array.tobytes()

    def buffer(self) -> Buffer:
        if self.array.ndim != 3:
            return Buffer(memoryview(b""))
        return Buffer(digests.payload_of(self.array), self.array.shape, str(self.array.dtype))


def part(
    rollout_id: str = "x:1",
    *,
    namespace: str = "ns",
    layers: int = 3,
    tokens: int = 5,
    top_k: int = 4,
    num_experts: int = 256,
    start: int = 0,
    total: int | None = None,
    attempt: int = 0,
    choice: int = 0,
    seed: str = "",
) -> Item:
    """Makes a whole part whose ids follow from its place and ``seed``."""
    schema = RoutingSchema(num_experts, top_k, range(1, layers + 1))
    size = layers * tokens * schema.row_bytes
    place = f"{rollout_id} {choice} {attempt} {start} {tokens} {seed}"
    array = np.frombuffer(content(place, size), schema.dtype).reshape(layers, tokens, top_k)
    if num_experts < np.iinfo(array.dtype).max:
        array = array % np.array(num_experts, array.dtype)
    placed = envelope.Part((start, start + tokens), (0, layers))
    header = envelope.PartHeader(
        namespace=namespace,
        rollout_id=rollout_id,
        choice=choice,
        kind="routing",
        attempt=attempt,
        producer="test",
        time_ns=1,
        num_experts=num_experts,
        top_k=top_k,
        layer_ids=schema.layer_ids,
        dtype=schema.dtype,
        layers=placed.layers,
        tokens=placed.tokens,
        total_tokens=total,
        digests=digests.digest_payload(digests.payload_of(array), placed, schema.row_bytes),
    )
    return Item(header.name(), envelope.encode_header(header), array)


def seal(rollout_id: str = "x:1", total: int = 5, *, namespace: str = "ns") -> Item:
    """Makes a seal, which has no payload."""
    header = envelope.SealHeader(
        namespace=namespace,
        rollout_id=rollout_id,
        choice=0,
        kind="routing",
        attempt=0,
        producer="test",
        time_ns=1,
        total_tokens=total,
    )
    return Item(header.name(), envelope.encode_header(header), np.empty(0, np.uint8))


def content(seed: str, size: int) -> bytes:
    """Returns ``size`` bytes that follow from ``seed``, fast."""
    key = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little")
    return default_rng(key).bytes(size)


def prefix_of(rollout_id: str = "x:1", *, namespace: str = "ns", choice: int = 0) -> str:
    """Returns the prefix of everything stored for a rollout."""
    return RoutingKey(rollout_id, choice).prefix(namespace)


def name_of(what: ObjectName, rollout_id: str = "x:1", *, namespace: str = "ns") -> str:
    """Returns an object's full name."""
    return f"{prefix_of(rollout_id, namespace=namespace)}{0:019d}/{what}"


def put(backend: LocalBackend, item: Item) -> None:
    """Puts an item."""
    backend._put(item.name, item.header, item.buffer())


def is_whole(backend: LocalBackend, name: str) -> bool:
    """Whether an object comes back with a header that belongs to it and a payload that fits every digest."""
    blob = backend._get(name)
    header = envelope.decode_header(blob.header, name=name)
    if not isinstance(header, envelope.PartHeader):
        return len(blob.payload[0]) == 0
    payload = memoryview(blob.payload[0])
    return digests.digest_payload(payload, header.part(), header.schema().row_bytes) == header.digests


@contextlib.contextmanager
def opened(store_dir: Path | str, *, fsync: bool = False) -> Iterator[LocalBackend]:
    """Opens a local backend for a ``with`` block."""
    backend = LocalBackend(LocalConfig(store_dir=str(store_dir), fsync=fsync))
    backend._open()
    try:
        yield backend
    finally:
        backend._close()


class Children:
    """A process that forks others on demand, each of which runs one function of a module with text arguments.

    Forking an interpreter that has everything imported lets a thousand processes be killed in a minute.
    """

    def __init__(self, module: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(Path(__file__).parents[1]), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, function: str, *args: object) -> int:
        """Starts a child; returns its process id."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(" ".join(["start", function, *map(str, args)]) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def wait(self, pid: int) -> int:
        """Returns the child's exit code, or minus the signal that ended it."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"wait {pid}\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        """Ends the process, whose last children have ended."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(10)
        self._server.stdout.close()


def descriptors() -> set[str]:
    """Returns the open descriptors of this process."""
    return set(os.listdir("/proc/self/fd"))
