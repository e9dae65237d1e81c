"""The metadata service: questions a second, a million names, and what a put and a get cost in round trips.

    python benchmarks/metadata.py

The service is a process of its own (`fd-routing serve`), asked by other processes over loopback. Gates: 12,000 single
questions a second from 4 clients and 120,000 names a second in batches; with a million names, 1,000 of a prefix are
deleted in under 50 ms, a question takes at most 1.5 times what it takes with 1,000 names, and a name takes at most 700
bytes of the service's memory; a put takes 2 round trips, a repeated get none. Ends with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import zmq
from _report import Claim, Measure, Samples, show

from fastdeploy_routing_plugins.stores.rdma.address import Address
from fastdeploy_routing_plugins.stores.rdma.metadata import framing
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
from fastdeploy_routing_plugins.stores.rdma.metadata.naming import rollout_of
from fastdeploy_routing_plugins.stores.rdma.metadata.page import page_path
from fastdeploy_routing_plugins.stores.rdma.metadata.producer import ProducerLink
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place, encode

COMMAND = str(Path(sys.executable).with_name("fd-routing"))
CLIENTS = 4
SMALL, LARGE = 1_000, 1_000_000
DEPTH = 8  # questions on their way of each client that asks for single names
BATCH = 100
PLACE = encode(Place(123_456, 987_654, 812, 2_800_000, 1, 234_567, 876_543, 123_456_789_012))
PART = "p-0000000000-0000008192-0000008192-00000-00048-00048-000016-a3e68e54"
SINGLE, BATCHED = "single questions, 4 clients", f"names in batches of {BATCH}, 4 clients"
LISTED, FOUND, PUBLISH = "listing that is remembered", "lookup that is remembered", "publish"
LOOKUP = "lookup, one round trip, {:,} names"


def name(index: int) -> str:
    """Returns the name of a whole rollout's only part, as a training run has them; a thousand to a data item."""
    return f"run-7/step=3a{index // 1000:05d}=3a{index % 1000}=3a0=3a0/000000/routing/1760000000000000000/{PART}"


@contextmanager
def service() -> Iterator[Address]:
    """Runs a service in a process of its own."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", first.getsockname()[1], second.getsockname()[1])
    process = subprocess.Popen([COMMAND, "serve", str(address)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield address
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
        with suppress(FileNotFoundError):
            os.unlink(page_path(f"{address.host}:{address.coord}"))


@contextmanager
def holding(client: MetadataClient, count: int) -> Iterator[str]:
    """Registers a producer that holds so many names; yields its id."""
    info = OwnerInfo(uuid.uuid4().hex, "host", "node", os.getpid(), "engine-0")
    link = ProducerLink(client, info, lambda: [], lambda names: None)
    link.start()
    for start in range(0, count, 1000):
        client.publish(info.owner, [(name(index), PLACE) for index in range(start, min(start + 1000, count))])
    try:
        yield info.owner
    finally:
        link.stop()


def ask(endpoint: str, batch: int, seconds: float, results: Any) -> None:
    """Asks for names for some time, with several questions on their way; reports names a second."""
    context: zmq.Context[Any] = zmq.Context()
    sock: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    sock.linger = 0
    sock.connect(endpoint)
    sock.send(framing.encode_question(m.Hello("run-7", os.urandom(16)), 1, 1000))
    sock.recv()
    names = [name(index) for index in range(SMALL)]
    number, found = 1, 0

    def send() -> None:
        nonlocal number
        number += 1
        start = number * 7 % (SMALL - batch)
        sock.send(framing.encode_question(m.AskEntries(names[start : start + batch]), number, 1000))

    depth = DEPTH if batch == 1 else 2
    for _ in range(depth):
        send()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        _, answer = framing.decode_answer(sock.recv())
        assert (answer.which, answer.places[0]) == ([0] * batch, PLACE)
        found += batch
        send()
    results.put(found / (time.perf_counter() - begin))
    sock.close()
    context.term()


def rate(address: Address, batch: int, seconds: float) -> float:
    """Returns the names that all clients together get a second."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = (address.endpoints[1], batch, seconds, results)
    processes = [context.Process(target=ask, args=arguments) for _ in range(CLIENTS)]
    for process in processes:
        process.start()
    total = sum(results.get() for _ in processes)
    for process in processes:
        process.join()
    return float(total)


def took(action: Callable[..., Any], *arguments: Any) -> float:
    """Returns the microseconds that a call takes."""
    start = time.perf_counter()
    action(*arguments)
    return (time.perf_counter() - start) * 1e6


