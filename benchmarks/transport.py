"""What the transports of the ``rdma`` store cost beside what the machine must do anyway.

A producer in another process holds objects on a shelf; this process reads them by ``Source.read``, without a metadata
service, without digests. Candidates take turns within each round, in an order that rotates; each reads a few different
objects in a row, and medians count. Every byte is compared with the original outside the clock. Bounds are measured in
the same run: a copy from the producer's shared memory into warm memory of this process, and one plain TCP stream into
warm memory (request of 16 bytes, ``sendall`` from shared memory, ``recv_into`` with ``MSG_WAITALL``).

* shm, view: at most 15 us at any size;
* shm, copy: at most 1.2 x the copy + 30 us;
* tcp: at most 1.3 x the plain stream + 100 us;
* a batch of 64 x 1 MiB: by tcp at least 85 % of the plain stream's rate, by shm at least 55 % of the copy's.

Releasing what was read is on the clock. Ends with 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _peer import Peer
from _report import Claim, Measure, Samples, show

from fastdeploy_routing_plugins.arena.file import ArenaFile
from fastdeploy_routing_plugins.arena.pool import Pool
from fastdeploy_routing_plugins.backend import Buffer
from fastdeploy_routing_plugins.stores.rdma.place import ArenaInfo, OwnerInfo, Place, decode, encode
from fastdeploy_routing_plugins.stores.rdma.shelf import Shelf, ShelfText
from fastdeploy_routing_plugins.stores.rdma.transport.base import Source, Wanted
from fastdeploy_routing_plugins.stores.rdma.transport.shm import ShmSource
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import TcpSource
from fastdeploy_routing_plugins.stores.rdma.transport.tcp_server import TcpServer

MIB = 1 << 20
SIZES = {"64 KiB": 64 << 10, "1 MiB": MIB, "2.8 MiB": int(2.8 * MIB), "30 MiB": 30 * MIB}
BATCH = 64
BURST = 3  # objects read in a row
WARM_UP = 2  # rounds
OWNER = "0" * 32
HEADER = b"h" * 1100  # as long as that of a part of a few thousand tokens and 45 layers
MEMCPY, COPY, VIEW, STREAM, TCP = "memory copy", "shm, copy", "shm, view", "plain TCP stream", "tcp"
_ASK = struct.Struct("<2Q")


def content(number: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the bytes of an object."""
    return np.random.default_rng(number).integers(0, 256, nbytes, dtype=np.uint8)


def name_of(number: int) -> str:
    return f"bench/{number:036d}/000000/routing/{0:019d}/p-0000000000-0000002048-0000002048-00000-00045-00045-000008"


class Producer:
    """The other process: holds objects, and serves them by our server and by a plain one.

    Args:
        folder: A tmpfs.
        nbytes: Size of the shelf.
    """

    def __init__(self, folder: str, nbytes: int) -> None:
        self._arenas: list[ArenaInfo] = []
        self._shelf = Shelf(folder, nbytes, ShelfText(1, OWNER, "bench", "bench", ""), self._exposed)
        self._server = TcpServer(self._shelf, "127.0.0.1")
        self._plain = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def _exposed(self, file: ArenaFile) -> ArenaInfo:
        self._memory = file.data
        self._arenas.append(ArenaInfo(file.path, file.nbytes, file.head.key))
        return self._arenas[-1]

    def _serve(self) -> None:
        while True:
            peer, _ = self._plain.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while len(asked := peer.recv(_ASK.size, socket.MSG_WAITALL)) == _ASK.size:
                start, nbytes = _ASK.unpack(asked)
                peer.sendall(self._memory[start : start + nbytes])

    def info(self) -> tuple[bytes, int]:
        """Returns what readers must know, and the plain server's port."""
        boot, node = "this host", os.uname().nodename
        info = OwnerInfo(OWNER, boot, node, os.getpid(), "bench", tuple(self._arenas), self._server.address)
        return encode(info), self._plain.getsockname()[1]

    def put(self, number: int, nbytes: int) -> bytes:
        """Holds an object; returns its place."""
        held = self._shelf.hold(name_of(number), HEADER, Buffer(content(number, nbytes).data))
        return held.raw

    def drop(self, numbers: list[int]) -> int:
        return self._shelf.drop([name_of(number) for number in numbers])

    def end(self) -> None:
        self._server.stop()
        self._shelf.close()


class Bounds:
    """What no transport can beat: a copy within this host, and one plain TCP stream.

    Args:
        info: The producer.
        port: Its plain server's.
        nbytes: The most that is read at once.
    """

    def __init__(self, info: OwnerInfo, port: int, nbytes: int) -> None:
        with open(info.arenas[0].path, "rb") as file:
            shared = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._shared = np.frombuffer(shared, np.uint8)
        self._warm = np.ones(nbytes, np.uint8)
        self._peer = socket.create_connection(("127.0.0.1", port))
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def copy(self, places: list[Place]) -> list[memoryview]:
        at, found = 0, []
        for each in places:
            target = self._warm[at : at + each.payload_bytes]
            np.copyto(target, self._shared[each.payload_at : each.payload_at + each.payload_bytes])
            found.append(target.data)
            at += each.payload_bytes
        return found

    def stream(self, places: list[Place]) -> list[memoryview]:
        """Reads objects that lie one behind the other, gaps and all, in one request."""
        start, stop = places[0].payload_at, places[-1].payload_at + places[-1].payload_bytes
        self._peer.sendall(_ASK.pack(start, stop - start))
        view, got = self._warm[: stop - start].data, 0
        while got < len(view):
            got += self._peer.recv_into(view[got:], 0, socket.MSG_WAITALL)
        return [view[each.payload_at - start :][: each.payload_bytes] for each in places]

    def close(self) -> None:
        self._peer.close()


