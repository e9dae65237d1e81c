"""Starts the two processes of the demo, watches them, and judges what they measured."""

from __future__ import annotations

import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any

import msgspec

from fastdeploy_routing_plugins.demo.rollout import DemoJob, Event, RolloutFigures
from fastdeploy_routing_plugins.demo.trainer import TrainerFigures

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[str, int, int], None]

_POLL = 0.05
_GRACE = 1.0
# The trainer gives up waiting a little before the whole demo does, so that its report names what is missing.
_TRAINER_SHARE = 0.8


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
        put_median_s: Median time of a put, in seconds.
        put_max_s: Longest put, in seconds.
        get_median_s: Median time of a get, the wait for the put included, in seconds.
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
    put_median_s: float = 0.0
    put_max_s: float = 0.0
    get_median_s: float = 0.0
    get_max_s: float = 0.0
    rollout_s: float = 0.0
    trainer_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON-ready values."""
        return asdict(self)


class _Process:
    """One process of the demo, its events and its end."""

    def __init__(self, name: str, job: DemoJob) -> None:
        self.name = name
        self.result: dict[str, Any] | None = None
        self.reached = "0 requests"
        self._error = ""
        self._pending = b""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        # One BLAS thread each: the matrices are small, and two processes share what may be two cores.
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with tempfile.TemporaryFile() as stdin:
            stdin.write(msgspec.json.encode(job))
            stdin.seek(0)
            self._popen = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", f"fastdeploy_routing_plugins.demo.{name}"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                pass_fds=(job.channel,),
                env={**os.environ, **threads},
            )
        assert self._popen.stdout is not None
        self.stdout = self._popen.stdout
        os.set_blocking(self.stdout.fileno(), False)

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def read(self, progress: Progress) -> bool:
        """Handles the events that have arrived; returns whether more may come."""
        while True:
            try:
                chunk = os.read(self.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            for line in lines:
                self._handle(msgspec.json.decode(line, type=Event), progress)

    def _handle(self, event: Event, progress: Progress) -> None:
        if event.kind == "progress":
            self.reached = f"{event.done} of {event.total} requests"
            progress(self.name, event.done, event.total)
        elif event.kind == "error":
            self._error = event.message
        else:
            self.result = event.result

    def failure(self) -> str | None:
        """Returns why the process ended without a result, None if it has one."""
        code = self._popen.returncode
        if code == 0 and self.result is not None:
            return None
        how = (
            f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        )
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        why = self._error or (lines[-1] if lines else "it said nothing")
        return f"the {self.name} process {how} after {self.reached}: {why}"

    def stop(self) -> None:
        """Ends the process if it still runs, reaps it and closes its files."""
        if not self.ended:
            self._popen.terminate()
            try:
                self._popen.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        self._popen.wait()
        self.stdout.close()
        self._stderr.close()


def run_demo(
    config: dict[str, Any],
    *,
    requests: int = 32,
    new_tokens: int = 96,
    seed: int = 0,
    sabotage: bool = False,
    timeout: float = 120.0,
    progress: Progress | None = None,
) -> DemoReport:
    """Rolls out a Mixture-of-Experts model in one process and replays its routing in another, through a store.

    The rollout process samples in float16; the trainer process reads each request's routing from the store, compares
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

    Returns:
        The report; whatever goes wrong in a process or in the store is among its ``failures``.

    Raises:
        ValueError: An argument is out of its range.
    """
    if requests < 1 + sabotage or new_tokens < 1 or seed < 0 or timeout <= 0:
        raise ValueError("the demo needs requests >= 1 (2 with sabotage), new_tokens >= 1, seed >= 0 and timeout > 0")
    began = time.monotonic()
    job = DemoJob(config, uuid.uuid4().hex[:8], requests, new_tokens, seed, sabotage, timeout * _TRAINER_SHARE)
    processes: dict[str, _Process] = {}
    try:
        read_end, write_end = os.pipe()
        try:
            processes["rollout"] = _Process("rollout", replace(job, channel=write_end))
            processes["trainer"] = _Process("trainer", replace(job, channel=read_end))
        finally:
            os.close(read_end)
            os.close(write_end)
        failures = _watch(list(processes.values()), began + timeout, progress or (lambda *_: None))
    finally:
        for process in processes.values():
            process.stop()
    raw = {name: process.result for name, process in processes.items()}
    rollout = None if raw["rollout"] is None else msgspec.convert(raw["rollout"], RolloutFigures)
    trainer = None if raw["trainer"] is None else msgspec.convert(raw["trainer"], TrainerFigures)
    return judge(job, failures, rollout, trainer, time.monotonic() - began)


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
    if rollout is not None and rollout.put_seconds:
        measured |= {
            "put_median_s": statistics.median(rollout.put_seconds),
            "put_max_s": max(rollout.put_seconds),
            "rollout_s": rollout.seconds,
        }
    if trainer is not None:
        failures += trainer.failures
        measured["trainer_s"] = trainer.seconds
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


def _watch(processes: list[_Process], deadline: float, progress: Progress) -> list[str]:
    """Follows the processes until both have ended, one has failed or time is up; returns what went wrong."""
    start = time.monotonic()
    running = list(processes)
    failures: list[str] = []
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.stdout, selectors.EVENT_READ, process)
        while running:
            if time.monotonic() >= deadline:
                reached = ", ".join(f"{process.name} did {process.reached}" for process in processes)
                return failures or [f"not finished after {deadline - start:.1f} s: {reached}"]
            for key, _ in selector.select(_POLL):
                if not key.data.read(progress):
                    selector.unregister(key.fileobj)
            for process in [each for each in running if each.ended]:
                running.remove(process)
                process.read(progress)
                failure = process.failure()
                if failure is not None:
                    failures.append(failure)
                    # The other one notices and says what it has, or is stopped by the caller.
                    deadline = min(deadline, time.monotonic() + _GRACE)
    return failures
