"""``fd-routing convert``: routing in the formats of other systems, into a store or a file."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, store_options
from fastdeploy_routing_plugins.cli.converting import FORMATS, check_options, convert, put, schema_options
from fastdeploy_routing_plugins.cli.export import ENDINGS, about, summary, write_file
from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.files import check_target
from fastdeploy_routing_plugins.cli.importing import import_tree
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.cli.output import Output, show_bytes, show_id
from fastdeploy_routing_plugins.convert.fastdeploy import DTYPES
from fastdeploy_routing_plugins.errors import InvalidRecordError
from fastdeploy_routing_plugins.keys import DEFAULT_NAMESPACE, MAX_ATTEMPT, RoutingKey
from fastdeploy_routing_plugins.spec import Capability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.convert.rows import ForeignRows
    from fastdeploy_routing_plugins.schema import RoutingSchema


@click.command("convert")
@click.argument("form", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@click.argument("path", metavar="PATH")
@click.option("--id", "rollout_id", metavar="ID", help="Put it into the store under this rollout id.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Save as .npy or .safetensors.")
@schema_options
@click.option(
    "--hidden-layers",
    "num_hidden_layers",
    type=click.IntRange(1),
    metavar="N",
    help="sglang, vllm: layers with the dense ones, if the payload has them.",
)
@click.option(
    "--start",
    type=click.IntRange(0),
    metavar="TOKEN",
    help="sglang, vllm: the first row's token, as the request asked for.",
)
@click.option(
    "--num-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens of prompt and completion, instead of what the payload says.",
)
@click.option(
    "--dtype",
    type=click.Choice(list(DTYPES)),
    help="fastdeploy, p2pstore: of the ids, if not as usual for so many experts.",
)
@click.option("--choice", type=click.IntRange(0), help="Only this choice of a payload with several.")
@click.option("--more", is_flag=True, help="More tokens follow in another payload, so the total is not stated.")
@click.option(
    "--attempt",
    type=click.IntRange(0, MAX_ATTEMPT),
    default=0,
    show_default=True,
    help="Number of the attempt in the store.",
)
@click.option("--dry-run", is_flag=True, help="Only read and check.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@store_options
@common_options
@click.pass_obj
def command(
    out: Output,
    /,
    choose: StoreChoice,
    schema: RoutingSchema,
    form: str,
    path: str,
    rollout_id: str | None,
    output: Path | None,
    choice: int | None,
    more: bool,
    attempt: int,
    dry_run: bool,
    force: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Take over routing from another system.

    \b
    FORMAT      PATH (- is stdin)
    sglang      a reply, or its meta_info.routed_experts (base64 of int32)
    vllm        a reply, or a choice's routed_experts (base64 of .npy)
    fastdeploy  a reply in response mode, or its routed_experts
    p2pstore    a value that FastDeploy put into p2pstore, all layers
    pdtensor    a file of FastDeploy's, or its whole folder
    """  # noqa: D301 - the escape is click's mark for a paragraph that is not to be wrapped
    if form == "pdtensor" and os.path.isdir(path):
        check_options(form, options)
        if rollout_id is not None or output is not None or choice is not None or more:
            raise UsageProblem("a folder goes into the store, under the ids that it names", "name one of its files")
        return import_tree(out, choose, path, schema, attempt=attempt, dry_run=dry_run)
    if path != "-" and not os.path.exists(path):
        raise UsageProblem(f"cannot read {path!r}: {os.strerror(errno.ENOENT)}")
    if output is None and rollout_id is None and not dry_run:
        raise UsageProblem("where to?", "--id ID puts it into the store, -o FILE saves it")
    if output is not None:
        check_target(output, force, ENDINGS)
    found = convert(path, form, schema, options)
    if options.get("num_tokens") is None and not all(len(rows) for _, rows in found):
        raise InvalidRecordError(f"there is no routing in {path}", hint="was it cut off?")
    if choice is not None:
        found = [(number, rows) for number, rows in found if number == choice]
        if not found:
            raise UsageProblem(f"there is no routing of choice {choice}")
    if more:
        found = [(number, replace(rows, total_tokens=None)) for number, rows in found]
    name = rollout_id or (output.stem if output is not None else "") or "converted"
    if output is not None:
        return _save(out, found, output, name, choose.namespace, attempt, force=force, dry_run=dry_run)
    return _put(out, choose, found, name, attempt, dry_run=dry_run)


def _save(
    out: Output,
    found: Sequence[tuple[int, ForeignRows]],
    output: Path,
    name: str,
    namespace: str | None,
    attempt: int,
    *,
    force: bool,
    dry_run: bool,
) -> int:
    if len(found) > 1:
        raise UsageProblem(f"there are {len(found)} choices, a file holds one", "--choice says which")
    number, rows = found[0]
    record = rows.record(RoutingKey(name, number), attempt=attempt)
    if not dry_run:
        write_file(output, record, namespace or DEFAULT_NAMESPACE, force)
    report = {
        "id": name,
        "choice": number,
        "file": str(output),
        "dry_run": dry_run,
        **about(record),
    }
    if not out.document(report):
        out.line(f"{summary(record)} -> {output}")
    return 0


def _put(
    out: Output,
    choose: StoreChoice,
    found: Sequence[tuple[int, ForeignRows]],
    name: str,
    attempt: int,
    *,
    dry_run: bool,
) -> int:
    where: dict[str, str] = {}
    spec = None if dry_run else choose.resolve().spec
    if spec is not None and Capability.RETAIN in spec.capabilities:
        raise UsageProblem(
            f"store {spec.name!r} keeps routing in the memory of the process that puts it, and this one ends now",
            "convert to a file with -o, or into another store",
        )
    results = [put(None, RoutingKey(name, number), [rows], attempt) for number, rows in found]  # all, or nothing
    if not dry_run:
        with choose.open(out, existing=False) as store:
            results = [put(store, RoutingKey(name, number), [rows], attempt) for number, rows in found]
            where = {"store": store.resolved.name, "namespace": store.namespace}
    if not out.document({**where, "dry_run": dry_run, "rollouts": results}):
        for each in results:
            tokens = ", ".join("{}:{}".format(*part["tokens"]) for part in each["parts"]) or "none"
            what = f"tokens {tokens} of {each['total_tokens'] or '?'}, {show_bytes(each['bytes'])}"
            known = " (was there already)" if each["there_already"] and not dry_run else ""
            to = "" if dry_run else f" -> {where['store']}"
            out.line(f"{show_id(each['id'], each['choice'])}: {what}{known}{to}")
    return 0