def reader(source: Source, *, view: bool = False) -> Callable[[list[Wanted]], list[memoryview]]:
    """Returns a candidate that reads by a transport."""

    def read(wanted: list[Wanted]) -> list[memoryview]:
        found = source.read(wanted, time.monotonic() + 60.0, view=view)
        return [blob.payload[0] for blob in found]  # type: ignore[union-attr, misc]

    return read


class Bench:
    """Everything that is measured.

    Args:
        folder: A tmpfs.
        rounds: How many of them count.
    """

    def __init__(self, folder: str, rounds: int) -> None:
        self._rounds = rounds
        self._producer = Peer(Producer, folder, 192 * MIB)
        raw, port = self._ask("info")
        info = decode(raw, OwnerInfo)
        pool = Pool()
        self._shm, self._tcp = ShmSource(info, pool), TcpSource(info, "", pool)
        self._bounds = Bounds(info, port, 80 * MIB)

    def _ask(self, verb: str, *args: Any) -> Any:
        self._producer.tell(verb, *args)
        return self._producer.answer()

    def _candidates(self) -> dict[str, Callable[[list[Wanted]], list[memoryview]]]:
        return {
            MEMCPY: lambda wanted: self._bounds.copy([each.place for each in wanted]),
            COPY: reader(self._shm),
            VIEW: reader(self._shm, view=True),
            STREAM: lambda wanted: self._bounds.stream([each.place for each in wanted]),
            TCP: reader(self._tcp),
        }

    def run(self, label: str, count: int, nbytes: int, at_once: int) -> Samples:
        """Measures reads of so many objects of one size, ``at_once`` in each call; returns microseconds."""
        places = [decode(self._ask("put", number, nbytes), Place) for number in range(count)]
        wanted = [Wanted(name_of(number), place) for number, place in enumerate(places)]
        calls = [wanted[at : at + at_once] for at in range(0, count, at_once)]
        candidates = self._candidates()
        samples = Samples.of(candidates)
        print(f"{label} ...", file=sys.stderr)
        for turn in range(-WARM_UP, self._rounds):
            order = list(candidates)
            order = order[turn % len(order) :] + order[: turn % len(order)]
            for what in order:
                times = [_clock(candidates[what], call) for call in calls]
                if turn >= 0:
                    samples.add(what, times)
                self._check(candidates[what], calls[turn % len(calls)])
        self._ask("drop", list(range(count)))
        return samples

    def _check(self, read: Callable[[list[Wanted]], list[memoryview]], call: list[Wanted]) -> None:
        for found, each in zip(read(call), call, strict=True):
            number = int(each.name.split("/")[1])
            if not np.array_equal(np.frombuffer(found, np.uint8), content(number, each.place.payload_bytes)):
                raise SystemExit("bytes were changed on the way: the measurement is void")

    def single(self) -> Iterator[Measure | Claim]:
        for label, nbytes in SIZES.items():
            samples = self.run(label, BURST, nbytes, 1)
            copy, stream = samples.median(MEMCPY), samples.median(STREAM)
            yield from samples.measures(label, "us", MEMCPY)
            yield Claim(f"{label}, {VIEW}", samples.median(VIEW), "<=", 15, "us")
            yield Claim(f"{label}, {COPY}: 1.2 x copy + 30", samples.median(COPY), "<=", 1.2 * copy + 30, "us")
            yield Claim(f"{label}, tcp: 1.3 x stream + 100", samples.median(TCP), "<=", 1.3 * stream + 100, "us")

    def batch(self) -> Iterator[Measure | Claim]:
        times = self.run(f"{BATCH} x 1 MiB", BATCH, MIB, BATCH)
        rates = Samples(
            {what: [[BATCH * MIB / us for us in row] for row in rows] for what, rows in times.rounds.items()}
        )
        yield from rates.measures(f"{BATCH} x 1 MiB", "MB/s", MEMCPY, rate=True)
        for what, beside, share in ((COPY, MEMCPY, 0.55), (TCP, STREAM, 0.85)):
            limit = share * rates.median(beside)
            yield Claim(f"batch, {what}: {share:.0%} of the {beside}", rates.median(what), ">=", limit, "MB/s")

    def close(self) -> None:
        for each in (self._shm, self._tcp, self._bounds):
            each.close()
        self._ask("end")
        self._producer.close()


def _clock(read: Callable[[list[Wanted]], list[memoryview]], call: list[Wanted]) -> float:
    start = time.perf_counter_ns()
    found = read(call)
    del found
    return (time.perf_counter_ns() - start) / 1e3


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=40, help="counted rounds (default: %(default)s)")
    parser.add_argument("--tmpfs", default="/dev/shm", help="a folder in memory (default: %(default)s)")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    measures: list[Measure] = []
    claims: list[Claim] = []
    load = os.getloadavg()[0]
    folder = tempfile.mkdtemp(prefix="fd-routing-bench-", dir=args.tmpfs)
    gc.disable()
    try:
        bench = Bench(folder, args.rounds)
        for line in (*bench.single(), *bench.batch()):
            (measures if isinstance(line, Measure) else claims).append(line)  # type: ignore[arg-type]
        bench.close()
    finally:
        shutil.rmtree(folder)
    facts = {"rounds": args.rounds, "cores": os.cpu_count(), "load before": round(load, 1)}
    show(measures, claims, facts, as_json=args.json)
    return 0 if all(claim.holds or not claim.gate for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
