"""``fd-routing convert pdtensor FOLDER``: FastDeploy's whole file tree into a store."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.cli.converting import put
from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.output import ID_LIMIT, show_bytes, show_id
from fastdeploy_routing_plugins.convert import pdtensor
from fastdeploy_routing_plugins.errors import RoutingError, StoreClosedError, StoreUnavailableError
from fastdeploy_routing_plugins.keys import RoutingKey
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.cli.choosing import StoreChoice
    from fastdeploy_routing_plugins.cli.output import Output
    from fastdeploy_routing_plugins.schema import RoutingSchema
    from fastdeploy_routing_plugins.store.sync import SyncStore

_SHOWN = 20  # paths that people see; --json has them all


def import_tree(
    out: Output, choose: StoreChoice, path: str, schema: RoutingSchema, *, attempt: int, dry_run: bool
) -> int:
    """Puts every rollout of a tree; one that cannot be put does not keep the others from it.

    Args:
        out: Where results go.
        choose: Which store.
        path: The tree's folder.
        schema: The model's schema.
        attempt: Number of the attempts in the store.
        dry_run: Whether everything is only read and checked.

    Returns:
        The exit code: 1 if a rollout could not be put.

    Raises:
        UsageProblem: there is no rollout in the folder.
        StoreUnavailableError: the folder cannot be listed, or the store cannot take anything now.
    """
    path, tree = pdtensor.sole(path) or (path, pdtensor.find(path))
    if not tree.rollouts:
        raise UsageProblem(
            f"there is no rollout in {path!r}", "it holds ID/ID.pdtensor or ID/layer_N.pdtensor of each"
        )
    results = []
    with nullcontext() if dry_run else choose.open(out, existing=False) as store:
        with out.progress(["checking" if dry_run else "importing"], len(tree.rollouts)) as advance:
            for done, files in enumerate(tree.rollouts, 1):
                results.append(_one(store, path, files, schema, attempt))
                advance(0, done)
        where = {} if store is None else {"store": store.resolved.name, "namespace": store.namespace}
    failed = [each for each in results if each["error"]]
    good = [each for each in results if not each["error"]]
    counts = {
        "imported": 0 if dry_run else len(good),
        "there_already": sum(each["there_already"] for each in good),
        "incomplete": sum(not each["complete"] for each in good),
        "failed": len(failed),
        "bytes": sum(each["bytes"] for each in good),
    }
    if not out.document({**where, "dry_run": dry_run, **counts, "rollouts": results, "skipped": list(tree.skipped)}):
        if failed:
            out.table(
                ("ID", "WHY NOT"),
                [(show_id(each["id"], limit=ID_LIMIT), each["error"]["message"]) for each in failed],
            )
        for skipped in tree.skipped[:_SHOWN]:
            out.note(f"skipped: {skipped}")
        if len(tree.skipped) > _SHOWN:
            out.note(f"skipped: {len(tree.skipped) - _SHOWN} more, --json lists all")
        out.line(_summary(len(good), counts, dry_run))
    return 1 if failed else 0


def _one(
    store: SyncStore | None, path: str, files: pdtensor.Files, schema: RoutingSchema, attempt: int
) -> dict[str, Any]:
    loaded = False
    try:
        key = RoutingKey(files.rollout_id)
        rows = pdtensor.load(path, files, schema)
        loaded = True
        return {**put(store, key, rows, attempt), "error": None}
    except RoutingError as err:
        if loaded and isinstance(err, (StoreUnavailableError, StoreClosedError)):
            raise
        return {"id": files.rollout_id, "choice": 0, "error": {"code": err.code, "message": err.message}}


def _summary(good: int, counts: dict[str, int], dry_run: bool) -> str:
    text = f"{counted(good, 'rollout')} {'can be ' if dry_run else ''}imported ({show_bytes(counts['bytes'])})"
    if counts["there_already"] and not dry_run:
        text += f", {counts['there_already']} of them were there already"
    if counts["incomplete"]:
        text += f", {counts['incomplete']} of them incomplete"
    return f"{text}, {counts['failed']} failed"
