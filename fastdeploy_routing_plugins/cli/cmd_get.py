"""``fd-routing get``: a rollout's routing as a file."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, store_options
from fastdeploy_routing_plugins.cli.export import ENDINGS, about, summary, write_file
from fastdeploy_routing_plugins.cli.failures import UsageProblem, naming
from fastdeploy_routing_plugins.cli.files import check_target
from fastdeploy_routing_plugins.cli.options import choice_option, common_options, parse_range
from fastdeploy_routing_plugins.cli.output import Output, show_id, show_numbers
from fastdeploy_routing_plugins.cli.selecting import other_choices
from fastdeploy_routing_plugins.errors import IncompleteError, PendingError, StoreError
from fastdeploy_routing_plugins.keys import RoutingKey
from fastdeploy_routing_plugins.store.selection import bounds

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.store.sync import SyncStore


@click.command("get")
@click.argument("rollout_id", metavar="ID")
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to: .npy or .safetensors.",
)
@choice_option
@click.option("--layers", callback=parse_range, metavar="A:B", help="Positions in the recorded layers, half-open.")
@click.option("--layer-ids", callback=parse_range, metavar="A:B", help="Layers by the model's own numbers, half-open.")
@click.option("--tokens", callback=parse_range, metavar="A:B", help="Absolute tokens, half-open.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for what is absent.",
)
@click.option("--no-verify", is_flag=True, help="Do not compare digests.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@store_options
@common_options
@click.pass_obj
def command(
    out: Output,
    choose: StoreChoice,
    rollout_id: str,
    output: Path,
    choice: int,
    layers: slice | None,
    layer_ids: slice | None,
    tokens: slice | None,
    timeout: float,
    no_verify: bool,
    force: bool,
) -> int:  # fmt: skip
    """Save a rollout's routing, [layers, tokens, top_k], or a range of it.

    FILE appears whole or not at all. A .safetensors file has the format of the store `local`: tensor "routing" and a
    header with schema, range and digests.
    """
    check_target(output, force, ENDINGS)
    if layers is not None and layer_ids is not None:
        raise UsageProblem("--layers and --layer-ids exclude each other: positions, or the model's own numbers")
    key = RoutingKey(rollout_id, choice)
    with choose.open(out) as store:
        try:
            with other_choices(store, key):
                if layer_ids is not None:
                    try:
                        store.wait(key, timeout=timeout)
                    except (PendingError, IncompleteError):  # what is wanted of it may be there
                        if not store.status(key).parts:
                            raise
                    layers, timeout = _positions(store, key, layer_ids), 0.0
                record = store.get(key, timeout=timeout, layers=layers, tokens=tokens, verify=not no_verify)
        except StoreError as err:
            err.message = naming(key, err.message)
            raise
        # Written before the store closes, since the array may be a view of the store's memory.
        write_file(output, record, store.namespace, force)
    report = {
        "id": record.key.rollout_id,
        "choice": record.key.choice,
        "file": str(output),
        **about(record),
        "layer_ids": list(record.layer_ids),
        "num_experts": record.schema.num_experts,
        "attempt": record.attempt,
        "verified": not no_verify,
    }
    if not out.document(report):
        out.line(f"{show_id(rollout_id, choice)}: {summary(record)} -> {output}")
    return 0


def _positions(store: SyncStore, key: RoutingKey, wanted: slice) -> slice:
    """Returns the positions of the recorded layers with the model's numbers in a range."""
    schema = store.stat(key).schema
    start, stop = bounds("layer-ids", wanted)
    ids = () if schema is None else schema.layer_ids
    first, last = bisect_left(ids, start), len(ids) if stop is None else bisect_left(ids, stop)
    if first >= last:
        asked = f"{start}:{'' if stop is None else stop}"
        raise UsageProblem(f"no layer with a number in {asked} is recorded", f"recorded are {show_numbers(ids)}")
    return slice(first, last)
