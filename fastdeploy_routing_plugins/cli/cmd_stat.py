"""``fd-routing stat``: one rollout: shape, coverage, who wrote it, whether it is undamaged, how experts are used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, store_options
from fastdeploy_routing_plugins.cli.failures import Failure, UsageProblem
from fastdeploy_routing_plugins.cli.options import choice_option, common_options
from fastdeploy_routing_plugins.cli.output import Output, show_bytes, show_id, show_numbers
from fastdeploy_routing_plugins.cli.plotting import plot_option, short_id
from fastdeploy_routing_plugins.cli.selecting import other_choices
from fastdeploy_routing_plugins.errors import AbortedError, CorruptDataError, StoreError
from fastdeploy_routing_plugins.keys import RoutingKey
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.cli.plotting import Plot
    from fastdeploy_routing_plugins.status import RolloutStatus
    from fastdeploy_routing_plugins.store.inspection import RolloutStat, VerifyReport
    from fastdeploy_routing_plugins.store.sync import SyncStore

_BAR = 32


@click.command("stat")
@click.argument("rollout_id", metavar="ID")
@choice_option
@click.option("--quick", is_flag=True, help="Read headers only: no digests, no use of experts.")
@plot_option
@store_options
@common_options
@click.pass_obj
def command(out: Output, choose: StoreChoice, rollout_id: str, choice: int, quick: bool, plot: Plot | None) -> int:
    """Describe one rollout: shape, coverage, digests, and how each layer uses its experts, which --plot draws.

    Exits with 1 if it is absent or damaged.
    """
    if quick and plot is not None:
        raise UsageProblem("--plot draws the use of experts, which --quick does not look at")
    key = RoutingKey(rollout_id, choice)
    with choose.open(out) as store:
        with other_choices(store, key):
            report = None if quick else store.verify(key)
            status = store.status(key) if report is None else report.status
        problems = list(report.problems) if report is not None else []
        info = None
        try:
            info = store.stat(key)
        except CorruptDataError as err:
            problems = problems or [err.message]
        reason = why_aborted(store, key) if status.state == "aborted" else None
    # What is not covered yet is a problem to a full check, but no damage.
    harmless = report is not None and status.state in ("incomplete", "pending")
    damaged = len(problems) > harmless
    digests = "damaged" if damaged else "not checked" if report is None else "ok" if status.parts else "none"
    document = _describe(status, info, report)
    document |= {
        "aborted_because": reason,
        "digests": digests,
        "problems": problems,
        "warnings": list(report.warnings) if report else [],
    }
    if not out.document(document):
        _print(out, document)
    if plot is not None:
        _draw(plot, report, key)
        out.line(f"plot -> {plot.path}")
    return 1 if damaged else 0


def _draw(plot: Plot, report: VerifyReport | None, key: RoutingKey) -> None:
    if report is None or report.counts is None or report.schema is None or not report.counts.any():
        raise Failure(
            "plot", "there is no use of experts to draw: no part could be read, or there are too many experts"
        )
    from fastdeploy_routing_plugins.cli import figures  # noqa: PLC0415 - only for pictures

    counts, layer_ids, name = report.counts, report.schema.layer_ids, short_id(key.rollout_id, key.choice)
    height = min(12.0, 2.5 + 0.12 * len(layer_ids))
    plot.save(lambda figure: figures.expert_load(figure, counts, layer_ids, name), width=10, height=height)


def why_aborted(store: SyncStore, key: RoutingKey) -> str | None:
    """Returns the reason that the producer gave, or None if it cannot be read."""
    try:
        store.wait(key, timeout=0)
    except AbortedError as err:
        return str(err.facts.get("reason", ""))
    except StoreError:  # removed or superseded meanwhile, or a damaged mark
        pass
    return None


def _describe(status: RolloutStatus, info: RolloutStat | None, report: VerifyReport | None) -> dict[str, Any]:
    schema = info.schema if info is not None else report.schema if report is not None else None
    document = status.to_dict()
    document |= {"num_experts": None, "top_k": None, "dtype": None, "layer_ids": None, "shape": None}
    if schema is not None:
        document |= {"num_experts": schema.num_experts, "top_k": schema.top_k, "dtype": schema.dtype}
        document |= {"layer_ids": list(schema.layer_ids)}
        document |= {"shape": [schema.num_layers, status.total_tokens, schema.top_k]}
    if info is not None:
        spans = [{"start": span.start, "stop": span.stop, "version": span.version} for span in info.weight_versions]
        document |= {"producers": list(info.producers), "time_ns": info.time_ns, "weight_versions": spans}
    document["layers"] = _layers(report)
    return document


def _layers(report: VerifyReport | None) -> list[dict[str, Any]]:
    if report is None or report.counts is None or report.schema is None:
        return []
    layers = []
    for layer_id, used, counts in zip(report.schema.layer_ids, report.experts_used, report.counts, strict=True):
        total = int(counts.sum())
        busiest = int(counts.argmax())
        edges = [index * len(counts) // min(_BAR, len(counts)) for index in range(min(_BAR, len(counts)))]
        layers.append(
            {
                "layer_id": layer_id,
                "experts_used": used,
                "busiest_expert": busiest if total else None,
                "busiest_share": int(counts[busiest]) / total if total else 0.0,
                "load": [
                    int(counts[start:stop].sum()) for start, stop in zip(edges, [*edges[1:], len(counts)], strict=True)
                ],
            }
        )
    return layers


def _print(out: Output, doc: dict[str, Any]) -> None:
    experts = doc["num_experts"]
    tokens = "an unknown number of" if doc["total_tokens"] is None else doc["total_tokens"]
    rows = [
        ("id", show_id(doc["id"], doc["choice"])),
        ("state", doc["state"] + (f": {doc['aborted_because']}" if doc["aborted_because"] else "")),
        ("shape", f"{doc['total_layers']} layers, {tokens} tokens" + (f", top-{doc['top_k']}" if experts else "")),
        (
            "stored",
            f"{counted(doc['parts'], 'part')}, {show_bytes(doc['bytes'])}" + (f", {doc['dtype']}" if experts else ""),
        ),
        ("attempt", f"{doc['attempt']}" + (f" (stored: {doc['attempts']})" if len(doc["attempts"]) > 1 else "")),
        ("digests", doc["digests"]),
    ]
    if experts:
        rows.append(("experts", f"{experts} in each of the model's layers {show_numbers(doc['layer_ids'])}"))
    rows += [("missing", f"layers {_pair(m['layers'])}, tokens {_pair(m['tokens'])}") for m in doc["missing"]]
    for span in doc.get("weight_versions", ()):
        rows.append(("weights", f"tokens {span['start']}:{span['stop']} of version {span['version']}"))
    rows += [("producer", producer) for producer in doc.get("producers", ())]
    if doc.get("time_ns"):
        rows.append(("put at", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(doc["time_ns"] // 10**9))))
    for name, text in rows:
        out.line(f"{name:9} {text}")
    if doc["layers"]:
        out.line()
        out.table(
            ("LAYER", "USED", "BUSIEST", f"LOAD OF EXPERTS 0..{experts - 1}"),
            [
                (
                    str(layer["layer_id"]),
                    f"{layer['experts_used']}/{experts}",
                    f"{layer['busiest_expert']} ({layer['busiest_share']:.1%})" if sum(layer["load"]) else "-",
                    out.spark(layer["load"]),
                )
                for layer in doc["layers"]
            ],
            right="rrr",
        )
    for problem in doc["problems"]:
        out.note(f"problem: {problem}")
    for warning in doc["warnings"]:
        out.note(f"warning: {warning}")


def _pair(bounds: list[int]) -> str:
    return f"{bounds[0]}:{bounds[1]}"
