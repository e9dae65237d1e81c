"""The trainer process of the demo: waits for every request's routing, checks it, and recomputes in float32.

Run as ``python -m fastdeploy_routing_plugins.demo.trainer`` with a job as JSON on stdin.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.demo.job import DemoJob, Handover, digest, run_process
from fastdeploy_routing_plugins.demo.model import KVCache, MoeTransformer, log_softmax
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.stores.rdma.using import transports_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

_NAMED = 4


class Store(Protocol):
    """The part of ``RoutingStore`` that the trainer uses."""

    def get(self, rollout_id: str, /, *, timeout: float) -> Any:
        """Returns the record of one rollout, waiting up to ``timeout`` seconds."""

    def delete(self, rollout_id: str, /) -> int:
        """Deletes one rollout, and returns how many that were."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How far the trainer's log-probabilities of the sampled tokens are from the rollout's.

    Attributes:
        absolute: Mean of ``|trainer - rollout|``, in nats.
        kl: Estimate of KL(rollout || trainer) in nats: mean of ``exp(d) - 1 - d``, ``d = trainer - rollout``.
    """

    absolute: float = 0.0
    kl: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainerFigures:
    """What the trainer measured, over the requests whose routing arrived intact; zero without any.

    Attributes:
        failures: What was missing or different, empty if all arrived as it was sent.
        intact: Requests whose routing arrived exactly as the rollout process sent it.
        rows: Routed tokens of these requests; of each, all but the last sampled token.
        sampled: Tokens compared for the mismatch.
        routing_bytes: Size of the routing read.
        disagreement: Share of expert choices of the rollout that the trainer's own routers do not make, per layer.
        token_disagreement: Share of routed tokens with at least one such choice in any layer.
        without_replay: Mismatch when the trainer's own routers choose.
        with_replay: Mismatch when the recorded selection is replayed.
        get_seconds: Duration of every get that brought a record, the wait for it included.
        seconds: Duration of the whole training side, the wait for the rollout included.
        transports: How the routing came from the rollout's worker, if the store fetches it from there.
    """

    failures: list[str]
    intact: int
    rows: int
    sampled: int
    routing_bytes: int
    disagreement: list[float]
    token_disagreement: float
    without_replay: Mismatch
    with_replay: Mismatch
    get_seconds: list[float]
    seconds: float
    transports: list[str] = field(default_factory=list)


def check(job: DemoJob, handover: Handover, record: Any) -> list[str]:
    """Compares a record with what the rollout process said about it beside the store.

    Args:
        job: The job.
        handover: The rollout process's message about this request.
        record: The ``RoutingRecord`` read under its id.

    Returns:
        Every difference, empty if there is none.
    """
    model = job.model
    found = []
    if record.schema != job.schema:
        found.append(f"{handover.rollout_id}: schema is {record.schema}, the model has {job.schema}")
    # The last sampled token never went through the rollout model.
    expected = (len(model.moe_layer_ids), len(handover.tokens) - 1, model.top_k)
    if record.routing.shape != expected:
        found.append(f"{handover.rollout_id}: shape is {record.routing.shape}, expected {expected}")
    if digest(record.routing) != handover.sha256:
        found.append(f"{handover.rollout_id}: SHA-256 differs from what the rollout process sent")
    return found


def choice_disagreement(rollout: NDArray[Any], trainer: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns which of the rollout's expert choices the trainer does not make, whatever their order.

    Args:
        rollout: Expert ids ``[layers, tokens, top_k]``.
        trainer: Expert ids of the same tokens, same shape.

    Returns:
        bool, same shape as ``rollout``.
    """
    result: NDArray[np.bool_] = ~(rollout[..., :, None] == trainer[..., None, :]).any(axis=-1)
    return result


