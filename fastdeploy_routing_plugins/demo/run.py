"""Starts the two processes of the demo, watches them, and judges what they measured."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from fastdeploy_routing_plugins.arena.room import SHM
from fastdeploy_routing_plugins.demo.job import DemoJob
from fastdeploy_routing_plugins.demo.processes import Process, watch
from fastdeploy_routing_plugins.demo.rollout import RolloutFigures
from fastdeploy_routing_plugins.demo.trainer import TrainerFigures
from fastdeploy_routing_plugins.writer.leftovers import end_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins.demo.processes import Progress

# The trainer gives up waiting a little before the whole demo does, so that its report names what is missing.
_TRAINER_SHARE = 0.8
# How long a store worker whose rollout process was stopped may go on with what it was handed.
_FAREWELL = 2.0


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo found. Figures that were not measured before it failed are zero or empty.

    Attributes:
        ok: Whether every record arrived exactly and replay did what it is for.
        failures: Why not, empty if ``ok``.
        run: Unique name of this run; its rollout ids are ``demo-<run>:<request>:0:0``.
        requests: Requests sampled.
        intact: Requests whose routing arrived exactly as it was sent.
        tokens: Routed tokens of these requests.
        sampled_tokens: Sampled tokens compared.
        num_experts: Experts per layer.
        top_k: Experts chosen per token and layer.
        layer_ids: Ids of the Mixture-of-Experts layers.
        bytes_per_token: Bytes of routing per routed token, all layers.
        disagreement: Share of the rollout's expert choices that the trainer's own routers do not make.
        disagreement_per_layer: The same for each layer of ``layer_ids``.
        token_disagreement: Share of tokens with at least one such choice in any layer.
        logprob_mismatch_without_replay: Mean ``|trainer - rollout|`` log-probability of sampled tokens, in nats.
        logprob_mismatch_with_replay: The same with the recorded expert ids replayed.
        kl_without_replay: Estimate of KL(rollout || trainer), in nats.
        kl_with_replay: The same with the recorded expert ids replayed.
        hand_over_median_s: Median time that handing a request's routing over held the rollout up, in seconds.
        hand_over_max_s: Longest such time, in seconds.
        store_median_s: Median time that the store worker's store took for a request, in seconds.
        store_max_s: Longest such time, in seconds.
        transport: How the routing travels, as the writer says, and over what it came to the trainer.
        get_median_s: Median time of a get, the wait for the routing included, in seconds.
        get_max_s: Longest get, in seconds.
        rollout_s: Time of the rollout process, without its start, in seconds.
        trainer_s: Time of the trainer process, without its start, the wait for the rollout included, in seconds.
        wall_s: Time of the whole demo, in seconds.
    """

    ok: bool
    failures: tuple[str, ...]
    run: str
    requests: int
    num_experts: int
    top_k: int
    layer_ids: tuple[int, ...]
    wall_s: float
    intact: int = 0
    tokens: int = 0
    sampled_tokens: int = 0
    bytes_per_token: float = 0.0
    disagreement: float = 0.0
    disagreement_per_layer: tuple[float, ...] = ()
    token_disagreement: float = 0.0
    logprob_mismatch_without_replay: float = 0.0
    logprob_mismatch_with_replay: float = 0.0
    kl_without_replay: float = 0.0
    kl_with_replay: float = 0.0
    hand_over_median_s: float = 0.0
    hand_over_max_s: float = 0.0
    store_median_s: float = 0.0
    store_max_s: float = 0.0
    transport: str = ""
    get_median_s: float = 0.0
    get_max_s: float = 0.0
    rollout_s: float = 0.0
    trainer_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON-ready values."""
        return asdict(self)


def run_demo(
    config: dict[str, Any],
    *,
    requests: int = 32,
    new_tokens: int = 96,
    seed: int = 0,
    sabotage: bool = False,
    timeout: float = 120.0,
    progress: Progress | None = None,
    release: bool = False,
    at_end: Callable[[], None] = lambda: None,
) -> DemoReport:
    """Rolls out a Mixture-of-Experts model in one process and replays its routing in another, through a store.

    The rollout process samples in float16 and hands each request's routing to a writer, whose worker, a third process,
    puts it into the store; the trainer process reads each request's routing from the store, compares
    it with a SHA-256 that came beside the store, and recomputes the log-probabilities in float32 with its own routing
    and with the replayed one.

    Args:
        config: Store configuration, ``{"routing_store_type": ..., "routing_store_config": {...}}``.
        requests: Number of requests, at least one, and two for ``sabotage``.
        new_tokens: Tokens that each request samples at least.
        seed: Seed of weights, prompts and sampling, not negative.
        sabotage: Swap the records of two requests, which the demo must notice.
        timeout: Seconds after which both processes are stopped and the demo has failed.
        progress: Called with phase (``"rollout"`` or ``"trainer"``), requests done and requests in total.
        release: Whether the trainer deletes what it has read.
        at_end: Called when both processes have ended, before store workers that still run are.

    Returns:
        The report; whatever goes wrong in a process or in the store is among its ``failures``.

    Raises:
        ValueError: An argument is out of its range.
    """
    if requests < 1 + sabotage or new_tokens < 1 or seed < 0 or timeout <= 0:
        raise ValueError("the demo needs requests >= 1 (2 with sabotage), new_tokens >= 1, seed >= 0 and timeout > 0")
    began = time.monotonic()
    processes: dict[str, Process] = {}
    with _arena_dir() as arena_dir:
        job = DemoJob(
            config,
            uuid.uuid4().hex[:8],
            requests,
            new_tokens,
            seed,
            sabotage,
            timeout * _TRAINER_SHARE,
            arena_dir=arena_dir,
            release=release,
        )
        try:
            failures = _run(job, processes, began + timeout, progress or (lambda *_: None))
        finally:
            for process in processes.values():
                process.stop()
            at_end()
    raw = {name: process.result for name, process in processes.items()}
    rollout = None if raw["rollout"] is None else msgspec.convert(raw["rollout"], RolloutFigures)
    trainer = None if raw["trainer"] is None else msgspec.convert(raw["trainer"], TrainerFigures)
    return judge(job, failures, rollout, trainer, time.monotonic() - began)


def _run(job: DemoJob, processes: dict[str, Process], deadline: float, progress: Progress) -> list[str]:
    """Starts both processes and follows them to their end; returns what went wrong."""
    read_end, write_end = os.pipe()
    try:
        processes["rollout"] = Process("rollout", replace(job, channel=write_end))
        processes["trainer"] = Process("trainer", replace(job, channel=read_end))
    finally:
        os.close(read_end)
        os.close(write_end)
    return watch(list(processes.values()), deadline, progress)


@contextmanager
def _arena_dir() -> Iterator[str]:
    """Makes a folder for the demo's shared memory; at the end nobody works in it any more, and it is gone."""
    folder = tempfile.mkdtemp(prefix="fd-routing-demo-", dir=SHM if os.access(SHM, os.W_OK) else None)
    try:
        yield folder
    finally:
        end_workers(folder, _FAREWELL)
        shutil.rmtree(folder, ignore_errors=True)


