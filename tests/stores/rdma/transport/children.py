"""Processes that the transports' tests start, see ``process``: ``python children.py ROLE ARGUMENTS``."""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[4]))

from fastdeploy_routing_plugins.arena.pool import Pool
from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.stores.rdma import place as places
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place
from fastdeploy_routing_plugins.stores.rdma.transport.base import Source
from fastdeploy_routing_plugins.stores.rdma.transport.frames import CHALLENGE_BYTES, Hello
from fastdeploy_routing_plugins.stores.rdma.transport.serving import Limits
from fastdeploy_routing_plugins.stores.rdma.transport.shm import ShmSource
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import TcpSource
from fastdeploy_routing_plugins.stores.rdma.transport.tcp_server import TcpServer
from tests.stores.rdma.transport.producing import OWNER, Board, Producer, blob_of, is_whole, name_of, want


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def serve(folder: str, secret: str = "", stall: str = "30") -> None:
    """Is a producer that does what it is told, a line at a time; ends with its input."""
    producer = Producer(folder)
    server = TcpServer(producer, "127.0.0.1", 0, secret, owner=OWNER, limits=Limits(stall=float(stall)))
    say(places.encode(producer.info(server.address)).hex())
    churning: Churn | None = None
    for line in sys.stdin:
        verb, *args = json.loads(line)
        answer: Any = None
        if verb == "put":
            name, size, lent = args
            answer = places.encode(producer.put(name, random.Random(name).randbytes(size), lent=lent)).hex()
        elif verb == "delete":
            producer.delete(*args)
        elif verb == "used":
            answer = producer.used
        elif verb == "leases":
            answer = producer.leases
        elif verb == "connections":
            answer = server.connections
        elif verb == "size":
            answer = size_of_process()
        elif verb == "churn":
            churning = Churn(producer, *args)
        elif verb == "calm" and churning is not None:
            answer = churning.stop()
        elif verb == "stop":
            began = time.monotonic()
            server.stop()
            answer = time.monotonic() - began
        say(answer)
    server.stop()
    producer.close()


def size_of_process() -> dict[str, int]:
    """What a process must not use more and more of."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * 4096
    return {
        "resident": resident,
        "threads": threading.active_count(),
        "fds": len(list(Path("/proc/self/fd").iterdir())),
    }


class Churn:
    """Replaces objects all the time, and notes on a board where they are."""

    def __init__(self, producer: Producer, path: str, slots: int, lent: bool) -> None:
        self._producer = producer
        self._lent = lent
        self._board = Board(path, slots)
        self._stop = threading.Event()
        self._count = 0
        for slot in range(slots):
            self._board.write(slot, producer.put(name_of(slot), self._content(slot), lent=lent))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _content(self, slot: int) -> bytes:
        self._count += 1
        size = (200_000 if self._count % 3 else 3000) - self._count % 512
        return (f"{slot}:{self._count};".encode() * (size // 4))[:size]

    def _run(self) -> None:
        while not self._stop.is_set():
            for slot in range(self._board.slots):
                found = self._producer.replace(name_of(slot), self._content(slot), lent=self._lent)
                self._board.write(slot, found)

    def stop(self) -> int:
        """Ends, deletes everything, and returns how many objects there were."""
        self._stop.set()
        self._thread.join()
        for slot in range(self._board.slots):
            self._producer.delete(name_of(slot))
        self._board.close()
        return self._count


class Reader:
    """Reads one object."""

    def __init__(self, kind: str, info: str, name: str, place: str) -> None:
        owner = places.decode(bytes.fromhex(info), OwnerInfo)
        self._source: Source = ShmSource(owner, Pool()) if kind == "shm" else TcpSource(owner, "", Pool())
        self._wanted = want(name, places.decode(bytes.fromhex(place), Place))

    def read(self, *, view: bool) -> Blob:
        return blob_of(self._source.read([self._wanted], time.monotonic() + 30, view=view)[0])

    def whole(self) -> list[bool]:
        return [is_whole(self.read(view=view), self._wanted.name) for view in (False, True)]


def fork_and_read(*args: str) -> None:
    """Reads, forks, and reads in both processes, at the same time."""
    reader = Reader(*args)
    found = {"parent": reader.whole()}
    end, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(begin, json.dumps(reader.whole()).encode())
        finally:
            os._exit(0)
    found["parent again"] = reader.whole()
    os.waitpid(pid, 0)
    found["child"] = json.loads(os.read(end, 100))
    say(found)


def fork_and_hold(*args: str) -> None:
    """Looks at an object, and forks a child that ends with all that it has; then says whether the object is whole."""
    reader = Reader(*args)
    blob = reader.read(view=True)
    pid = os.fork()
    if pid == 0:
        try:
            del blob
            reader._source.close()
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    say("forked")
    sys.stdin.readline()
    say(is_whole(blob, args[2]))


def serve_and_fork(folder: str) -> None:
    """Serves, forks a child that stays, and stops; says what its reader and its port do then."""
    producer = Producer(folder)
    server = TcpServer(producer, "127.0.0.1")
    reader = socket.create_connection(("127.0.0.1", server.port), 30)
    reader.sendall(Hello("", False, bytes(32)).encode())
    reader.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
    end, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(begin)
        os.read(end, 1)  # until the parent is done
        os._exit(0)
    server.stop()
    found = {"reader": reader.recv(1).decode(), "port": "open"}
    try:
        socket.create_connection(("127.0.0.1", server.port), 5).close()
    except ConnectionRefusedError:
        found["port"] = "refused"
    os.close(begin)
    os.waitpid(pid, 0)
    reader.close()
    producer.close()
    say(found)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
