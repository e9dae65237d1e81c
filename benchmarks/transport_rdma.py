"""What transport ``rdma`` costs beside Mooncake's own reads, and what waiting costs.

A producer in another process holds objects on a shelf; this process reads them by ``Source.read``, without a metadata
service, without digests: card, payload, and the head again, which proves that the payload is the object's. Beside it
the engine's own reads of the bare payload, through the same engine: its blocking call, which spins, and its
asynchronous one, which is asked every 40 us. Candidates take turns within each round, in an order that rotates; each
reads a few different objects in a row, and medians count. Every byte is compared with the original outside the clock.

* read: at most 1.2 x the engine's own asynchronous read + 300 us, at any size;
* waiting for a producer that does not answer: at most 0.6 s of processor time per second.

Expected of a batch of 64 x 1 MiB: at most 1.2 x the engine's asynchronous reads, all under way at once, + 300 us.

Results that stay in receive memory (``in place``) and those that are copied out of it are shown apart. Mooncake
listens on every interface, so all runs in a network of its own, over Mooncake's TCP mode; with ``--device`` in the
host's, over its RDMA devices. Ends with 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import gc
import logging
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

_NEWNET, _GET_FLAGS, _SET_FLAGS, _UP = 0x40000000, 0x8913, 0x8914, 1


def leave_network() -> None:
    """Moves this process, which must have one thread only, into a network that has nothing but loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNET) != 0:
        raise SystemExit(f"a network of its own needs root: {os.strerror(ctypes.get_errno())}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


if __name__ == "__main__" and "--device" not in sys.argv and not {"-h", "--help"} & set(sys.argv):
    leave_network()  # before NumPy starts threads

import numpy as np  # noqa: E402
from _peer import Peer  # noqa: E402
from _report import Claim, Measure, Samples, show  # noqa: E402

from fastdeploy_routing_plugins.arena.file import ArenaFile  # noqa: E402
from fastdeploy_routing_plugins.backend import Buffer  # noqa: E402
from fastdeploy_routing_plugins.errors import StoreUnavailableError  # noqa: E402
from fastdeploy_routing_plugins.stores.rdma.config import RdmaConfig  # noqa: E402
from fastdeploy_routing_plugins.stores.rdma.place import ArenaInfo, OwnerInfo, Place, decode, encode  # noqa: E402
from fastdeploy_routing_plugins.stores.rdma.shelf import Shelf, ShelfText  # noqa: E402
from fastdeploy_routing_plugins.stores.rdma.transport import rdma_devices, rdma_fetch  # noqa: E402
from fastdeploy_routing_plugins.stores.rdma.transport.base import Wanted  # noqa: E402
from fastdeploy_routing_plugins.stores.rdma.transport.rdma import MooncakeSource, RdmaEndpoint  # noqa: E402

MIB = 1 << 20
SIZES = {"64 KiB": 64 << 10, "1 MiB": MIB, "2.8 MiB": int(2.8 * MIB), "30 MiB": 30 * MIB}
BATCH = 64
BURST = 3  # objects read in a row
WARM_UP = 2  # rounds
OWNER = "0" * 32
HEADER = b"h" * 1100  # as long as that of a part of a few thousand tokens and 45 layers
BLOCKING, ASYNC, IN_PLACE, COPIED = "Mooncake, blocking", "Mooncake, asynchronous", "rdma, in place", "rdma, copied"
WAIT = 1.5  # s
_PAUSE = 40e-6  # s

Candidate = Callable[[list[int]], list[Any]]


def content(number: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the bytes of an object."""
    return np.random.default_rng(number).integers(0, 256, nbytes, dtype=np.uint8)


def name_of(number: int) -> str:
    return f"bench/{number:036d}/000000/routing/{0:019d}/p-0000000000-0000002048-0000002048-00000-00045-00045-000008"


def endpoint(device: bool) -> RdmaEndpoint:
    if not device:
        rdma_devices.devices = lambda: ()  # they are seen in a namespace that cannot use them
    return RdmaEndpoint(RdmaConfig(allow_tcp=not device), "127.0.0.1")


class Producer:
    """The other process: holds objects, and serves them.

    Args:
        folder: A tmpfs.
        nbytes: Size of the shelf.
        device: Whether RDMA devices are used.
    """

    def __init__(self, folder: str, nbytes: int, device: bool) -> None:
        self._endpoint = endpoint(device)
        self._arenas: list[ArenaInfo] = []
        self._shelf = Shelf(folder, nbytes, ShelfText(1, OWNER, "bench", "bench", ""), self._exposed)

    def _exposed(self, file: ArenaFile) -> ArenaInfo:
        self._arenas.append(ArenaInfo(file.path, file.nbytes, file.head.key, self._endpoint.expose(file.map)))
        return self._arenas[-1]

    def info(self) -> bytes:
        segment = self._endpoint.segment
        return encode(OwnerInfo(OWNER, "here", "here", os.getpid(), "bench", tuple(self._arenas), "", segment, 1))

    def hold(self, numbers: list[int], nbytes: int) -> list[bytes]:
        """Lets go of all that is held and holds other objects; returns where they are."""
        self._shelf.drop([name for name, _ in self._shelf.inventory()])
        return [
            encode(self._shelf.hold(name_of(number), HEADER, Buffer(content(number, nbytes).data)).place)
            for number in numbers
        ]

    def close(self) -> None:
        self._endpoint.close()
        self._shelf.close()


class Reader:
    """This process: reads by our transport, and by its engine's own means."""

    def __init__(self, peer: Peer, device: bool) -> None:
        peer.tell("info")
        self.info = decode(peer.answer(), OwnerInfo)
        self.endpoint = endpoint(device)
        self.source = MooncakeSource(self.info, self.endpoint, lambda: True)
        self._segment = self.info.rdma.removeprefix("tcp/")
        line = self.endpoint._line
        self._engine = line.serving()._engine  # the same for all candidates: connections differ among themselves
        self._memory = np.empty(BATCH * MIB, np.uint8)
        self._engine.batch_register_memory([self._memory.ctypes.data], [self._memory.nbytes])
        self.places: dict[int, Place] = {}

    def remember(self, numbers: list[int], places: list[bytes]) -> None:
        self.places = {number: decode(raw, Place) for number, raw in zip(numbers, places, strict=True)}

    def ours(self, numbers: list[int], view_from: int) -> list[Any]:
        rdma_fetch.VIEW_FROM = view_from
        wanted = [Wanted(name_of(number), self.places[number]) for number in numbers]
        blobs = self.source.read(wanted, time.monotonic() + 30)
        return [blob.payload[0] for blob in blobs]  # type: ignore[union-attr]

    def _spots(self, numbers: list[int]) -> Iterator[tuple[int, int, int]]:
        """Yields local address, remote address and size of each payload."""
        at = 0
        for place in [self.places[number] for number in numbers]:
            yield self._memory.ctypes.data + at, self.info.arenas[0].address + place.payload_at, place.payload_bytes
            at += place.payload_bytes

    def _arrived(self, numbers: list[int]) -> list[Any]:
        sizes = [self.places[number].payload_bytes for number in numbers]
        ends = np.cumsum(sizes)
        return [self._memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def blocking(self, numbers: list[int]) -> list[Any]:
        local, remote, sizes = zip(*self._spots(numbers), strict=True)
        if self._engine.batch_transfer_sync_read(self._segment, list(local), list(remote), list(sizes)) != 0:
            raise SystemExit("Mooncake's blocking read failed")
        return self._arrived(numbers)

    def asynchronous(self, numbers: list[int]) -> list[Any]:
        read = self._engine.batch_transfer_async_read
        batches = [read(self._segment, [local], [remote], [size]) for local, remote, size in self._spots(numbers)]
        for batch in batches:
            while (state := self._engine.transfer_check_status(batch)) == 0:
                time.sleep(_PAUSE)
            if state != 1:
                raise SystemExit("Mooncake's asynchronous read failed")
        return self._arrived(numbers)


def candidates(reader: Reader) -> dict[str, Candidate]:
    return {
        BLOCKING: reader.blocking,
        ASYNC: reader.asynchronous,
        IN_PLACE: lambda numbers: reader.ours(numbers, 1),
        COPIED: lambda numbers: reader.ours(numbers, 1 << 62),
    }


def timed(call: Candidate, numbers: list[int]) -> tuple[float, float]:
    """Microseconds of a call, and of processor time; what it returned is compared outside the clock."""
    busy, start = time.process_time(), time.perf_counter()
    found = call(numbers)
    took, busy = time.perf_counter() - start, time.process_time() - busy
    for number, data in zip(numbers, found, strict=True):
        if not np.array_equal(np.frombuffer(data, np.uint8), content(number, len(data))):
            raise SystemExit(f"object {number} is not what was put")
    return took * 1e6, busy * 1e6


def take_turns(reader: Reader, peer: Peer, rounds: int, nbytes: int, batch: int) -> tuple[Samples, dict[str, float]]:
    """Returns times of reads of so many objects at once, and processor seconds per second."""
    calls = candidates(reader)
    samples, busy = Samples.of(calls), {name: [0.0, 0.0] for name in calls}
    for number in range(-WARM_UP, rounds):
        numbers = [1000 * (number + WARM_UP) + index for index in range(BURST * batch if batch == 1 else batch)]
        peer.tell("hold", numbers, nbytes)
        reader.remember(numbers, peer.answer())
        names = list(calls)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            groups = [numbers[at : at + batch] for at in range(0, len(numbers), batch)]
            taken = [timed(calls[name], group) for group in groups]
            if number >= 0:
                samples.add(name, [took for took, _ in taken])
                busy[name][0] += sum(spent for _, spent in taken)
                busy[name][1] += sum(took for took, _ in taken)
    return samples, {name: spent / took for name, (spent, took) in busy.items()}


def measure(reader: Reader, peer: Peer, rounds: int) -> Iterator[Measure | Claim]:
    for label, nbytes in SIZES.items():
        samples, busy = take_turns(reader, peer, rounds, nbytes, 1)
        yield from samples.measures(label, "us", ASYNC)
        limit = 1.2 * samples.median(ASYNC) + 300
        yield Claim(
            f"{label}, rdma in place: 1.2 x asynchronous + 300 us", samples.median(IN_PLACE), "<=", limit, "us"
        )
        for name in (ASYNC, IN_PLACE):
            yield Measure(f"{label}, processor", name, "ms/s", 1000 * busy[name], 1000 * busy[name], 1)
    samples, _ = take_turns(reader, peer, max(3, rounds // 3), MIB, BATCH)
    yield from samples.measures(f"{BATCH} x 1 MiB", "us", ASYNC)
    limit = 1.2 * samples.median(ASYNC) + 300
    value = samples.median(IN_PLACE)
    yield Claim(f"{BATCH} x 1 MiB: 1.2 x asynchronous + 300 us", value, "<=", limit, "us", gate=False)


def waiting(reader: Reader) -> Claim:
    """Returns what it costs to wait for a producer that was stopped."""
    os.kill(reader.info.pid, signal.SIGSTOP)
    try:
        number = next(iter(reader.places))
        busy, start = time.process_time(), time.monotonic()
        try:
            reader.source.read([Wanted(name_of(number), reader.places[number])], start + WAIT)
        except StoreUnavailableError:
            pass
        else:
            raise SystemExit("a stopped producer answered")
        took, busy = time.monotonic() - start, time.process_time() - busy
    finally:
        os.kill(reader.info.pid, signal.SIGCONT)
    return Claim("waiting: processor seconds per second", busy / took, "<=", 0.6, "s/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--device", action="store_true", help="use this host's RDMA devices, in its own network")
    args = parser.parse_args()
    logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.ERROR)
    load = os.getloadavg()[0]
    gc.disable()
    folder = tempfile.mkdtemp(prefix="fd-routing-bench-", dir="/dev/shm")
    measures, claims = [], []
    try:
        peer = Peer(Producer, folder, (BATCH + BURST * 31) * MIB, args.device)
        reader = Reader(peer, args.device)
        for line in measure(reader, peer, args.rounds):
            (measures if isinstance(line, Measure) else claims).append(line)  # type: ignore[arg-type]
        if not args.device:  # a card reads a stopped process's memory all the same
            claims.append(waiting(reader))
        reader.endpoint.close()
        peer.tell("close")
        peer.answer()
    finally:
        shutil.rmtree(folder)
    facts = {"rounds": args.rounds, "cores": os.cpu_count(), "load before": round(load, 1)}
    facts["protocol"] = reader.endpoint.protocol
    show(measures, claims, facts, as_json=args.json)
    return 0 if all(claim.holds or not claim.gate for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