def judge(
    job: DemoJob,
    failures: list[str],
    rollout: RolloutFigures | None,
    trainer: TrainerFigures | None,
    wall: float,
) -> DemoReport:
    """Puts the figures together and decides whether the demo succeeded.

    Args:
        job: The job that was run.
        failures: What went wrong with the processes.
        rollout: What the rollout process measured, None if it failed.
        trainer: What the trainer measured, None if it failed.
        wall: Seconds that the demo took.

    Returns:
        The report.
    """
    failures = list(failures)
    measured: dict[str, Any] = {}
    if rollout is not None and rollout.hand_over_seconds:
        measured |= {
            "hand_over_median_s": statistics.median(rollout.hand_over_seconds),
            "hand_over_max_s": max(rollout.hand_over_seconds),
            "store_median_s": rollout.store_median_s,
            "store_max_s": rollout.store_max_s,
            "transport": rollout.transport,
            "rollout_s": rollout.seconds,
        }
    if trainer is not None:
        failures += trainer.failures
        measured["trainer_s"] = trainer.seconds
        if rollout is not None and trainer.transports:
            measured["transport"] = f"{rollout.transport}, over {' and '.join(trainer.transports)}"
        if trainer.get_seconds:
            measured |= {
                "get_median_s": statistics.median(trainer.get_seconds),
                "get_max_s": max(trainer.get_seconds),
            }
        if trainer.intact:
            total = statistics.fmean(trainer.disagreement)
            without, replayed = trainer.without_replay, trainer.with_replay
            if total <= 0:
                failures.append("the routers of rollout and trainer never disagreed, so replay proved nothing")
            if replayed.absolute >= without.absolute:
                failures.append(
                    f"replay did not lower the log-prob mismatch: {without.absolute:.2e} nats without, "
                    f"{replayed.absolute:.2e} with"
                )
            measured |= {
                "intact": trainer.intact,
                "tokens": trainer.rows,
                "sampled_tokens": trainer.sampled,
                "bytes_per_token": trainer.routing_bytes / trainer.rows,
                "disagreement": total,
                "disagreement_per_layer": tuple(trainer.disagreement),
                "token_disagreement": trainer.token_disagreement,
                "logprob_mismatch_without_replay": without.absolute,
                "logprob_mismatch_with_replay": replayed.absolute,
                "kl_without_replay": without.kl,
                "kl_with_replay": replayed.kl,
            }
        if trainer.intact < job.requests and not failures:
            failures.append(f"only {trainer.intact} of {job.requests} records arrived intact")
    return DemoReport(
        ok=not failures,
        failures=tuple(failures),
        run=job.run,
        requests=job.requests,
        num_experts=job.model.experts,
        top_k=job.model.top_k,
        layer_ids=job.model.moe_layer_ids,
        wall_s=wall,
        **measured,
    )
