"""``fd-routing ls``: the rollouts in a store, from names alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, store_options
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.cli.output import ID_LIMIT, Output, show_bytes, show_id
from fastdeploy_routing_plugins.cli.selecting import note_empty
from fastdeploy_routing_plugins.status import State
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.status import RolloutStatus

_HEADERS = ("ID", "STATE", "ATTEMPT", "PARTS", "LAYERS", "TOKENS", "SIZE")
_RIGHT = "  rrrrr"


@click.command("ls")
@click.argument("prefix", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(get_args(State)),
    help="Only those in this state; repeatable.",
)
@store_options
@common_options
@click.pass_obj
def command(out: Output, choose: StoreChoice, prefix: str | None, states: tuple[State, ...]) -> int:
    """List the rollouts in a store.

    PREFIX keeps ids equal to it or continuing after a colon: "x:1" matches "x:1" and "x:1:0", never "x:10".
    """
    with choose.open(out) as store:
        found = store.list(prefix)
        namespace = store.namespace
        if not found and not out.json:
            note_empty(out, store, prefix)
    if states:
        others = len(found)
        found = [status for status in found if status.state in states]
        if others and not found and not out.json:
            out.note(f"none is {' or '.join(states)}; {counted(others, 'rollout')} in other states")
    if not out.document({"namespace": namespace, "rollouts": [status.to_dict() for status in found]}):
        show_rollouts(out, found)
    return 0


def show_rollouts(out: Output, rollouts: Sequence[RolloutStatus]) -> None:
    """Prints a table of rollouts."""
    out.table(
        _HEADERS,
        [
            (
                show_id(status.key.rollout_id, status.key.choice, limit=ID_LIMIT)
                + (f" ({status.key.kind})" if status.key.kind != "routing" else ""),
                status.state,
                str(status.attempt),
                str(len(status.parts)),
                str(status.total_layers),
                "?" if status.total_tokens is None else str(status.total_tokens),
                show_bytes(status.nbytes),
            )
            for status in rollouts
        ],
        right=_RIGHT,
    )
