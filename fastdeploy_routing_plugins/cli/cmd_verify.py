"""``fd-routing verify``: reads rollouts and checks every byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, store_options
from fastdeploy_routing_plugins.cli.cmd_stat import why_aborted
from fastdeploy_routing_plugins.cli.failures import naming
from fastdeploy_routing_plugins.cli.options import common_options, selection_options
from fastdeploy_routing_plugins.cli.output import ID_LIMIT, Output, show_bytes, show_id
from fastdeploy_routing_plugins.cli.selecting import pick
from fastdeploy_routing_plugins.errors import AbsentError, RoutingError, StoreClosedError, StoreUnavailableError
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.keys import RoutingKey
    from fastdeploy_routing_plugins.store.sync import SyncStore


@click.command("verify")
@selection_options
@store_options
@common_options
@click.pass_obj
def command(
    out: Output, choose: StoreChoice, ids: Sequence[str], prefix: str | None, everything: bool, choice: int
) -> int:
    """Read rollouts and check everything: digests, ids, coverage, repeated experts; warn of dead layers.

    Exits with 1 if anything is wrong or missing. Warnings, and rollouts that were aborted, do not fail.
    """
    with choose.open(out) as store:
        found, absent = pick(out, store, ids, prefix, everything, choice)
        results = [_absent(key) for key in absent]
        selected = not ids
        gone = 0  # since they were listed
        with out.progress(["verifying"], len(found)) as advance:
            for done, status in enumerate(found, 1):
                result = _verify(store, status.key)
                if selected and not result["ok"] and _is_gone(store, status.key):
                    gone += 1
                else:
                    results.append(result)
                advance(0, done)
        namespace = store.namespace
    bad = [result for result in results if not result["ok"]]
    nbytes = sum(result["bytes"] for result in results)
    warned = sum(bool(result["warnings"]) for result in results)
    aborted = sum(result["aborted"] for result in results if result["ok"])
    summary = {"checked": len(results), "bad": len(bad), "aborted": aborted, "warned": warned, "bytes": nbytes}
    summary["gone"] = gone
    if not out.document({"namespace": namespace, "ok": not bad, **summary, "rollouts": results}):
        rows = [
            (show_id(result["id"], result["choice"], limit=ID_LIMIT), word, text)
            for result in results
            for word, texts in (
                ("bad", result["problems"]),
                ("aborted", [result["aborted_because"] or ""] if result["aborted"] else []),
                ("warning", result["warnings"]),
            )
            for text in texts
        ]
        if rows:
            out.table(("ID", "RESULT", "WHY"), rows)
        out.line(
            f"{counted(len(results), 'rollout')} checked ({show_bytes(nbytes)}): "
            + f"{len(results) - len(bad) - aborted} ok, "
            + (f"{aborted} aborted, " if aborted else "")
            + f"{len(bad)} bad, {warned} with warnings"
            + (f"; {gone} deleted meanwhile" if gone else "")
        )
    return 1 if bad else 0


def _verify(store: SyncStore, key: RoutingKey) -> dict[str, Any]:
    result: dict[str, Any] = {"id": key.rollout_id, "choice": key.choice, "kind": key.kind}
    result |= {"aborted": False, "aborted_because": None}
    try:
        report = store.verify(key)
    except (StoreUnavailableError, StoreClosedError):
        raise
    except RoutingError as err:
        return {**result, "ok": False, "bytes": 0, "problems": [naming(key, err.message)], "warnings": []}
    aborted = report.status.state == "aborted"
    return {
        **result,
        "aborted": aborted,
        "aborted_because": why_aborted(store, key) if aborted else None,
        "ok": report.ok,
        "bytes": report.nbytes,
        "problems": [naming(key, problem) for problem in report.problems],
        "warnings": list(report.warnings),
    }


def _is_gone(store: SyncStore, key: RoutingKey) -> bool:
    try:
        store.status(key)
    except AbsentError:
        return True
    return False


def _absent(key: RoutingKey) -> dict[str, Any]:
    problems = [f"not found: {key}"]
    return {
        "id": key.rollout_id,
        "choice": key.choice,
        "kind": key.kind,
        "aborted": False,
        "aborted_because": None,
        "ok": False,
        "bytes": 0,
        "problems": problems,
        "warnings": [],
    }
