"""A job of many engines and many trainer ranks, as the metadata service sees it: every connection is a real one."""

from __future__ import annotations

import os
import resource
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from _peer import Peer
from metadata import PLACE, name, service

from fastdeploy_routing_plugins.stores.rdma.metadata import framing
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
from fastdeploy_routing_plugins.stores.rdma.metadata.naming import digest, rollout_of
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, encode

NAMESPACE = "run-7"
_PATIENCE = 60_000  # ms
_GROUP = 5000  # ranks in a process
_AT_ONCE = 200  # questions on their way, of as many connections: what one process can keep up with


@dataclass(frozen=True, slots=True)
class Cost:
    """What some questions cost.

    Attributes:
        what: Which.
        count: How many.
        cpu: Seconds of the service's processor time for all of them.
        wall: Seconds until all were answered; the asking process is as busy as the service.
    """

    what: str
    count: int
    cpu: float
    wall: float

    @property
    def each(self) -> float:
        """Microseconds of the service's processor time for one."""
        return self.cpu / self.count * 1e6


class Line:
    """One connection to the service."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = _PATIENCE
        self._socket.connect(endpoint)
        self._number = 0

    def send(self, body: Any) -> None:
        self._number += 1
        self._socket.send(framing.encode_question(body, self._number, _PATIENCE))

    def answer(self) -> Any:
        while True:
            head, body = framing.decode_answer(self._socket.recv())
            if head.id == self._number:
                if isinstance(body, m.Refused):
                    raise SystemExit(f"the service refuses: {body.message}")
                return body

    def close(self) -> None:
        self._socket.close()


def in_turn(lines: Sequence[Line], question: Callable[[int], Any]) -> None:
    """Has each of some connections ask a question; returns when all are answered."""
    for first in range(0, len(lines), _AT_ONCE):
        some = lines[first : first + _AT_ONCE]
        for index, line in enumerate(some):
            line.send(question(first + index))
        for line in some:
            line.answer()


class Ranks:
    """Some of the ranks, in a process of their own: a process may not have as many sockets as a job.

    Args:
        endpoint: The service's.
        first: Number of the first rank here.
        count: How many are here.
    """

    def __init__(self, endpoint: str, first: int, count: int) -> None:
        self._first = first
        self._context = _context(count)
        self._lines = [Line(self._context, endpoint) for _ in range(count)]

    def hello(self) -> None:
        in_turn(self._lines, lambda index: m.Hello(NAMESPACE, os.urandom(16)))

    def look_up(self, batch: int, published: int) -> None:
        """Asks where rollouts are, all of a rank at once."""

        def prefixes(index: int) -> list[str]:
            begin = (self._first + index) * batch
            return [rollout_of(name((begin + number) % published)) for number in range(batch)]

        in_turn(self._lines, lambda index: m.AskListings(prefixes(index)))

    def addresses(self, owners: Sequence[str]) -> None:
        """Asks how an engine is reached."""
        in_turn(self._lines, lambda index: m.AskOwner(owners[(self._first + index) % len(owners)]))

    def wait(self, rollout: str, count: int) -> None:
        """Begins to wait for a rollout."""
        for line in self._lines[:count]:
            line.send(m.AskChange(rollout_of(rollout), 0, digest([])))

    def told(self, rollout: str, count: int) -> float:
        """Returns when the last one knew of it, of ``time.monotonic``."""
        for line in self._lines[:count]:
            assert line.answer().rows[0].names == [rollout]
        return time.monotonic()


class Job:
    """Engines and ranks with a connection each.

    Args:
        endpoint: The service's.
        pid: The service's.
        engines: How many.
        ranks: How many.
    """

    def __init__(self, endpoint: str, pid: int, engines: int, ranks: int) -> None:
        self._context = _context(engines)
        self._pid = pid
        self.owners = [uuid.uuid4().hex for _ in range(engines)]
        self.engines = [Line(self._context, endpoint) for _ in range(engines)]
        self.ranks = ranks
        self._groups = [Peer(Ranks, endpoint, first, min(_GROUP, ranks - first)) for first in range(0, ranks, _GROUP)]

    def measure(self, what: str, count: int, action: Callable[[], object]) -> Cost:
        """Returns what so many questions cost."""
        cpu, start = _cpu(self._pid), time.perf_counter()
        action()
        return Cost(what, count, _cpu(self._pid) - cpu, time.perf_counter() - start)

    def of_engines(self, what: str, question: Callable[[int], Any]) -> Cost:
        """Has every engine ask a question."""
        return self.measure(what, len(self.engines), lambda: in_turn(self.engines, question))

    def of_ranks(self, what: str, verb: str, *args: Any) -> Cost:
        """Has every rank ask a question."""
        return self.measure(what, self.ranks, lambda: self.everybody(verb, *args))

    def everybody(self, verb: str, *args: Any) -> list[Any]:
        """Has all groups of ranks do something at the same time."""
        for group in self._groups:
            group.tell(verb, *args)
        return [group.answer() for group in self._groups]

    def awaited(self, waiting: int, rollout: str, owner: int) -> tuple[Cost, float]:
        """Publishes what many ranks wait for.

        Args:
            waiting: How many ranks wait.
            rollout: A name.
            owner: Who publishes it.

        Returns:
            What it cost, and seconds from publishing until the last one knew.
        """
        each = -(-waiting // len(self._groups))
        published = 0.0
        last: list[float] = []

        def action() -> None:
            nonlocal published, last
            self.everybody("wait", rollout, each)
            time.sleep(0.5)  # all of them wait at the service by now
            for group in self._groups:
                group.tell("told", rollout, each)
            published = time.monotonic()
            self.engines[owner].send(m.Publish(self.owners[owner], [rollout], [PLACE]))
            self.engines[owner].answer()
            last = [group.answer() for group in self._groups]

        cost = self.measure("wait for a rollout, told when it comes", each * len(self._groups), action)
        return cost, max(last) - published

    def register(self) -> Iterator[Cost]:
        """Lets engines come."""
        yield self.of_engines("engine connects", lambda index: m.Hello(NAMESPACE, os.urandom(16)))

        def info(index: int) -> bytes:
            return encode(OwnerInfo(self.owners[index], "host", f"node-{index}", 1, f"engine-{index}"))

        yield self.of_engines("engine registers", lambda index: m.Register(info(index)))
        self.of_engines("", lambda index: m.Inventory(self.owners[index]))

    def publish(self, each: int) -> Cost:
        """Every engine publishes rollouts, one by one."""
        count = len(self.engines)

        def all_of_them() -> None:
            for turn in range(each):
                in_turn(
                    self.engines,
                    lambda index: m.Publish(self.owners[index], [name(turn * count + index)], [PLACE]),  # noqa: B023
                )

        return self.measure("rollout is published", each * count, all_of_them)

    def close(self) -> None:
        for line in self.engines:
            line.close()
        self._context.term()
        for group in self._groups:
            group.close()


def _context(sockets: int) -> zmq.Context[Any]:
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, sockets + 16)
    return context


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has used, all its threads."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@contextmanager
def job(engines: int, ranks: int) -> Iterator[Job]:
    """Runs a service and connects a job to it."""
    wanted, hard = engines + ranks + 500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # the service's open files
    if wanted > hard:
        raise SystemExit(
            f"{engines + ranks} connections need {wanted} open files, and {hard} are allowed (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with service() as address:
        client = MetadataClient(address, NAMESPACE, timeout=30)
        client.open()
        connected = Job(address.endpoints[1], client.status()["pid"], engines, ranks)
        try:
            yield connected
        finally:
            connected.close()
            client.close()


def costs(connected: Job, seconds: int, batch: int) -> Iterator[Cost]:
    """Yields what everything costs that a job asks.

    Args:
        connected: The job.
        seconds: For how long signs are given.
        batch: Rollouts that a rank asks for at once.
    """
    owners, count = connected.owners, len(connected.owners)
    yield from connected.register()
    yield connected.of_ranks("rank connects", "hello")

    def signs() -> None:
        for _ in range(2 * seconds):
            in_turn(connected.engines, lambda index: m.Sign(owners[index]))

    yield connected.measure("engine's sign of life", 2 * seconds * count, signs)
    published = connected.publish(4)
    yield published
    what = f"rank asks where {batch} rollouts are"
    yield connected.of_ranks(what, "look_up", batch, published.count)
    yield connected.of_ranks("rank asks for an engine's address", "addresses", owners)