def questions(client: MetadataClient) -> int:
    """Returns how many questions were asked but for signs and this."""
    asked = client.status()["asked"]
    return sum(count for kind, count in asked.items() if kind not in ("Sign", "AskStatus", "Hello"))


def lookups(client: MetadataClient, count: int) -> list[float]:
    """Returns the times of single lookups, each a round trip."""
    client.connection().cache.clear()
    return [took(client.lookup, [name(index * 7919 % count)]) for index in range(300)]


def one_round(number: int, one: MetadataClient, other: MetadataClient, owner: str, many: int, times: Samples) -> float:
    """Takes one round of times; returns the milliseconds that deleting a prefix took.

    Args:
        number: The round's.
        one: Client of the service with few names.
        other: Client of the service with many.
        owner: Who publishes at the first.
        many: How many names the other had.
        times: Gets the times.
    """
    for _ in range(5):
        times.add(LOOKUP.format(SMALL), lookups(one, SMALL))
        times.add(LOOKUP.format(many), lookups(other, many))
    known = [name(5)]
    one.listing([rollout_of(known[0])])
    times.add(LISTED, [took(one.listing, [rollout_of(known[0])]) for _ in range(2000)])
    times.add(FOUND, [took(one.lookup, known) for _ in range(2000)])
    fresh = [name(10**7 + number * 1000 + index) for index in range(300)]
    times.add(PUBLISH, [took(one.publish, owner, [(each, PLACE)]) for each in fresh])
    start = time.perf_counter()
    assert other.delete_prefix(f"run-7/step=3a{7 + number:05d}=3a") == 1000
    return (time.perf_counter() - start) * 1e3


def round_trips(client: MetadataClient, owner: str) -> tuple[int, int]:
    """Returns the round trips of one put, as the store makes it, and of 100 gets of the same afterwards."""
    before, new = questions(client), name(10**8)
    client.listing([rollout_of(new)])
    client.publish(owner, [(new, PLACE)])
    client.listing([rollout_of(new)])
    between = questions(client)
    for _ in range(100):
        client.listing([rollout_of(new)])
        client.lookup([new])
    return between - before, questions(client) - between


def main() -> int:
    """Measures, and shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement of a rate")
    parser.add_argument("--names", type=int, default=LARGE)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    many = options.names
    rates = Samples.of((SINGLE, BATCHED))
    times = Samples.of((LOOKUP.format(SMALL), LOOKUP.format(many), LISTED, FOUND, PUBLISH))
    deletes: list[float] = []
    with service() as small, service() as large:
        one, other = MetadataClient(small, "run-7", timeout=30), MetadataClient(large, "run-7", timeout=30)
        one.open()
        other.open()
        empty = other.status()["memory"]
        with holding(one, SMALL) as owner, holding(other, many):
            per_name = (other.status()["memory"] - empty) / many
            for number in range(options.rounds):
                rates.add(SINGLE, [rate(small, 1, options.seconds)])
                rates.add(BATCHED, [rate(small, BATCH, options.seconds)])
                deletes.append(one_round(number, one, other, owner, many, times))
            put, gets = round_trips(one, owner)
        one.close()
        other.close()
    claims = [
        Claim("single questions, 4 clients", rates.median(SINGLE), ">=", 12_000, "/s"),
        Claim("names in batches, 4 clients", rates.median(BATCHED), ">=", 120_000, "/s"),
        Claim(f"delete 1,000 names of a prefix among {many:,}", statistics.median(deletes), "<=", 50, "ms"),
        Claim(
            f"question with {many:,} names against {SMALL:,}",
            times.median(LOOKUP.format(many)) / times.median(LOOKUP.format(SMALL)),
            "<=",
            1.5,
            "x",
        ),
        Claim("memory of the service for each name", per_name, "<=", 700, "bytes"),
        Claim("round trips of a put", put, "<=", 2, ""),
        Claim("round trips of 100 repeated gets", gets, "<=", 0, ""),
    ]
    measures = [
        *rates.measures("rates", "/s", SINGLE, rate=True),
        *times.measures("times", "us", LOOKUP.format(SMALL)),
        Measure("deletes", "1,000 names of a prefix", "ms", statistics.median(deletes), min(deletes), 1.0),
    ]
    facts = {"Python": sys.version.split()[0], "pyzmq": zmq.__version__, "CPUs": os.cpu_count()}
    show(measures, claims, facts, as_json=options.json)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
