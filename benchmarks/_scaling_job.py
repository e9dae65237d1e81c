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
from metadata import PLACE, name, service

from fastdeploy_routing_plugins.stores.rdma.metadata import framing
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
from fastdeploy_routing_plugins.stores.rdma.metadata.naming import digest, rollout_of
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, encode

NAMESPACE = "run-7"
_PATIENCE = 60_000  # ms
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


class Job:
    """Engines and ranks with a connection each.

    Args:
        endpoint: The service's.
        pid: The service's.
        engines: How many.
        ranks: How many.
    """

    def __init__(self, endpoint: str, pid: int, engines: int, ranks: int) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, engines + ranks + 16)
        self._pid = pid
        self.owners = [uuid.uuid4().hex for _ in range(engines)]
        self.engines = [Line(self._context, endpoint) for _ in range(engines)]
        self.ranks = [Line(self._context, endpoint) for _ in range(ranks)]

    def ask(self, what: str, lines: Sequence[Line], question: Callable[[int], Any]) -> Cost:
        """Has each of some connections ask a question; waits for all answers."""
        cpu, start = _cpu(self._pid), time.perf_counter()
        for first in range(0, len(lines), _AT_ONCE):
            some = lines[first : first + _AT_ONCE]
            for index, line in enumerate(some):
                line.send(question(first + index))
            for line in some:
                line.answer()
        return Cost(what, len(lines), _cpu(self._pid) - cpu, time.perf_counter() - start)

    def awaited(self, waiting: int, rollout: str, owner: int) -> tuple[Cost, float]:
        """Publishes what many ranks wait for.

        Args:
            waiting: How many ranks wait.
            rollout: A name.
            owner: Who publishes it.

        Returns:
            What it cost, and seconds from publishing until the last one knew.
        """
        prefix, ranks = rollout_of(rollout), self.ranks[:waiting]
        cpu, start = _cpu(self._pid), time.perf_counter()
        for rank in ranks:
            rank.send(m.AskChange(prefix, 0, digest([])))
        time.sleep(0.5)  # all of them wait there by now
        published = time.perf_counter()
        self.engines[owner].send(m.Publish(self.owners[owner], [rollout], [PLACE]))
        self.engines[owner].answer()
        for rank in ranks:
            assert rank.answer().rows[0].names == [rollout]
        last = time.perf_counter() - published
        return Cost("wait for a rollout, told when it comes", waiting, _cpu(self._pid) - cpu, published - start), last

    def hello(self, lines: Sequence[Line], what: str) -> Cost:
        """Lets connections greet."""
        return self.ask(what, lines, lambda index: m.Hello(NAMESPACE, os.urandom(16)))

    def register(self) -> Iterator[Cost]:
        """Lets engines come."""
        yield self.hello(self.engines, "engine connects")

        def info(index: int) -> bytes:
            return encode(OwnerInfo(self.owners[index], "host", f"node-{index}", 1, f"engine-{index}"))

        yield self.ask("engine registers", self.engines, lambda index: m.Register(info(index)))
        self.ask("", self.engines, lambda index: m.Inventory(self.owners[index]))

    def publish(self, each: int) -> Cost:
        """Every engine publishes rollouts, one by one."""
        cpu, wall, count = 0.0, 0.0, len(self.engines)
        for turn in range(each):
            cost = self.ask(
                "",
                self.engines,
                lambda index: m.Publish(self.owners[index], [name(turn * count + index)], [PLACE]),  # noqa: B023
            )
            cpu, wall = cpu + cost.cpu, wall + cost.wall
        return Cost("rollout is published", each * count, cpu, wall)

    def close(self) -> None:
        for line in (*self.engines, *self.ranks):
            line.close()
        self._context.term()


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has used, all its threads."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@contextmanager
def job(engines: int, ranks: int) -> Iterator[Job]:
    """Runs a service and connects a job to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * (engines + ranks) + 500  # of this process; the service, its child, has as many
    if wanted > hard:
        raise SystemExit(
            f"{engines + ranks} connections need {wanted} open files, and {hard} are allowed (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
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
    owners = connected.owners
    yield from connected.register()
    yield connected.hello(connected.ranks, "rank connects")
    rounds = [connected.ask("", connected.engines, lambda index: m.Sign(owners[index])) for _ in range(2 * seconds)]
    count = sum(each.count for each in rounds)
    yield Cost("engine's sign of life", count, sum(x.cpu for x in rounds), sum(x.wall for x in rounds))
    published = connected.publish(4)
    yield published

    def prefixes(index: int) -> list[str]:
        return [rollout_of(name((index * batch + number) % published.count)) for number in range(batch)]

    what = f"rank asks where {batch} rollouts are"
    yield connected.ask(what, connected.ranks, lambda index: m.AskListings(prefixes(index)))
    yield connected.ask(
        "rank asks for an engine's address", connected.ranks, lambda index: m.AskOwner(owners[index % len(owners)])
    )
