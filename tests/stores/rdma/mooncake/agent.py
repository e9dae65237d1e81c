"""A process that holds objects, or reads them, through Mooncake; tests tell it what to do."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import xxhash

from fastdeploy_routing_plugins.arena.arena import Arena
from fastdeploy_routing_plugins.backend import Blob, Buffer, LentBlock
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.stores.rdma.config import RdmaConfig
from fastdeploy_routing_plugins.stores.rdma.place import ArenaInfo, OwnerInfo, Place
from fastdeploy_routing_plugins.stores.rdma.shelf import Shelf, ShelfText
from fastdeploy_routing_plugins.stores.rdma.transport import rdma_devices, rdma_env
from fastdeploy_routing_plugins.stores.rdma.transport.base import Wanted
from fastdeploy_routing_plugins.stores.rdma.transport.rdma import MooncakeSource, RdmaEndpoint

from .board import Board, Entry
from .impostor import Impostor

ON_DEVICE = os.environ.get("FD_ROUTING_TEST_RDMA") == "1"  # tests run over the RDMA devices of this host
PAUSE = float(os.environ.get("FD_ROUTING_TEST_PAUSE", "0.01"))  # s; on an emulated device a read takes longer
MIB = 1 << 20


def content(seed: int, nbytes: int) -> bytes:
    """Returns bytes that follow from a seed."""
    return np.random.default_rng(seed).bytes(nbytes)


def digest(data: Any) -> str:
    """Returns what stands for bytes on their way to a test."""
    return xxhash.xxh3_64_hexdigest(data)


def header_of(name: str, seed: int) -> bytes:
    """Returns the header of an object of this seed."""
    return f"{name} {seed} ".encode() * 8


class Agent:
    """Verbs that a test may use."""

    def __init__(self) -> None:
        self._endpoint: RdmaEndpoint | None = None
        self._shelf: Shelf | None = None
        self._engine: Arena | None = None
        self._sources: dict[tuple[str, str, int], MooncakeSource] = {}
        self._kept: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._results: list[Any] = []
        self._fresh = True

    # --- a producer ---------------------------------------------------------------------------------------------

    def open(self, pool_bytes: int = 32 * MIB, **options: Any) -> None:
        """Makes an endpoint, over Mooncake's TCP mode unless tests run on devices."""
        if not ON_DEVICE:
            rdma_devices.devices = lambda: ()  # they are seen in a namespace that cannot use them
        options.setdefault("allow_tcp", not ON_DEVICE)
        self._endpoint = RdmaEndpoint(RdmaConfig(**options), "127.0.0.1", pool_bytes)

    @property
    def endpoint(self) -> RdmaEndpoint:
        assert self._endpoint is not None
        return self._endpoint

    def serve(self, folder: str, nbytes: int = 16 * MIB) -> OwnerInfo:
        """Begins to hold objects."""
        self._owner = uuid.uuid4().hex
        self._folder = folder
        self._shelf = Shelf(folder, nbytes, ShelfText(1, self._owner, "test", "default", ""), self._expose)
        return self.info()

    def _expose(self, file: Any) -> ArenaInfo:
        return ArenaInfo(file.path, file.nbytes, file.head.key, self.endpoint.expose(file.map))

    def info(self) -> OwnerInfo:
        """Returns what this producer says about itself."""
        assert self._shelf is not None
        arenas, segment = tuple(self._shelf.arenas.infos), self.endpoint.segment
        return OwnerInfo(self._owner, "host", "node", os.getpid(), "test", arenas, "", segment, len(arenas))

    def put(self, name: str, seed: int, nbytes: int, lent: bool = False) -> Place:
        """Holds an object; ``lent``: in an arena like an engine's."""
        return self._hold(name, header_of(name, seed), content(seed, nbytes), lent)

    def put_header(self, name: str, header: bytes) -> Place:
        """Holds an object without payload."""
        return self._hold(name, header, b"", False)

    def _hold(self, name: str, header: bytes, data: bytes, lent: bool) -> Place:
        assert self._shelf is not None
        buffer = self._lend(data) if lent else Buffer(memoryview(data))
        return self._shelf.hold(name, header, buffer).place

    def _lend(self, data: bytes) -> Buffer:
        if self._engine is None:
            self._engine = Arena.create(self._folder, 16 * MIB, b"{}")
        arena = self._engine
        block = arena.allocate(b"meta" * 20, len(data))
        assert block is not None
        arena.array(block, (len(data),), np.uint8)[:] = np.frombuffer(data, np.uint8)
        arena.publish(block)
        arena.restart_ring()
        place = LentBlock(arena.file, block.page, block.generation, block.payload_at)
        view = arena.file.data[block.payload_at : block.payload_at + len(data)].toreadonly()
        return Buffer(view, on_release=lambda: arena.release(block), block=place)

    def drop(self, *names: str) -> int:
        """Lets go of objects."""
        assert self._shelf is not None
        return self._shelf.drop(names)

    def damage(self, offset: int) -> None:
        """Flips a byte of the shelf."""
        assert self._shelf is not None
        self._shelf._arena.file.data[offset] ^= 0xFF

    def churn(self, board: str, seconds: float, sizes: list[int]) -> int:
        """Puts and drops objects in the same few pages, with pauses now and then; says on a board what is there."""
        written, seed, end = Board(board, create=True), 0, time.monotonic() + seconds
        self._hold("first", b"", b"x" * 4096, True)  # makes the lending arena
        written.write([], self.info())
        live: list[Entry] = []
        while time.monotonic() < end:
            seed += 1
            nbytes, lent = sizes[seed % len(sizes)], seed % 2 == 0
            entry = Entry(f"o/{seed}", seed, nbytes, Place(0, 0, 0, 0, 0, 0, 0, 0))
            place = self._hold(entry.name, b"h" * 100, entry.content(), lent)
            live.append(entry._replace(place=place))
            gone = live.pop(0) if len(live) > 3 else None
            written.write(live, self.info())
            if gone is not None:
                self.drop(gone.name)
            if seed % 20 == 0:
                time.sleep(PAUSE)
        written.write([], self.info())
        return seed

    def impostor(self, silent_at: int) -> str:
        """Listens like Mooncake, and goes silent at one kind of request; returns its segment's name."""
        self._impostor = Impostor(silent_at)
        return f"{'' if ON_DEVICE else 'tcp/'}127.0.0.1:{self._impostor.port}"

    # --- a reader -----------------------------------------------------------------------------------------------

    def read(
        self, info: OwnerInfo, *wanted: tuple[Any, ...], timeout: float = 30.0, keep: bool = False
    ) -> list[tuple[Any, ...]]:
        """Reads ``(name, place[, ranges])``; returns what came as digests, or the error's code and facts."""
        blobs = self._source(info).read([Wanted(*each) for each in wanted], time.monotonic() + timeout)
        if keep:
            self._kept.append(blobs)
        return [_told(blob) for blob in blobs]

    def _source(self, info: OwnerInfo) -> MooncakeSource:
        key = info.owner, info.rdma, info.revision
        if key not in self._sources:
            self._sources[key] = MooncakeSource(info, self.endpoint, lambda: self._fresh)
        return self._sources[key]

    def timed(self, *args: Any, **options: Any) -> tuple[Any, float]:
        """As ``read``; returns what came, or the code of what was raised, and how long that took."""
        start = time.monotonic()
        try:
            told: Any = self.read(*args, **options)
        except RoutingError as err:
            told = err.code
        return told, time.monotonic() - start

    def read_until_error(self, *args: Any, **options: Any) -> tuple[str, float, int]:
        """Reads the same again and again; returns the error's code, how long the last read took, and how many came."""
        count = 0
        while True:
            told, seconds = self.timed(*args, **options)
            if isinstance(told, str):
                return told, seconds, count
            count += 1

    def race(self, board: str, seconds: float) -> dict[str, int]:
        """Reads what a board says is there while it goes; returns how often what came of it."""
        told, counts = Board(board), {"whole": 0, "moved": 0}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            entries, info = told.read()
            source, deadline = self._source(info), time.monotonic() + 30
            for whole in (True, False):
                ranges = [None if whole else ((0, 64), (each.nbytes // 2, each.nbytes)) for each in entries]
                wanted = [Wanted(each.name, each.place, some) for each, some in zip(entries, ranges, strict=True)]
                for entry, some, blob in zip(entries, ranges, source.read(wanted, deadline), strict=True):
                    if isinstance(blob, RoutingError):
                        what = "moved" if blob.facts.get("moved") else str(blob)
                    else:
                        what = "whole" if entry.fits(blob.payload, some) else "wrong"
                    counts[what] = counts.get(what, 0) + 1
        return counts

    def kept(self) -> list[list[tuple[Any, ...]]]:
        """Looks again at what was kept."""
        return [[_told(blob) for blob in blobs] for blobs in self._kept]

    def in_place(self) -> list[bool]:
        """Returns which of the kept payloads lie in receive memory."""
        pool = self.endpoint._line.pool
        places = [np.frombuffer(blob.payload[0], np.uint8).ctypes.data for blobs in self._kept for blob in blobs]
        return [pool.address <= place < pool.address + pool.nbytes for place in places]

    def forget_kept(self) -> None:
        self._kept.clear()

    def set_fresh(self, fresh: bool) -> None:
        self._fresh = fresh

    def memory(self) -> tuple[int, int]:
        """Returns bytes of receive memory that somebody holds, and transfers that nobody waits for any more."""
        line = self.endpoint._line
        reading = line._reading
        return line.pool.nbytes - line.pool.free, reading[0].quarantined if reading else 0

    def settle(self) -> bool:
        """Whether all receive memory comes back, within a while."""
        end = time.monotonic() + 40
        while self.memory() != (0, 0) and time.monotonic() < end:
            time.sleep(0.01)
        return self.memory() == (0, 0)

    def engines(self) -> int:
        """Returns how many engines this process has."""
        line = self.endpoint._line
        return len({id(each) for each in (line._first, line._reading and line._reading[0]) if each})

    # --- anybody ------------------------------------------------------------------------------------------------

    def available(self, **options: Any) -> str:
        if not ON_DEVICE:
            rdma_devices.devices = lambda: ()
        return rdma_env.available(RdmaConfig(**options))

    def start_engine(self, protocol: str) -> str:
        """Starts an engine that must speak a protocol; returns why it does not."""
        try:
            rdma_env.start("127.0.0.1", protocol, "")
        except OSError as err:
            return str(err)
        return ""

    def environ(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith("MC_")}

    def begin(self, verb: str, *args: Any, **options: Any) -> None:
        """Calls a verb in a thread; ``result`` returns what it returned."""
        self._threads.append(threading.Thread(target=self._body, args=(verb, args, options)))
        self._threads[-1].start()

    def _body(self, verb: str, args: Any, options: Any) -> None:
        self._results.append(getattr(self, verb)(*args, **options))

    def result(self) -> Any:
        self._threads.pop(0).join(50)
        return self._results.pop(0)

    def forked(self, verb: str, *args: Any, **options: Any) -> tuple[str, int]:
        """Calls a verb in a child that this process forks; returns what it returned as text, and its exit code."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.write(writing, repr(getattr(self, verb)(*args, **options)).encode())
            os.close(writing)
            sys.exit(0)  # through the interpreter's end, with all that is done there
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read().decode()
        return told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def exit(self) -> None:
        """Ends the process without closing anything."""
        sys.exit(0)

    def close(self) -> None:
        """Closes the endpoint."""
        self.endpoint.close()


def _told(blob: Blob | RoutingError) -> tuple[Any, ...]:
    if isinstance(blob, RoutingError):
        return blob.code, blob.facts.get("moved", False)
    return blob.header, *[(len(piece), digest(piece)) for piece in blob.payload]


def main(fd: int) -> None:
    """Does what it is told through a socket, until that is closed."""
    agent, tests = Agent(), Connection(fd)
    while True:
        try:
            verb, args, options = tests.recv()
        except EOFError:
            break
        try:
            answer = True, getattr(agent, verb)(*args, **options)
        except Exception as err:  # noqa: BLE001 - the test gets it
            answer = False, err
        tests.send(answer)
    os._exit(0)  # to end an engine takes a second; tests that are about that do it