class _Comparison:
    """Recomputes requests with and without replay and keeps the sums."""

    def __init__(self, job: DemoJob) -> None:
        self._model = MoeTransformer(job.model, half=False)
        self._disagreeing: list[NDArray[np.bool_]] = []
        self._without: list[NDArray[np.float64]] = []
        self._with: list[NDArray[np.float64]] = []

    def add(self, handover: Handover, routing: NDArray[Any]) -> None:
        own, without = self._recompute(handover, None)
        _, replayed = self._recompute(handover, routing)
        self._disagreeing.append(choice_disagreement(routing, own))
        self._without.append(without)
        self._with.append(replayed)

    def _recompute(
        self, handover: Handover, replay: NDArray[Any] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns the routing ``[layers, tokens, top_k]`` and trainer minus rollout log-probs of sampled tokens."""
        tokens = np.array(handover.tokens, np.int64)
        inputs = tokens[None, :-1]
        forward = self._model.forward(
            inputs,
            np.zeros(1, np.int64),
            KVCache.empty(self._model.config, 1, inputs.shape[1]),
            replay=None if replay is None else replay[:, None],
        )
        first = handover.prompt_tokens - 1
        logprobs = log_softmax(forward.logits[0, first:])
        sampled = np.take_along_axis(logprobs, tokens[first + 1 :, None], axis=1)[:, 0]
        return forward.routing[:, 0], sampled.astype(np.float64) - np.array(handover.logprobs)

    def figures(
        self, failures: list[str], routing_bytes: int, get_seconds: list[float], began: float
    ) -> TrainerFigures:
        per_layer: list[float] = []
        per_token = 0.0
        if self._disagreeing:
            disagreeing = np.concatenate(self._disagreeing, axis=1)
            per_layer = disagreeing.mean(axis=(1, 2)).tolist()
            per_token = float(disagreeing.any(axis=(0, 2)).mean())
        return TrainerFigures(
            failures=failures,
            intact=len(self._disagreeing),
            rows=sum(each.shape[1] for each in self._disagreeing),
            sampled=sum(map(len, self._without)),
            routing_bytes=routing_bytes,
            disagreement=per_layer,
            token_disagreement=per_token,
            without_replay=_mismatch(self._without),
            with_replay=_mismatch(self._with),
            get_seconds=get_seconds,
            seconds=time.perf_counter() - began,
        )


def train(
    job: DemoJob, store: Store, handovers: Iterable[Handover], progress: Callable[[int, int], None]
) -> TrainerFigures:
    """Gets, checks and replays the routing of every request, in the order in which the rollout process sends them.

    Args:
        job: The job.
        store: Where the routing comes from.
        handovers: The rollout process's messages; their end is the end of the rollout.
        progress: Called with the number of requests dealt with and of all requests.

    Returns:
        The measured figures; a record that fails a check is not replayed.
    """
    began = time.perf_counter()
    comparison = _Comparison(job)
    failures: list[str] = []
    get_seconds: list[float] = []
    routing_bytes = 0
    missing = {job.rollout_id(index) for index in range(job.requests)}
    for done, handover in enumerate(handovers, start=1):
        asked = time.perf_counter()
        try:
            record = store.get(handover.rollout_id, timeout=max(0.0, job.timeout - (asked - began)))
        except RoutingError as error:
            failures.append(f"{handover.rollout_id}: {error.code}: {error}")
        else:
            get_seconds.append(time.perf_counter() - asked)
            different = check(job, handover, record)
            failures += different
            if not different:
                routing_bytes += record.routing.nbytes
                comparison.add(handover, record.routing)
            if job.release:
                store.delete(handover.rollout_id)
        missing.discard(handover.rollout_id)
        progress(done, job.requests)
    if missing:
        names = ", ".join(sorted(missing)[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
        failures.append(f"{len(missing)} of {job.requests} requests never came from the rollout process: {names}")
    return comparison.figures(failures, routing_bytes, get_seconds, began)


def _mismatch(differences: list[NDArray[np.float64]]) -> Mismatch:
    if not differences:
        return Mismatch()
    d = np.concatenate(differences)
    return Mismatch(absolute=float(np.abs(d).mean()), kl=float((np.expm1(d) - d).mean()))


def main() -> int:
    """Entry point of the trainer process; returns the exit code."""

    def body(job: DemoJob, progress: Callable[[int, int], None]) -> TrainerFigures:
        with os.fdopen(job.channel, "rb") as channel, open_store(job.store, schema=job.schema) as store:
            # A line without its end is what a killed rollout process leaves behind.
            lines = (line for line in channel if line.endswith(b"\n"))
            handovers = (msgspec.json.decode(line, type=Handover) for line in lines)
            return replace(train(job, store, handovers, progress), transports=list(transports_of(store)))

    return run_process(body)


if __name__ == "__main__":
    sys.exit(main())
