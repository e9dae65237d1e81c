"""How much goes through when an engine hands over as fast as it may, back-pressure on."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from _peer import LAYERS, SCHEMA, TOP_K, VARIANTS, Consumer, Peer, local, routing, shared_memory, tokens_of
from _report import Claim, Measure, Samples

from fastdeploy_routing_plugins import RoutingWriter, open_store, open_writer

MIB = 2.8
_PARTS = 128  # of one candidate in a row
_ARENA = 160 << 20  # holds fewer parts than that: the engine has to wait
_WARM_UP = 1  # rounds

COPY, CACHED = "copy through shared memory", "copy to one place, in the caches"
BARE, STORED = "local: store.put in a loop", "local: writer"
DROPPED, CHECKED = "noop: writer, validation off", "noop: writer, validated"


class Sustained:
    """The candidates; each passes ``_PARTS`` rollouts on and returns seconds.

    Args:
        folder: Where stores and arenas are.
        stack: Closes what is opened.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._tokens = tokens_of(MIB)
        self._arrays = [routing(self._tokens, variant) for variant in range(VARIANTS)]
        self.nbytes = _PARTS * self._arrays[0].nbytes
        self._numbers = itertools.count()
        one = self._arrays[0]
        memory = shared_memory(folder / "memory", _ARENA // one.nbytes * one.nbytes)
        self._places = memory.reshape(-1, *one.shape)
        stack.callback((folder / "memory").unlink)
        self._store = stack.enter_context(open_store(local(folder), schema=SCHEMA))
        limits = {"arena_bytes": _ARENA, "arena_dir": str(folder), "on_full_wait": 60.0}
        noop = {"routing_store_type": "noop"}
        self._writers = {
            DROPPED: stack.enter_context(open_writer(noop, schema=SCHEMA, limits={**limits, "validate": False})),
            CHECKED: stack.enter_context(open_writer(noop, schema=SCHEMA, limits=limits)),
            STORED: stack.enter_context(open_writer(local(folder), schema=SCHEMA, limits=limits)),
        }
        self._peer = Peer(Consumer, folder, {})
        stack.callback(self._peer.close)
        self.candidates: dict[str, Callable[[], float]] = {
            COPY: lambda: self._copy(len(self._places)),
            CACHED: lambda: self._copy(1),
            DROPPED: lambda: self._write(DROPPED),
            CHECKED: lambda: self._write(CHECKED),
            BARE: self._put,
            STORED: lambda: self._write(STORED),
        }

    def _copy(self, places: int) -> float:
        """Copies to so many places in turn: to as many as the arena has it is memory that is measured."""
        targets = [self._places[index % places] for index in range(_PARTS)]
        start = time.perf_counter()
        for index, target in enumerate(targets):
            np.copyto(target, self._arrays[index % VARIANTS])
        took = time.perf_counter() - start
        last = {index % places: index % VARIANTS for index in range(_PARTS)}
        self._peer.verify("look", self._tokens, [last[place] for place in sorted(last)])
        return took

    def _put(self) -> float:
        keys = self._keys()
        start = time.perf_counter()
        for index, key in enumerate(keys):
            self._store.put(key, self._arrays[index % VARIANTS])
        took = time.perf_counter() - start
        self._peer.verify("read", keys, self._tokens, 0)
        return took

    def _write(self, name: str) -> float:
        writer: RoutingWriter = self._writers[name]
        keys = self._keys()
        stored = writer.stats().stored_bytes
        start = time.perf_counter()
        for index, key in enumerate(keys):
            writer.submit(key, self._arrays[index % VARIANTS])
        report = writer.flush()
        took = time.perf_counter() - start
        if report.check().stored != _PARTS or writer.stats().stored_bytes - stored != self.nbytes:
            raise SystemExit("not everything arrived: the measurement is void")
        if name == STORED:  # noop keeps nothing that could be compared; it has counted the bytes
            self._peer.verify("read", keys, self._tokens, 0)
        return took

    def _keys(self) -> list[str]:
        return [f"bench:{next(self._numbers)}:0:0" for _ in range(_PARTS)]


def measure(folder: Path, rounds: int) -> Iterator[Measure | Claim]:
    """Yields rates in MB/s, and what is claimed of them."""
    with ExitStack() as stack:
        sustained = Sustained(folder, stack)
        names = list(sustained.candidates)
        samples = Samples.of(names)
        for number in range(rounds + _WARM_UP):
            gc.collect()
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                rate = sustained.nbytes / 1e6 / sustained.candidates[name]()
                if number >= _WARM_UP:
                    samples.add(name, [rate])
    size = LAYERS * tokens_of(MIB) * TOP_K / (1 << 20)
    yield from samples.measures(f"sustained, {rounds * _PARTS} x {size:.1f} MiB each", "MB/s", COPY, rate=True)
    copy, dropped = samples.median(COPY), samples.median(DROPPED)
    yield Claim("sustained to noop, validation off: 40 % of the copy", dropped, ">=", 0.4 * copy, "MB/s")
    bare, stored = samples.median(BARE), samples.median(STORED)
    yield Claim("sustained to local: 85 % of a bare loop of its puts", stored, ">=", 0.85 * bare, "MB/s")
