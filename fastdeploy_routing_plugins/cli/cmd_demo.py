"""``fd-routing demo``: the whole way with a small model, rollout and training in two processes."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, own_namespace_store_options
from fastdeploy_routing_plugins.cli.cmd_try import throw_away
from fastdeploy_routing_plugins.cli.demoing import TRANSPORTS, emptier, prepared, retains
from fastdeploy_routing_plugins.cli.failures import Failure, UsageProblem
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.cli.output import Output, show_bytes, show_time
from fastdeploy_routing_plugins.cli.plotting import plot_option
from fastdeploy_routing_plugins.cli.signals import cleaning_up, no_orphans
from fastdeploy_routing_plugins.demo.run import run_demo
from fastdeploy_routing_plugins.opening import open_store
from fastdeploy_routing_plugins.resolving.sources import (
    CONFIG_VARIABLE,
    NAMESPACE_VARIABLE,
    OPTIONS_KEY,
    STORE_KEY,
    split_name,
)
from fastdeploy_routing_plugins.spec import Capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.cli.plotting import Plot
    from fastdeploy_routing_plugins.demo.run import DemoReport
    from fastdeploy_routing_plugins.resolver import ResolvedStore

_PHASES = ("rollout", "trainer")


@click.command("demo")
@click.option("--requests", type=click.IntRange(1), default=32, show_default=True, help="Requests to sample.")
@click.option("--tokens", type=click.IntRange(1), default=96, show_default=True, help="Tokens to sample for each.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights, prompts and sampling.")
@click.option("--sabotage", is_flag=True, help="Swap two records, which must be noticed.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=120.0, show_default=True, metavar="SECONDS", help="When to give up."
)
@click.option("--keep", is_flag=True, help="Leave the records in the store.")
@click.option("--transport", type=click.Choice(TRANSPORTS), help="How routing comes to the trainer; for --store rdma.")
@plot_option
@own_namespace_store_options
@common_options
@click.pass_obj
def command(
    out: Output,
    choose: StoreChoice,
    requests: int,
    tokens: int,
    seed: int,
    sabotage: bool,
    timeout: float,
    keep: bool,
    transport: str | None,
    plot: Plot | None,
) -> int:  # fmt: skip
    """Run a small Mixture-of-Experts model in a rollout process, and replay its routing in a trainer process.

    Routing goes from the rollout process through a writer, its worker and a store to the trainer. The store is the
    one that is named, in a namespace of its own; without one, and with --store local alone, a folder of its own.
    --plot draws what replay changes. Exits with 1 if anything is missing or differs, or if replay does not help.
    """
    if sabotage and requests < 2:
        raise UsageProblem("--sabotage swaps two records", "use --requests 2 or more")
    failures: list[str] = []
    with cleaning_up() as stop, ExitStack() as ends:
        if choose.config is None and choose.directory is None and split_name(choose.store or "local")[0] == "local":
            folder = tempfile.mkdtemp(prefix="fd-routing-demo-")
            if not keep:
                ends.callback(shutil.rmtree, folder, ignore_errors=True)
            choose = replace(choose, directory=folder)
        store = replace(choose, namespace=f"fd-routing-demo-{uuid.uuid4().hex[:12]}").resolve()
        if lacks := (Capability.READ | Capability.LIST) & ~store.spec.capabilities:
            raise UsageProblem(
                f"a trainer cannot read from store {store.name!r}: it lacks {lacks.name}", "choose another"
            )
        store = ends.enter_context(prepared(store, transport, keep=keep))
        opened = None
        if not keep:
            # Also shows, before two processes are started, whether the store opens at all.
            opened = ends.enter_context(open_store(store))
            ends.enter_context(throw_away(opened, out, failures))
        ends.enter_context(_hidden(CONFIG_VARIABLE, NAMESPACE_VARIABLE))
        bars = ends.enter_context(out.progress(_PHASES, requests))
        ends.enter_context(no_orphans())

        def progress(phase: str, done: int, total: int) -> None:
            stop.check()
            bars(_PHASES.index(phase), done)

        report = run_demo(
            {
                STORE_KEY: f"{store.name}@{store.distribution}",
                OPTIONS_KEY: {**store.options, "namespace": store.namespace},
            },
            requests=requests,
            new_tokens=tokens,
            seed=seed,
            sabotage=sabotage,
            timeout=timeout,
            progress=progress,
            release=retains(store),
            at_end=emptier(opened),
        )
    failures = [*report.failures, *failures]
    document = {**report.to_dict(), "ok": not failures, "failures": failures}
    document |= {"store": store.name, "namespace": store.namespace, "kept": keep}
    if not out.document(document):
        _print(out, report, store)
        for failure in failures:
            out.note(f"error: {failure}")
        out.line("demo ok" if not failures else "demo failed")
    if keep:
        out.note(f"look at the records: {_look(store)}")
    if plot is not None:
        _draw(plot, report)
        out.line(f"plot -> {plot.path}")
    return 1 if failures else 0


def _draw(plot: Plot, report: DemoReport) -> None:
    if not report.intact:
        raise Failure("plot", "there is nothing to draw: no record arrived")
    from fastdeploy_routing_plugins.cli import figures  # noqa: PLC0415 - only for pictures

    plot.save(lambda figure: figures.replay(figure, report), width=10, height=4.5)


@contextmanager
def _hidden(*variables: str) -> Iterator[None]:
    """Hides environment variables from child processes, which are told everything by their job."""
    before = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def _look(store: ResolvedStore) -> str:
    options: dict[str, Any] = store.options
    directory = str(options.get("store_dir", ""))
    how = ["--dir", directory] if store.name == "local" else ["--store", store.name, "--config", "..."]
    return shlex.join(["fd-routing", "ls", *how, "--namespace", store.namespace])


def _print(out: Output, report: DemoReport, store: ResolvedStore) -> None:
    rows = [
        ("store", f"{store.name} ({store.distribution} {store.version})"),
        ("model", f"{len(report.layer_ids)} MoE layers, {report.num_experts} experts, top-{report.top_k}"),
        ("records that arrived exactly", f"{report.intact} of {report.requests}"),
    ]
    if report.intact:
        layers = report.disagreement_per_layer
        rows += [
            (
                "router decisions that disagree without replay",
                f"{report.disagreement:.2%} (by layer {min(layers):.2%} to {max(layers):.2%}; "
                f"some in {report.token_disagreement:.1%} of the tokens)",
            ),
            ("log-prob mismatch without replay", f"{report.logprob_mismatch_without_replay:.3e} nats"),
            ("log-prob mismatch with replay", f"{report.logprob_mismatch_with_replay:.3e} nats"),
            (
                "KL(rollout || trainer) without, with replay",
                f"{report.kl_without_replay:.2e}, {report.kl_with_replay:.2e}",
            ),
            ("routing per token", f"{show_bytes(report.bytes_per_token)} ({report.tokens} tokens)"),
        ]
    if report.hand_over_max_s:
        rows += [
            ("transport", report.transport),
            ("hand-over to the writer", _times(report.hand_over_median_s, report.hand_over_max_s)),
            ("store, in the writer's worker", _times(report.store_median_s, report.store_max_s)),
        ]
    if report.get_max_s:
        rows.append(("get, waiting included", _times(report.get_median_s, report.get_max_s)))
    rows.append(("time", f"{show_time(report.wall_s)}"))
    out.table(("WHAT", "RESULT"), rows)


def _times(median: float, longest: float) -> str:
    return f"median {show_time(median)}, max {show_time(longest)}"
