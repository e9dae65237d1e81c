"""How long handing one rollout over holds the caller up."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from _peer import (
    LAYERS,
    SCHEMA,
    SPAWN,
    TOP_K,
    VARIANTS,
    Array,
    Consumer,
    Peer,
    local,
    routing,
    shared_memory,
    tokens_of,
)
from _report import Claim, Measure, Samples

from fastdeploy_routing_plugins import RoutingWriter, open_writer

SIZES_MIB = (1.0, 2.8, 30.0)
_ARENA = 160 << 20
_BURST = 4  # rollouts handed over in a row, as those that end in one step of an engine; the first is told apart
_WARM_UP = 2  # rounds
_PAUSE = 0.002  # s before them, in which the consumer comes to rest
_BLOCK = 64  # tokens that lie together in an engine's cache

COPY, SUBMIT, RESERVE, PUBLISH = "plain copy", "writer.submit", "writer.reserve", "  and its publish"
GATHER = "  both, and a gather between"
MANAGER, QUEUE = "Manager().Queue put_nowait", "multiprocessing.Queue put"
LAYER_SUBMITS, LAYER_PUTS = "45 x writer.submit(layers=i)", "45 x Manager().Queue put_nowait"
TOKEN_FIRST, TRANSPOSE = 'submit(layout="token_first")', "numpy.ascontiguousarray"


def clock(call: Callable[[], Any]) -> float:
    """Returns how many microseconds a call takes; its result is dropped afterwards."""
    start = time.perf_counter_ns()
    result = call()
    took = time.perf_counter_ns() - start
    del result
    return took / 1e3


class Candidate(Protocol):
    """One way to hand over. Only what ``hand_over`` clocks counts."""

    def prepare(self, tokens: int, variants: list[int]) -> None:
        """Gets everything ready for rollouts of these variants, in this order."""

    def hand_over(self, index: int, array: Array) -> float:
        """Hands a rollout over; returns for how many microseconds that held the caller up."""

    def settle(self, tokens: int, variants: list[int]) -> None:
        """Waits until the consumer has compared every byte and the queue is empty."""


class _Copy:
    """What any hand-over must do: one copy into memory that another process sees."""

    def __init__(self, peer: Peer, memory: Array) -> None:
        self._peer = peer
        self._memory = memory

    def prepare(self, tokens: int, variants: list[int]) -> None:
        pass

    def hand_over(self, index: int, array: Array) -> float:
        target = self._memory[index * array.size : (index + 1) * array.size].reshape(array.shape)
        return clock(lambda: np.copyto(target, array))

    def settle(self, tokens: int, variants: list[int]) -> None:
        self._peer.verify("look", tokens, variants)


class _Queue:
    """A queue that pickles."""

    def __init__(self, peer: Peer, name: str, put: Callable[[Any], None], *, layers: bool = False) -> None:
        self._peer = peer
        self._name = name
        self._put = put
        self._layers = layers

    def prepare(self, tokens: int, variants: list[int]) -> None:
        for variant in variants:
            self._peer.tell("take", self._name, LAYERS if self._layers else 1, tokens, variant)

    def hand_over(self, index: int, array: Array) -> float:
        pieces = array if self._layers else [array]
        tasks = [{"task_type": "put", "key": f"bench:0:0:0_{i}", "data": piece} for i, piece in enumerate(pieces)]
        return clock(lambda: [self._put(task) for task in tasks])

    def settle(self, tokens: int, variants: list[int]) -> None:
        for _ in variants:
            self._peer.verify(None)


class _Ours:
    """The writer, over a ``local`` store from which the consumer reads."""

    def __init__(self, peer: Peer, writer: RoutingWriter) -> None:
        self._peer = peer
        self.writer = writer
        self.keys: list[str] = []

    def prepare(self, tokens: int, variants: list[int]) -> None:
        self.keys = [f"bench:{next(_NUMBERS)}:0:0" for _ in variants]

    def settle(self, tokens: int, variants: list[int]) -> None:
        self.writer.flush().check()
        self._peer.verify("read", self.keys, tokens, variants[0])


_NUMBERS = itertools.count()


class _Submit(_Ours):
    def hand_over(self, index: int, array: Array) -> float:
        key = self.keys[index]
        return clock(lambda: self.writer.submit(key, array))


class _LayerSubmits(_Ours):
    def hand_over(self, index: int, array: Array) -> float:
        key = self.keys[index]
        pieces = [array[layer : layer + 1] for layer in range(LAYERS)]
        return clock(lambda: [self.writer.submit(key, piece, layers=i) for i, piece in enumerate(pieces)])


class _Turned:
    """Rollouts as an engine that records token by token has them, just written."""

    turned: list[Array]

    def turn(self, tokens: int, variants: list[int]) -> None:
        self.turned = [np.ascontiguousarray(routing(tokens, variant).transpose(1, 0, 2)) for variant in variants]


class _TokenFirst(_Ours, _Turned):
    def prepare(self, tokens: int, variants: list[int]) -> None:
        super().prepare(tokens, variants)
        self.turn(tokens, variants)

    def hand_over(self, index: int, array: Array) -> float:
        key, turned = self.keys[index], self.turned[index]
        return clock(lambda: self.writer.submit(key, turned, layout="token_first"))


class _Transpose(_Turned):
    """What ``submit`` saves its caller: the transposed copy, which a hand-over would still have to copy."""

    def prepare(self, tokens: int, variants: list[int]) -> None:
        self.turn(tokens, variants)

    def hand_over(self, index: int, array: Array) -> float:
        turned = self.turned[index]
        return clock(lambda: np.ascontiguousarray(turned.transpose(1, 0, 2)))

    def settle(self, tokens: int, variants: list[int]) -> None:
        pass


class _InPlace(_Ours):
    """``reserve``, what an engine writes into the view, and ``publish``; one of the two calls is on the clock."""

    def __init__(self, peer: Peer, writer: RoutingWriter, *, publish: bool) -> None:
        super().__init__(peer, writer)
        self._publish = publish

    def hand_over(self, index: int, array: Array) -> float:
        key = self.keys[index]
        start = time.perf_counter_ns()
        slot = self.writer.reserve(key, array.shape[1])
        reserved = time.perf_counter_ns()
        slot.view[...] = array
        filled = time.perf_counter_ns()
        slot.publish()
        return (time.perf_counter_ns() - filled if self._publish else reserved - start) / 1e3


class _Gather(_Ours):
    """As an engine has routing: rows ``[layers, top_k]`` in the slots of a cache, one slot for each token."""

    def __init__(self, peer: Peer, writer: RoutingWriter) -> None:
        super().__init__(peer, writer)
        self._slots = np.empty(0, np.int64)
        self._caches: dict[int, Array] = {}
        self._variants: list[int] = []

    def prepare(self, tokens: int, variants: list[int]) -> None:
        super().prepare(tokens, variants)
        self._variants = variants
        if len(self._slots) != tokens:
            blocks = np.random.default_rng(0).permutation(-(-tokens // _BLOCK))
            slots = (blocks[:, np.newaxis] * _BLOCK + np.arange(_BLOCK)).reshape(-1)
            self._slots = slots[slots < tokens]
            self._caches = {}
        for variant in variants:
            if variant not in self._caches:
                cache = np.empty((tokens, LAYERS, TOP_K), np.uint8)
                cache[self._slots] = routing(tokens, variant).transpose(1, 0, 2)
                self._caches[variant] = cache.view(np.uint64)[:, :, 0]  # eight ids of one byte are one word

    def hand_over(self, index: int, array: Array) -> float:
        key, cache = self.keys[index], self._caches[self._variants[index]]
        return clock(lambda: self._gather(key, cache, array.shape[1]))

    def _gather(self, key: str, cache: Array, tokens: int) -> None:
        with self.writer.reserve(key, tokens, layout="token_first") as slot:
            np.take(cache, self._slots, axis=0, out=slot.view.view(np.uint64)[:, :, 0], mode="clip")


def _rounds(candidates: dict[str, Candidate], tokens: int, rounds: int) -> tuple[Samples, Samples]:
    """Lets candidates take turns; returns what later and what first rollouts of each turn cost."""
    later, first = Samples.of(candidates), Samples.of(candidates)
    names = list(candidates)
    for number in range(rounds + _WARM_UP):
        gc.collect()
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            candidate = candidates[name]
            variants = [(number + index) % VARIANTS for index in range(_BURST)]
            arrays = [routing(tokens, variant) for variant in variants]
            candidate.prepare(tokens, variants)
            time.sleep(_PAUSE)
            times = [candidate.hand_over(index, array) for index, array in enumerate(arrays)]
            candidate.settle(tokens, variants)
            if number >= _WARM_UP:
                later.add(name, times[1:])
                first.add(name, times[:1])
    return later, first


def measure(folder: Path, rounds: int, sizes: list[float]) -> Iterator[Measure | Claim]:
    """Yields what holding up was measured, and what is claimed of it."""
    biggest = LAYERS * tokens_of(max(*sizes, SIZES_MIB[1])) * TOP_K
    memory = shared_memory(folder / "memory", _BURST * biggest)
    limits = {"arena_bytes": max(_ARENA, (_BURST + 2) * biggest), "arena_dir": str(folder)}
    with SPAWN.Manager() as manager, open_writer(local(folder), schema=SCHEMA, limits=limits) as writer:
        queues: dict[str, Any] = {MANAGER: manager.Queue(), QUEUE: SPAWN.Queue()}
        peer = Peer(Consumer, folder, queues)
        try:
            for mib in sizes:
                whole: dict[str, Candidate] = {
                    COPY: _Copy(peer, memory),
                    SUBMIT: _Submit(peer, writer),
                    RESERVE: _InPlace(peer, writer, publish=False),
                    PUBLISH: _InPlace(peer, writer, publish=True),
                    GATHER: _Gather(peer, writer),
                    MANAGER: _Queue(peer, MANAGER, queues[MANAGER].put_nowait),
                    QUEUE: _Queue(peer, QUEUE, queues[QUEUE].put),
                }
                samples, first = _rounds(whole, tokens_of(mib), rounds)
                yield from samples.measures(f"caller blocked, {mib:g} MiB", "µs", MANAGER)
                del first.rounds[GATHER]
                yield from first.measures("  the first after a pause", "µs", MANAGER)
                yield from _claims(mib, samples, first)
            tokens = tokens_of(SIZES_MIB[1])
            layered: dict[str, Candidate] = {
                LAYER_SUBMITS: _LayerSubmits(peer, writer),
                LAYER_PUTS: _Queue(peer, MANAGER, queues[MANAGER].put_nowait, layers=True),
            }
            samples, _ = _rounds(layered, tokens, rounds)
            yield from samples.measures("layer by layer, 2.8 MiB", "µs", LAYER_PUTS)
            yield Claim("45 per-layer submits of one request", samples.median(LAYER_SUBMITS), "<=", 3000, "µs")
            turned: dict[str, Candidate] = {TOKEN_FIRST: _TokenFirst(peer, writer), TRANSPOSE: _Transpose()}
            samples, _ = _rounds(turned, tokens, rounds)
            yield from samples.measures("[T,45,8] in, 2.8 MiB", "µs", TRANSPOSE)
            faster = samples.median(TRANSPOSE) / samples.median(TOKEN_FIRST)
            yield Claim("token-first submit, faster than numpy.ascontiguousarray by", faster, ">=", 6, "x")
        finally:
            peer.close()
            queues[QUEUE].close()
            (folder / "memory").unlink()


def _claims(mib: float, samples: Samples, first: Samples) -> Iterator[Claim]:
    big = mib >= 16
    # What follows a big one shares the memory with the worker that stores it, which the plain copy does not.
    copy, submit = map((first if big else samples).median, (COPY, SUBMIT))
    reserve, publish, queue = map(samples.median, (RESERVE, PUBLISH, MANAGER))
    factor = 1.4 if big else 1.25
    yield Claim(f"submit of {mib:g} MiB: {factor} x the copy + 80 µs", submit, "<=", factor * copy + 80, "µs")
    yield Claim(f"reserve of {mib:g} MiB", reserve, "<=", 100, "µs")
    yield Claim(f"publish of {mib:g} MiB", publish, "<=", 100, "µs")
    if mib == SIZES_MIB[1]:
        both = reserve + publish
        yield Claim(f"submit of {mib:g} MiB, faster than the Manager's queue by", queue / submit, ">=", 8, "x", False)
        yield Claim(f"reserve and publish of {mib:g} MiB, likewise", queue / both, ">=", 70, "x", False)
