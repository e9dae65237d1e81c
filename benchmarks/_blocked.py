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
_BURST = 3  # calls of one candidate in a row; each begins with an empty queue
_WARM_UP = 2  # rounds
_PAUSE = 0.002  # s before each call, in which the consumer comes to rest
_STEP = 256  # tokens gathered at a time
_BLOCK = 64  # tokens that lie together in an engine's cache

COPY, SUBMIT, RESERVE, GATHER = "plain copy", "writer.submit", "writer.reserve + publish", "  with a gather between"
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
    """One way to hand over. Only ``hand_over`` is on the clock."""

    def prepare(self, tokens: int, variant: int) -> None:
        """Lets the consumer get ready."""

    def hand_over(self, array: Array) -> float:
        """Hands a rollout over; returns for how many microseconds that held the caller up."""

    def settle(self, tokens: int, variant: int) -> None:
        """Waits until the consumer has compared every byte and the queue is empty."""


class _Copy:
    """What any hand-over must do: one copy into memory that another process sees."""

    def __init__(self, peer: Peer, memory: Array) -> None:
        self._peer = peer
        self._memory = memory

    def prepare(self, tokens: int, variant: int) -> None:
        pass

    def hand_over(self, array: Array) -> float:
        target = self._memory[: array.size].reshape(array.shape)
        return clock(lambda: np.copyto(target, array))

    def settle(self, tokens: int, variant: int) -> None:
        self._peer.verify("look", tokens, [variant])


class _Queue:
    """A queue that pickles."""

    def __init__(self, peer: Peer, name: str, put: Callable[[Any], None], *, layers: bool = False) -> None:
        self._peer = peer
        self._name = name
        self._put = put
        self._layers = layers

    def prepare(self, tokens: int, variant: int) -> None:
        self._peer.tell("take", self._name, LAYERS if self._layers else 1, tokens, variant)

    def hand_over(self, array: Array) -> float:
        pieces = array if self._layers else [array]
        tasks = [{"task_type": "put", "key": f"bench:0:0:0_{i}", "data": piece} for i, piece in enumerate(pieces)]
        return clock(lambda: [self._put(task) for task in tasks])

    def settle(self, tokens: int, variant: int) -> None:
        self._peer.verify(None)


class _Ours:
    """The writer, over a ``local`` store from which the consumer reads."""

    def __init__(self, peer: Peer, writer: RoutingWriter) -> None:
        self._peer = peer
        self.writer = writer
        self.key = ""

    def prepare(self, tokens: int, variant: int) -> None:
        self.key = f"bench:{next(_NUMBERS)}:0:0"

    def settle(self, tokens: int, variant: int) -> None:
        self.writer.flush().check()
        self._peer.verify("read", [self.key], tokens, variant)


_NUMBERS = itertools.count()


class _Submit(_Ours):
    def hand_over(self, array: Array) -> float:
        return clock(lambda: self.writer.submit(self.key, array))


class _LayerSubmits(_Ours):
    def hand_over(self, array: Array) -> float:
        pieces = [array[layer : layer + 1] for layer in range(LAYERS)]
        return clock(lambda: [self.writer.submit(self.key, piece, layers=i) for i, piece in enumerate(pieces)])


class _TokenFirst(_Ours):
    def hand_over(self, array: Array) -> float:
        turned = np.ascontiguousarray(array.transpose(1, 0, 2))
        return clock(lambda: self.writer.submit(self.key, turned, layout="token_first"))


class _Transpose:
    """What ``submit`` saves its caller: the transposed copy, which a hand-over would still have to copy."""

    def prepare(self, tokens: int, variant: int) -> None:
        pass

    def hand_over(self, array: Array) -> float:
        turned = np.ascontiguousarray(array.transpose(1, 0, 2))
        return clock(lambda: np.ascontiguousarray(turned.transpose(1, 0, 2)))

    def settle(self, tokens: int, variant: int) -> None:
        pass


class _Reserve(_Ours):
    def hand_over(self, array: Array) -> float:
        start = time.perf_counter_ns()
        slot = self.writer.reserve(self.key, array.shape[1])
        reserved = time.perf_counter_ns()
        slot.view[...] = array
        filled = time.perf_counter_ns()
        slot.publish()
        return (time.perf_counter_ns() - filled + reserved - start) / 1e3


