"""``fd-routing try``: a round trip through a store with made-up routing, timed, and removed again."""

from __future__ import annotations

import statistics
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import click
import numpy as np

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, own_namespace_store_options
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.cli.output import Output, show_bytes, show_time
from fastdeploy_routing_plugins.cli.signals import cleaning_up
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.schema import RoutingSchema
from fastdeploy_routing_plugins.spec import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins.store.sync import SyncStore

T = TypeVar("T")

_SCHEMA = RoutingSchema(num_experts=128, top_k=8, layer_ids=range(48))


@dataclass(slots=True)
class _Timings:
    """Seconds that each step took, in the order in which steps were first made."""

    steps: dict[str, list[float]] = field(default_factory=dict)

    def run(self, step: str, call: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = call()
        self.steps.setdefault(step, []).append(time.perf_counter() - start)
        return result


@click.command("try")
@click.option("--tokens", type=click.IntRange(1, 10**6), default=2048, show_default=True, help="Tokens of a rollout.")
@click.option("--rounds", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many rollouts.")
@own_namespace_store_options
@common_options
@click.pass_obj
def command(out: Output, choose: StoreChoice, tokens: int, rounds: int) -> int:
    """Put, find, get, compare and delete made-up routing (48 layers, top-8 of 128), with timings.

    Works in a namespace of its own, which is removed afterwards.
    """
    choose = replace(choose, namespace=f"fd-routing-try-{uuid.uuid4().hex[:12]}")
    timings = _Timings()
    failures: list[str] = []
    with cleaning_up() as stop, choose.open(out, existing=False) as store, throw_away(store, out, failures):
        readable = Capability.READ | Capability.LIST in store.resolved.spec.capabilities
        with out.progress([f"trying {store.resolved.name}"], rounds) as advance:
            for number in range(rounds):
                stop.check()
                _round_trip(store, f"try:{number}:0:0", tokens, number, readable, timings, failures)
                advance(0, number + 1)
        name, nbytes = store.resolved.name, _SCHEMA.num_layers * tokens * _SCHEMA.row_bytes
    report = {
        "store": name,
        "ok": not failures,
        "failures": failures,
        "readable": readable,
        "rounds": rounds,
        "bytes": nbytes,
        "seconds": {
            step: {"median": statistics.median(took), "max": max(took)} for step, took in timings.steps.items()
        },
    }
    if not out.document(report):
        rows = [
            (
                step,
                show_time(statistics.median(took)),
                show_time(max(took)),
                f"{show_bytes(nbytes / statistics.median(took))}/s" if step in ("put", "get") else "",
            )
            for step, took in timings.steps.items()
        ]
        out.table(("STEP", "MEDIAN", "MAX", "RATE"), rows, right=" rrr")
        if not readable:
            out.line(f"{name} keeps nothing, so nothing could be read back")
        out.line(
            f"{name} works: {rounds} x {show_bytes(nbytes)} went in and came back"
            if readable and not failures
            else f"{name} accepted {rounds} x {show_bytes(nbytes)}"
        )
        for failure in failures:
            out.note(f"error: {failure}")
    return 1 if failures else 0


def _round_trip(
    store: SyncStore,
    rollout_id: str,
    tokens: int,
    seed: int,
    readable: bool,
    timings: _Timings,
    failures: list[str],
) -> None:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, _SCHEMA.num_experts, (_SCHEMA.num_layers, tokens, 1))
    routing = (first + np.arange(_SCHEMA.top_k) * 16) % _SCHEMA.num_experts  # distinct experts for every token
    routing = routing.astype(_SCHEMA.dtype)
    timings.run("put", lambda: store.put(rollout_id, routing, schema=_SCHEMA))
    if not readable:
        return
    timings.run("find", lambda: store.status(rollout_id))
    record = timings.run("get", lambda: store.get(rollout_id))
    if not np.array_equal(record.routing, routing):
        failures.append(f"{rollout_id} came back changed")
    part = timings.run("get one layer", lambda: store.get(rollout_id, layers=7, tokens=(tokens // 4, tokens // 2)))
    if not np.array_equal(part.routing, routing[7:8, tokens // 4 : tokens // 2]):
        failures.append(f"a range of {rollout_id} came back changed")
    if timings.run("delete", lambda: store.delete(rollout_id)) != 1:
        failures.append(f"{rollout_id} was not there to be deleted")


@contextmanager
def throw_away(store: SyncStore, out: Output, failures: list[str]) -> Iterator[None]:
    """Empties the store's namespace at the end, whatever happened."""
    try:
        yield
    finally:
        if Capability.LIST in store.resolved.spec.capabilities:
            try:
                store.clear(everything=True)
            except RoutingError as err:
                failures.append(f"namespace {store.namespace!r} could not be emptied: {err.message}")
                out.note(f"warning: {failures[-1]}")
