"""The reader of the benchmark of ``rdma``: gets by every candidate, and compares every byte outside the clock."""

from __future__ import annotations

import gc
import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from _peer import LAYERS, SCHEMA, TOP_K, Array, Peer, shared_memory
from _rdma_peers import flat, others
from _rdma_producer import ASK, CAPACITY, COPY, ONE_PASS, PUT, XXH3, array_of, config, digest, profiled
from _report import Samples

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.stores.rdma.address import parse
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient

BURST = 5  # gets in a row
WARM_UP = 3  # rounds
STREAM, QUESTION = "plain TCP stream", "one question to the service"
VIEW, DIGESTS, COPIED = "shm, view", "shm, view, digests checked", "shm, copy, digests checked"
NEW = "shm, view, not waited for"
TCP, TCP_DIGESTS, TCP_NEW = "tcp", "tcp, digests checked", "tcp, not waited for"
BARE = "Mooncake's engine alone"
_WAITED = (VIEW, DIGESTS, COPIED, TCP, TCP_DIGESTS)
_PATIENCE = 30.0  # s

Get = Callable[[int, str], Any]


class Bounds:
    """What nobody can beat; each takes the number of the array in the producer's shared memory.

    Args:
        folder: Where that is.
        port: The plain stream's.
        nbytes: The most that is read at once.
    """

    def __init__(self, folder: Path, port: int, nbytes: int) -> None:
        self.shared = shared_memory(folder / "plain")
        self.warm = np.ones(nbytes, np.uint8)
        self.size = 0  # of an array
        self._peer = socket.create_connection(("127.0.0.1", port))
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def copy(self, index: int, count: int = 1) -> Array:
        begin, stop = index * self.size, (index + count) * self.size
        target: Array = self.warm[begin:stop]
        np.copyto(target, self.shared[begin:stop])
        return target

    def digest(self, index: int) -> Array:
        found: Array = self.shared[index * self.size : (index + 1) * self.size]
        digest(found.data, self.size // LAYERS // TOP_K)
        return found

    def digest_at_once(self, index: int) -> Array:
        found: Array = self.shared[index * self.size : (index + 1) * self.size]
        xxhash.xxh3_64_intdigest(found.data)
        return found

    def stream(self, index: int, count: int = 1) -> Array:
        begin, nbytes = index * self.size, count * self.size
        self._peer.sendall(ASK.pack(begin, nbytes))
        target: Array = self.warm[begin : begin + nbytes]
        view, got = target.data, 0
        while got < nbytes:
            got += self._peer.recv_into(view[got:], 0, socket.MSG_WAITALL)
        return target

    def close(self) -> None:
        self._peer.close()


def clock(calls: Sequence[Callable[[], Any]], check: Callable[[int, Any], object]) -> list[float]:
    """Microseconds of calls in a row, and of releasing what each returned, which is checked in between."""
    found, times = [], []
    for call in calls:
        start = time.perf_counter_ns()
        each = call()
        times.append(time.perf_counter_ns() - start)
        found.append(each)
        del each
    for index, each in enumerate(found):
        check(index, each)
        del each
    for index in range(len(times)):
        start = time.perf_counter_ns()
        found[index] = None
        times[index] += time.perf_counter_ns() - start
    return [took / 1e3 for took in times]


def same(name: str, found: Any, expected: Array) -> None:
    """Ends the benchmark if something was changed on the way."""
    if not np.array_equal(flat(found), expected.reshape(-1)):
        raise SystemExit(f"{name}: bytes were changed on the way: the measurement is void")


class Reader:
    """This process. Each of our candidates has a store of its own, so that none knows what another one asked for.

    Args:
        server: Address of the metadata service.
        folder: A tmpfs.
        redis_port: Where a redis-server is; 0: there is none.
        producer: The other process.
        plain_bytes: The most that bounds move at once.
    """

    def __init__(self, server: str, folder: Path, redis_port: int, producer: Peer, plain_bytes: int) -> None:
        self.producer = producer
        self._stack = ExitStack()
        self._client = MetadataClient(parse(server), "default")
        self._stack.callback(self._client.close)
        self._client.open()
        self.bounds = Bounds(folder, self.ask("port"), plain_bytes)
        self._stack.callback(self.bounds.close)
        self.stores = {
            name: self._stack.enter_context(open_store(config(server, folder, name.split(",")[0]), schema=SCHEMA))
            for name in (VIEW, DIGESTS, COPIED, NEW, TCP, TCP_DIGESTS, TCP_NEW)
        }
        self._waiting = [self.stores[name] for name in _WAITED]
        named = self.ask("others")
        self._others = others(folder, redis_port, not any(name.startswith("p2p") for name in named))
        for other in self._others.values():
            self._stack.callback(other.close)
        self.mooncake: Any = None  # see ``_rdma_mooncake.Bare``

    def ask(self, verb: str, *args: Any) -> Any:
        """Has the producer do something."""
        self.producer.tell(verb, *args)
        return self.producer.answer()

    def _ask_service(self, index: int, key: str) -> None:
        self._client.listing([f"{self._client.namespace}/{index}/nothing"])

    def candidates(self) -> dict[str, Get]:
        """Returns all ways to get one array, given its number in the burst and its key."""
        bounds, stores = self.bounds, self.stores

        def ours(name: str, **how: bool) -> Get:
            get = stores[name].get
            return lambda index, key: get(key, **how).routing

        found: dict[str, Get] = {
            COPY: lambda index, key: bounds.copy(index),
            XXH3: lambda index, key: bounds.digest(index),
            ONE_PASS: lambda index, key: bounds.digest_at_once(index),
            QUESTION: self._ask_service,
            VIEW: ours(VIEW, verify=False, view=True),
            NEW: ours(NEW, verify=False, view=True),
            DIGESTS: ours(DIGESTS, view=True),
            COPIED: ours(COPIED),
            STREAM: lambda index, key: bounds.stream(index),
            TCP: ours(TCP, verify=False),
            TCP_DIGESTS: ours(TCP_DIGESTS),
            TCP_NEW: ours(TCP_NEW, verify=False),
        }
        if self.mooncake is not None:
            found[BARE] = lambda index, key: self.mooncake.read(index * bounds.size, bounds.size)
        found.update({name: _by_key(other.get) for name, other in self._others.items()})
        return found

    def run(self, tokens: int, rounds: int, label: str) -> tuple[Samples, Samples]:
        """Puts and gets arrays of one size; returns microseconds of both."""
        candidates = self.candidates()
        names = list(candidates)
        puts: Samples | None = None
        order = random.Random(tokens)
        gets = Samples.of(names)
        self.bounds.size = array_of(tokens, 0).size
        for number in range(-WARM_UP, rounds):
            keys = [f"{label}:{number + WARM_UP}:{index}:0" for index in range(BURST)]
            first = BURST * (number + WARM_UP)
            put = self.ask("put", keys, first, tokens, number + WARM_UP)
            puts = puts or Samples.of(put)
            for store in self._waiting:
                for key in keys:
                    store.wait(key, timeout=_PATIENCE)
            gc.collect()
            for name in order.sample(names, len(names)):  # no candidate always follows the same one
                times = self._burst(name, candidates[name], keys, first, tokens)
                if number >= 0:
                    gets.add(name, times)
            if number >= 0:
                for name, values in put.items():
                    puts.add(name, values)
            self.ask("delete", keys)
        assert puts is not None
        return puts, gets

    def _burst(self, name: str, get: Get, keys: Sequence[str], first: int, tokens: int) -> list[float]:
        def check(index: int, found: Any) -> None:
            if name != QUESTION:
                same(name, found, array_of(tokens, first + index))

        return clock([partial(get, index, key) for index, key in enumerate(keys)], check)

    def explain(self, name: str, tokens: int, count: int = 40) -> str:
        """Returns where the time of our puts, or of one of our gets, goes."""
        self.bounds.size = array_of(tokens, 0).size
        count = min(count, CAPACITY // 4 // self.bounds.size)
        keys = [f"explain:{name}:{index}:0" for index in range(count)]
        if name == PUT:
            return str(self.ask("explain", keys, tokens))
        self.ask("put_ours", keys, tokens)
        if name in _WAITED:
            for key in keys:
                self.stores[name].wait(key, timeout=_PATIENCE)
        get = self.candidates()[name]
        text = profiled(lambda: [None for key in keys if get(0, key) is None])
        self.ask("delete_ours", keys)
        return text

    def close(self) -> None:
        """Closes everything in this process."""
        self._stack.close()


def _by_key(get: Callable[[str], Any]) -> Get:
    return lambda index, key: get(key)
