"""Trains a small MoE language model with and without routing replay, and shows what replay is good for.

python main.py --seeds 0,1,2 --plot r3_training.png
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import asdict, replace

import click

try:
    from model import ModelConfig
    from plot import plot
    from report import Run, document, lines, problems
    from rollout import Engine
    from train import Job, train
except ModuleNotFoundError as err:
    raise SystemExit(f"error: there is no {err.name}; paddle: pip install 'fastdeploy-routing-plugins[cpu]'") from err

from rich.console import Console
from rich.progress import Progress

from fastdeploy_routing_plugins import ResolvedStore, open_reader, open_store
from fastdeploy_routing_plugins.cli.choosing import StoreChoice, own_namespace_store_options
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.spec import Capability

# Paddle shows every logger's messages. Here and not in main, since the engine's process imports this module, too.
logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.WARNING)


def parse_seeds(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    """Reads ``0,1,2``."""
    try:
        seeds = [int(each) for each in value.split(",")]
    except ValueError:
        raise click.BadParameter("give numbers and commas, such as 0,1,2", ctx, param) from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise click.BadParameter("seeds are different numbers from 0 on", ctx, param)
    return seeds


@click.command()
@click.option("--seeds", callback=parse_seeds, default="0", show_default=True, help="Trains anew for each.")
@click.option("--steps", type=click.IntRange(1), default=Job.steps, show_default=True)
@click.option("--prompts", type=click.IntRange(1), default=Job.prompts, show_default=True, help="In each step.")
@click.option("--group", type=click.IntRange(2), default=Job.group, show_default=True, help="Answers to each prompt.")
@click.option("--tokens", type=click.IntRange(4, 60), default=Job.tokens, show_default=True, help="Longest answer.")
@click.option("--log-every", type=click.IntRange(1), default=Job.log_every, show_default=True, metavar="STEPS")
@click.option("--json", "as_json", is_flag=True, help="Print the curves as one JSON document.")
@click.option("--plot", "picture", metavar="FILE.png", help="Draw the curves; needs matplotlib.")
@click.option("--no-gate", is_flag=True, help="Exit with 0 even if replay does not show what it should.")
@click.option("--keep", is_flag=True, help="Leave the records in the store.")
@own_namespace_store_options
def main(choose: StoreChoice, seeds, as_json, picture, no_gate, keep, **how) -> None:
    """Trains with and without replay. Without a store named, records go through files in a temporary folder."""
    config, job = ModelConfig(), Job(**how)
    try:
        with ExitStack() as ends:
            store = choose_store(choose, keep, ends)
            runs, stored = train_all(store, config, job, seeds, keep)
    except RoutingError as err:
        raise click.ClickException(f"{err.code}: {err}") from err
    found = problems(runs)
    result = {"store": store.name, "namespace": store.namespace, "rollouts_stored": stored}
    result |= {"model": asdict(config), "job": asdict(job), **document(runs)}
    if as_json:
        print(json.dumps(result))
    else:
        for run in runs:
            print(*lines(run), "", sep="\n")
        print(f"{stored} rollouts went through the store {store.name} (namespace {store.namespace})")
    if picture:
        plot(result, picture)
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if found and not no_gate:
        raise SystemExit(1)


def choose_store(choose: StoreChoice, keep: bool, ends: ExitStack) -> ResolvedStore:
    """Returns the store in a namespace of its own, which is emptied at the end."""
    if choose == StoreChoice(alone=True):
        folder = tempfile.mkdtemp(prefix="fd-routing-r3-")
        if not keep:
            ends.callback(shutil.rmtree, folder, ignore_errors=True)
        choose = replace(choose, directory=folder)
    store = replace(choose, namespace=f"r3-training-{uuid.uuid4().hex[:12]}").resolve()
    if Capability.READ | Capability.LIST not in store.spec.capabilities:
        raise click.ClickException(f"nothing can be read from the store {store.name}, so there is nothing to replay")
    if not keep:
        ends.callback(ends.enter_context(open_store(store)).clear, everything=True)
    return store


def train_all(store: ResolvedStore, config: ModelConfig, job: Job, seeds: list[int], keep: bool):
    """Trains each seed without and with replay; returns the runs, and how many rollouts were stored for them."""
    runs = []
    console = Console(stderr=True)
    with (
        Progress(console=console, transient=True, disable=not console.is_terminal) as bars,
        Engine(store, config, keep) as engine,
        open_reader(store, schema=config.schema) as reader,
    ):
        for seed in seeds:
            began = time.monotonic()
            arms = []
            for replay in (False, True):
                task = bars.add_task(f"seed {seed}, {'with' if replay else 'without'} replay", total=job.steps)
                arms.append(
                    train(
                        engine,
                        reader,
                        config,
                        job,
                        seed=seed,
                        replay=replay,
                        progress=lambda task=task: bars.advance(task),
                    )
                )
            runs.append(Run(seed, *arms, seconds=time.monotonic() - began))
        return runs, engine.finish()


if __name__ == "__main__":
    main()
