"""``fd-routing rm``: deletes rollouts, after saying which and asking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.asking import confirmed
from fastdeploy_routing_plugins.cli.choosing import StoreChoice, store_options
from fastdeploy_routing_plugins.cli.cmd_ls import show_rollouts
from fastdeploy_routing_plugins.cli.options import common_options, selection_options
from fastdeploy_routing_plugins.cli.output import Output, show_bytes
from fastdeploy_routing_plugins.cli.selecting import pick
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.keys import RoutingKey

_BATCH = 64


@click.command("rm")
@selection_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@store_options
@common_options
@click.pass_obj
def command(
    out: Output,
    choose: StoreChoice,
    ids: Sequence[str],
    prefix: str | None,
    everything: bool,
    choice: int,
    yes: bool,
    dry_run: bool,
) -> int:
    """Delete rollouts, with all their attempts: those named, those under a prefix, or all of the namespace."""
    deleted = 0
    refused = False
    with choose.open(out) as store:
        found, absent = pick(out, store, ids, prefix, everything, choice)
        size = f"{counted(len(found), 'rollout')} ({show_bytes(sum(status.nbytes for status in found))})"
        where = f"namespace {store.namespace!r} of store {store.resolved.name!r}"
        if dry_run:
            show_rollouts(out, found)
            out.note(f"would delete {size} of {where}")
        elif found and not yes and not confirmed(f"Delete {size} of {where}?", "deletes"):
            refused = True
            out.note("nothing was deleted")
        elif found:
            with out.progress(["deleting"], len(found)) as advance:
                for start in range(0, len(found), _BATCH):
                    deleted += store.delete(*[status.key for status in found[start : start + _BATCH]])
                    advance(0, min(start + _BATCH, len(found)))
    report = {
        "namespace": store.namespace,
        "dry_run": dry_run,
        "deleted": deleted,
        "rollouts": [_name(status.key) for status in found],
        "absent": [_name(key) for key in absent],
    }
    if not out.document(report) and not dry_run and not refused:
        out.line(f"deleted {counted(deleted, 'rollout')}")
    return 1 if absent or refused else 0


def _name(key: RoutingKey) -> dict[str, Any]:
    return {"id": key.rollout_id, "choice": key.choice, "kind": key.kind}
