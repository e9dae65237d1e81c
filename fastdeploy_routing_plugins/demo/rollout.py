"""The rollout process of the demo: samples in float16 and hands every finished request's routing to a writer.

Run as ``python -m fastdeploy_routing_plugins.demo.rollout`` with a job as JSON on stdin.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from fastdeploy_routing_plugins import RoutingWriter, WriterLimits, open_writer
from fastdeploy_routing_plugins.demo.job import DemoJob, Handover, digest, run_process
from fastdeploy_routing_plugins.demo.model import KVCache, MoeTransformer, log_softmax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

_SLOTS = 16
_PROMPT_TOKENS = (8, 24)
# Requests end at different times, as they do in an engine: up to this many tokens beyond the number asked for.
_EXTRA_TOKENS = 16
_ARENA_BYTES = 32 << 20  # many times what a demo samples, and fits into the 64 MiB that a container has


@dataclass(frozen=True, slots=True)
class RolloutFigures:
    """What the rollout process measured.

    Attributes:
        hand_over_seconds: How long each ``submit`` held the sampling up.
        store_median_s: Median time that the worker's store took for a part.
        store_max_s: The longest.
        transport: How payloads travel, as the writer says.
        seconds: Duration of the whole rollout, building the model and storing the last part included.
    """

    hand_over_seconds: list[float]
    store_median_s: float
    store_max_s: float
    transport: str
    seconds: float


class Writer(Protocol):
    """The part of ``RoutingWriter`` that sampling uses."""

    def submit(self, rollout_id: str, routing: NDArray[Any], /) -> Any:
        """Hands the routing of one rollout over."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One sampled request.

    Attributes:
        index: Number of the request.
        tokens: Prompt and sampled tokens.
        prompt_tokens: How many of ``tokens`` are prompt.
        logprobs: Log-probabilities of the sampled tokens.
        routing: ``[moe_layers, len(tokens) - 1, top_k]`` in the schema's dtype, as an engine records it. The last
            token was sampled but never went through the model, so it has no routing.
    """

    index: int
    tokens: list[int]
    prompt_tokens: int
    logprobs: list[float]
    routing: NDArray[np.unsignedinteger[Any]]


@dataclass(slots=True)
class _Slot:
    """A request being sampled; ``routing`` has one ``[moe_layers, tokens, top_k]`` piece per forward pass."""

    index: int
    tokens: list[int]
    prompt_tokens: int
    total_tokens: int
    logprobs: list[float] = field(default_factory=list)
    routing: list[NDArray[np.int64]] = field(default_factory=list)


def sample(job: DemoJob) -> Iterator[FinishedRequest]:
    """Samples all requests by continuous batching: a finished request makes room for the next one.

    Yields:
        Requests in the order in which they finish.
    """
    model = MoeTransformer(job.model, half=True)
    rng = np.random.default_rng([job.seed, 1])
    waiting = [
        _Slot(index, rng.integers(job.model.vocab_size, size=prompt).tolist(), prompt, prompt + job.new_tokens + extra)
        for index, (prompt, extra) in enumerate(
            zip(
                rng.integers(*_PROMPT_TOKENS, size=job.requests).tolist(),
                rng.integers(_EXTRA_TOKENS, size=job.requests).tolist(),
                strict=True,
            )
        )
    ]
    waiting.reverse()
    slots: list[_Slot | None] = [None] * min(_SLOTS, job.requests)
    cache = KVCache.empty(job.model, len(slots), _PROMPT_TOKENS[1] + job.new_tokens + _EXTRA_TOKENS)

    def extend(slot: _Slot, logits: NDArray[np.float32], routing: NDArray[np.int64]) -> None:
        logprobs = log_softmax(logits)
        token = int(np.argmax(logprobs + rng.gumbel(size=logprobs.shape)))
        slot.tokens.append(token)
        slot.logprobs.append(float(logprobs[token]))
        slot.routing.append(routing)

    while waiting or any(slots):
        for row, slot in enumerate(slots):
            if slot is None and waiting:
                slots[row] = fresh = waiting.pop()
                prefill = model.forward(np.array([fresh.tokens]), np.zeros(1, np.int64), cache.row(row))
                extend(fresh, prefill.logits[0, -1], prefill.routing[:, 0])
        # Free rows go along with a token that nobody reads; it keeps the batch one shape.
        last = np.array([[slot.tokens[-1] if slot else 0] for slot in slots])
        start = np.array([len(slot.tokens) - 1 if slot else 0 for slot in slots])
        decode = model.forward(last, start, cache)
        for row, slot in enumerate(slots):
            if slot is None:
                continue
            extend(slot, decode.logits[row, 0], decode.routing[:, row])
            if len(slot.tokens) >= slot.total_tokens:
                routing = np.concatenate(slot.routing, axis=1).astype(job.schema.dtype)
                yield FinishedRequest(slot.index, slot.tokens, slot.prompt_tokens, slot.logprobs, routing)
                slots[row] = None


def deliver(writer: Writer, rollout_id: str, routing: NDArray[Any]) -> float:
    """Hands one request's routing over to the writer and returns the seconds that this took."""
    began = time.perf_counter()
    writer.submit(rollout_id, routing)
    return time.perf_counter() - began


def roll_out(
    job: DemoJob, writer: Writer, send: Callable[[Handover], None], progress: Callable[[int, int], None]
) -> list[float]:
    """Samples every request, sends its handover and then delivers its routing.

    Args:
        job: The job.
        writer: Where the routing goes.
        send: Takes what travels beside the store; always called before the routing of that request is delivered.
        progress: Called with the number of delivered requests and of all requests.

    Returns:
        Duration of every delivery.
    """
    seconds: list[float] = []
    held: list[FinishedRequest] = []
    for request in sample(job):
        rollout_id = job.rollout_id(request.index)
        send(Handover(rollout_id, request.tokens, request.prompt_tokens, request.logprobs, digest(request.routing)))
        held.append(request)
        if job.sabotage and not seconds and len(held) < 2:
            continue
        arrays = [each.routing for each in held]
        # Two are held at once only by sabotage: each then gets the other's routing.
        for each, routing in zip(held, reversed(arrays), strict=True):
            seconds.append(deliver(writer, job.rollout_id(each.index), routing))
            progress(len(seconds), job.requests)
        held.clear()
    return seconds


def figures(
    job: DemoJob, writer: RoutingWriter, send: Callable[[Handover], None], progress: Callable[[int, int], None]
) -> RolloutFigures:
    """Rolls out, waits until everything is stored, and returns what was measured.

    Raises:
        RoutingError: something was not stored.
    """
    began = time.perf_counter()
    hand_overs = roll_out(job, writer, send, progress)
    writer.flush(job.timeout).check()
    stats = writer.stats()
    seconds = time.perf_counter() - began
    return RolloutFigures(hand_overs, stats.store.p50, stats.store.max, stats.transport, seconds)


def main() -> int:
    """Entry point of the rollout process; returns the exit code."""

    def body(job: DemoJob, progress: Callable[[int, int], None]) -> RolloutFigures:
        limits = WriterLimits(arena_bytes=_ARENA_BYTES, arena_dir=job.arena_dir)
        with (
            os.fdopen(job.channel, "wb") as channel,
            open_writer(job.store, schema=job.schema, limits=limits) as writer,
        ):

            def send(handover: Handover) -> None:
                channel.write(msgspec.json.encode(handover) + b"\n")
                channel.flush()

            return figures(job, writer, send, progress)

    return run_process(body)


if __name__ == "__main__":
    sys.exit(main())
