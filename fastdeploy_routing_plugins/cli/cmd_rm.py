"""``fd-routing rm``: deletes rollouts, after saying which and asking."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, pick, store_options
from fastdeploy_routing_plugins.cli.cmd_ls import show_rollouts
from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.options import common_options, selection_options
from fastdeploy_routing_plugins.cli.output import Output, clean, show_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    with choose.open() as store:
        found, absent = pick(store, ids, prefix, everything, choice)
        for key in absent:
            out.note(f"not found: {key}")
        ids_found = [{"id": status.key.rollout_id, "choice": status.key.choice} for status in found]
        report = {"namespace": store.namespace, "rollouts": ids_found, "absent": [key.rollout_id for key in absent]}
        size = f"{len(found)} rollouts ({show_bytes(sum(s.nbytes for s in found))}) of namespace {store.namespace!r}"
        deleted = 0
        if dry_run:
            show_rollouts(out, found)
            out.note(f"would delete {size}")
        elif found:
            if not yes and not _confirmed(f"Delete {size} from store {store.resolved.name!r}?"):
                out.document({**report, "deleted": 0})
                out.note("nothing was deleted")
                return 1
            with out.progress(["deleting"], len(found)) as advance:
                for start in range(0, len(found), _BATCH):
                    deleted += store.delete(*[status.key for status in found[start : start + _BATCH]])
                    advance(0, min(start + _BATCH, len(found)))
            out.line(f"deleted {deleted} rollouts")
        else:
            out.note("nothing to delete")
        out.document({**report, "deleted": deleted, "dry_run": dry_run})
    return 1 if absent else 0


def _confirmed(question: str) -> bool:
    print(f"{clean(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        print(file=sys.stderr)
        raise UsageProblem("nobody answered", "--yes deletes without asking")
    return answer.strip().lower() in ("y", "yes")
