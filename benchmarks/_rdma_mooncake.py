"""The store ``rdma`` over Mooncake beside the bare engine: one pair of engines for each, in the same two processes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from _peer import SCHEMA, Array
from _rdma_producer import array_of, config
from _rdma_reader import BURST, WARM_UP, clock, same
from _report import Claim, Measure, Samples

from fastdeploy_routing_plugins import SyncStore, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from _rdma_reader import Reader

SPINNING, ASYNC = "bare engine, blocking", "bare engine, asked every 40 us"
OURS, DIGESTS = "rdma", "rdma, digests checked"
_PAUSE = 40e-6  # s
_PATIENCE = 30.0  # s
_LARGE = 16 << 20  # bytes; a get of as much is waiting, for the most part


def bare_engine(memory: Array) -> Any:
    """Returns an engine in TCP mode that has some memory registered."""
    from fastdeploy_routing_plugins.stores.rdma.transport import rdma_env

    engine = rdma_env.start("127.0.0.1", rdma_env.TCP, "")
    if engine.batch_register_memory([memory.ctypes.data], [memory.nbytes]) != 0:
        raise SystemExit("Mooncake's engine does not register memory")
    return engine


class Bare:
    """Reads by an engine alone.

    Args:
        segment: The producer's engine.
        address: Where the producer has its shared memory.
        nbytes: The most that is read.
    """

    def __init__(self, segment: str, address: int, nbytes: int) -> None:
        self._segment = segment
        self._address = address
        self._memory = np.ones(nbytes, np.uint8)
        self._engine = bare_engine(self._memory)

    def read(self, begin: int, nbytes: int) -> Array:
        """Reads without spinning: the faster way for what is large."""
        local, remote = self._memory.ctypes.data + begin, self._address + begin
        batch = self._engine.batch_transfer_async_read(self._segment, [local], [remote], [nbytes])
        while (state := self._engine.transfer_check_status(batch)) == 0:
            time.sleep(_PAUSE)
        if not batch or state != 1:
            raise SystemExit("Mooncake's asynchronous read failed")
        return self._memory[begin : begin + nbytes]

    def spin(self, begin: int, nbytes: int) -> Array:
        """Reads by the call that spins."""
        local, remote = self._memory.ctypes.data + begin, self._address + begin
        if self._engine.transfer_sync_read(self._segment, local, remote, nbytes) != 0:
            raise SystemExit("Mooncake's blocking read failed")
        return self._memory[begin : begin + nbytes]


def measure(
    reader: Reader, server: str, folder: Path, sizes: dict[str, int], rounds: int
) -> Iterator[Measure | Claim]:
    """Yields what gets over Mooncake cost, and what waiting for them does."""
    bare, bounds = reader.mooncake, reader.bounds
    with open_store(config(server, folder, "rdma", allow_tcp=True), schema=SCHEMA) as store:
        calls: dict[str, Callable[[int, str], Any]] = {
            SPINNING: lambda index, key: bare.spin(index * bounds.size, bounds.size),
            ASYNC: lambda index, key: bare.read(index * bounds.size, bounds.size),
            OURS: lambda index, key: store.get(key, verify=False).routing,
            DIGESTS: lambda index, key: store.get(key).routing,
        }
        for label, tokens in sizes.items():
            bounds.size = array_of(tokens, 0).size
            samples, waiting, whole = _take_turns(reader, store, calls, label, tokens, rounds)
            yield from samples.measures(f"{label}, Mooncake in TCP mode", "us", ASYNC)
            for name in (OURS, DIGESTS):
                what, took = f"{label}, {name}: 1.2 x the bare read", samples.median(name)
                yield Claim(f"{what} + 300 us", took, "<=", 1.2 * samples.median(ASYNC) + 300, "us")
                limit = 1.2 * samples.median(SPINNING) + 300
                yield Claim(f"{what} that spins + 300 us", took, "<=", limit, "us", gate=False)
            if bounds.size >= _LARGE:
                yield from waiting.measures(f"{label}, processor time of who waits", "%", SPINNING)
                yield from whole.measures(f"{label}, with the engine's copying", "%", SPINNING)
                what = f"{label}, {OURS}: processor seconds of who waits, per second"
                yield Claim(what, waiting.median(OURS) / 100, "<=", 0.6, "s/s")
                what = f"{label}, {OURS}: with those of the engine, which copies"
                yield Claim(what, whole.median(OURS) / 100, "<=", 0.6, "s/s", gate=False)


def _take_turns(
    reader: Reader,
    store: SyncStore,
    calls: dict[str, Callable[[int, str], Any]],
    label: str,
    tokens: int,
    rounds: int,
) -> tuple[Samples, Samples, Samples]:
    """Returns microseconds, and the share of them that the thread, and that all of the process kept a processor."""
    names = list(calls)
    samples, waiting, whole = Samples.of(calls), Samples.of(calls), Samples.of(calls)
    for number in range(-WARM_UP, rounds):
        # The two of ours read different rollouts: what one asked the service must not help the other.
        keys = {name: [f"mooncake:{label}:{name[4:8]}{number}:{index}" for index in range(BURST)] for name in names}
        first = BURST * (number + WARM_UP)
        for name in (OURS, DIGESTS):
            reader.ask("put_mooncake", keys[name], first, tokens)
            for key in keys[name]:
                store.wait(key, timeout=_PATIENCE)
        gc.collect()
        turn = (number + WARM_UP) % len(names)
        for name in names[turn:] + names[:turn]:
            thread, process, times = _burst(name, calls[name], keys[name], first, tokens)
            if number >= 0:
                samples.add(name, times)
                waiting.add(name, [thread / sum(times) * 1e8])
                whole.add(name, [process / sum(times) * 1e8])
        for name in (OURS, DIGESTS):
            reader.ask("delete_mooncake", keys[name])
    return samples, waiting, whole


def _burst(
    name: str, get: Callable[[int, str], Any], keys: list[str], first: int, tokens: int
) -> tuple[float, float, list[float]]:
    """Returns processor seconds of this thread and of this process in gets in a row, and the microseconds of each."""
    thread, process = -time.thread_time(), -time.process_time()

    def check(index: int, found: Any) -> None:
        nonlocal thread, process
        if index == 0:
            thread, process = thread + time.thread_time(), process + time.process_time()
        same(name, found, array_of(tokens, first + index))

    times = clock([partial(get, index, key) for index, key in enumerate(keys)], check)
    return thread, process, times