class _Gather(_Ours):
    """As an engine has routing: rows ``[layers, top_k]`` in the slots of a cache, one slot for each token."""

    def __init__(self, peer: Peer, writer: RoutingWriter) -> None:
        super().__init__(peer, writer)
        self._slots = np.empty(0, np.int64)
        self._caches: dict[int, Array] = {}
        self._rows = np.empty((_STEP, LAYERS), np.uint64)

    def prepare(self, tokens: int, variant: int) -> None:
        super().prepare(tokens, variant)
        if len(self._slots) != tokens:
            blocks = np.random.default_rng(0).permutation(-(-tokens // _BLOCK))
            slots = (blocks[:, np.newaxis] * _BLOCK + np.arange(_BLOCK)).reshape(-1)
            self._slots = slots[slots < tokens]
            self._caches = {}
        if variant not in self._caches:
            cache = np.empty((tokens, LAYERS, TOP_K), np.uint8)
            cache[self._slots] = routing(tokens, variant).transpose(1, 0, 2)
            self._caches[variant] = cache
        # Eight ids of one byte are one word.
        self._cache = self._caches[variant].view(np.uint64)[:, :, 0]

    def hand_over(self, array: Array) -> float:
        return clock(lambda: self._gather(array.shape[1]))

    def _gather(self, tokens: int) -> None:
        with self.writer.reserve(self.key, tokens) as slot:
            words = slot.view.view(np.uint64)[:, :, 0]
            for start in range(0, tokens, _STEP):
                slots = self._slots[start : start + _STEP]
                rows = np.take(self._cache, slots, axis=0, out=self._rows[: len(slots)], mode="clip")
                words[:, start : start + _STEP] = rows.T


def _rounds(candidates: dict[str, Candidate], tokens: int, rounds: int) -> Samples:
    """Lets candidates take turns."""
    samples = Samples.of(candidates)
    names = list(candidates)
    for number in range(rounds + _WARM_UP):
        gc.collect()
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            candidate = candidates[name]
            times = []
            for index in range(_BURST):
                variant = (number + index) % VARIANTS
                array = routing(tokens, variant)
                candidate.prepare(tokens, variant)
                time.sleep(_PAUSE)
                times.append(candidate.hand_over(array))
                candidate.settle(tokens, variant)
            if number >= _WARM_UP:
                samples.add(name, times)
    return samples


def measure(folder: Path, rounds: int, sizes: list[float]) -> Iterator[Measure | Claim]:
    """Yields what holding up was measured, and what is claimed of it."""
    biggest = LAYERS * tokens_of(max(*sizes, SIZES_MIB[1])) * TOP_K
    memory = shared_memory(folder / "memory", biggest)
    limits = {"arena_bytes": max(_ARENA, 4 * biggest), "arena_dir": str(folder)}
    with SPAWN.Manager() as manager, open_writer(local(folder), schema=SCHEMA, limits=limits) as writer:
        queues: dict[str, Any] = {MANAGER: manager.Queue(), QUEUE: SPAWN.Queue()}
        peer = Peer(Consumer, folder, queues)
        try:
            for mib in sizes:
                whole: dict[str, Candidate] = {
                    COPY: _Copy(peer, memory),
                    SUBMIT: _Submit(peer, writer),
                    RESERVE: _Reserve(peer, writer),
                    GATHER: _Gather(peer, writer),
                    MANAGER: _Queue(peer, MANAGER, queues[MANAGER].put_nowait),
                    QUEUE: _Queue(peer, QUEUE, queues[QUEUE].put),
                }
                samples = _rounds(whole, tokens_of(mib), rounds)
                yield from samples.measures(f"caller blocked, {mib:g} MiB", "µs", MANAGER)
                yield from _claims(mib, samples)
            tokens = tokens_of(SIZES_MIB[1])
            layered: dict[str, Candidate] = {
                LAYER_SUBMITS: _LayerSubmits(peer, writer),
                LAYER_PUTS: _Queue(peer, MANAGER, queues[MANAGER].put_nowait, layers=True),
            }
            samples = _rounds(layered, tokens, rounds)
            yield from samples.measures("layer by layer, 2.8 MiB", "µs", LAYER_PUTS)
            yield Claim("45 per-layer submits of one request", samples.median(LAYER_SUBMITS), "<=", 3000, "µs")
            turned: dict[str, Candidate] = {TOKEN_FIRST: _TokenFirst(peer, writer), TRANSPOSE: _Transpose()}
            samples = _rounds(turned, tokens, rounds)
            yield from samples.measures("[T,45,8] in, 2.8 MiB", "µs", TRANSPOSE)
            faster = samples.median(TRANSPOSE) / samples.median(TOKEN_FIRST)
            yield Claim("token-first submit, faster than numpy.ascontiguousarray by", faster, ">=", 6, "x")
        finally:
            peer.close()
            queues[QUEUE].close()
            (folder / "memory").unlink()


def _claims(mib: float, samples: Samples) -> Iterator[Claim]:
    copy, submit, reserve, queue = (samples.median(what) for what in (COPY, SUBMIT, RESERVE, MANAGER))
    factor = 1.4 if mib >= 16 else 1.25
    yield Claim(f"submit of {mib:g} MiB: {factor} x the copy + 80 µs", submit, "<=", factor * copy + 80, "µs")
    yield Claim(f"reserve + publish of {mib:g} MiB", reserve, "<=", 100, "µs")
    if mib == SIZES_MIB[1]:
        yield Claim(f"submit of {mib:g} MiB, faster than the Manager's queue by", queue / submit, ">=", 8, "x", False)
        yield Claim(f"reserve + publish of {mib:g} MiB, likewise", queue / reserve, ">=", 70, "x", False)
