"""``fd-routing diff``: how far two recorded routings agree, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice, store_options
from fastdeploy_routing_plugins.cli.export import read_safetensors
from fastdeploy_routing_plugins.cli.failures import UsageProblem, naming
from fastdeploy_routing_plugins.cli.options import choice_option, common_options, parse_range
from fastdeploy_routing_plugins.cli.output import Output, show_id, show_numbers, show_share
from fastdeploy_routing_plugins.cli.plotting import plot_option, short_id
from fastdeploy_routing_plugins.comparison import compare
from fastdeploy_routing_plugins.errors import StoreError
from fastdeploy_routing_plugins.keys import RoutingKey
from fastdeploy_routing_plugins.store.selection import bounds

if TYPE_CHECKING:
    from collections.abc import Container

    from fastdeploy_routing_plugins.cli.plotting import Plot
    from fastdeploy_routing_plugins.comparison import Comparison, OnlyOne
    from fastdeploy_routing_plugins.record import RoutingRecord
    from fastdeploy_routing_plugins.store.sync import SyncStore

_FILE, _NO_FILE = ".safetensors", ".npy"


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@choice_option
@click.option("--layer-ids", callback=parse_range, metavar="A:B", help="Layers by the model's own numbers, half-open.")
@click.option("--tokens", callback=parse_range, metavar="A:B", help="Absolute tokens, half-open.")
@click.option("--ids", "all_ids", is_flag=True, help="A and B are rollout ids, even if they look like files.")
@plot_option
@store_options
@common_options
@click.pass_obj
def command(
    out: Output,
    choose: StoreChoice,
    a: str,
    b: str,
    choice: int,
    layer_ids: slice | None,
    tokens: slice | None,
    all_ids: bool,
    plot: Plot | None,
) -> int:  # fmt: skip
    """Show how far two recorded routings agree: the share of agreeing experts in each layer.

    A and B are rollout ids, or files that end in .safetensors, as `get` writes them. Layers are compared by the
    model's own numbers, tokens by their positions; the order of a token's experts does not matter.

    Exits with 0 if both are the same, 1 if they differ, 2 if they cannot be compared.
    """
    out.trouble = 2
    files = {text: _is_file(text, all_ids) for text in (a, b)}
    loaded = {text: read_safetensors(Path(text)) for text, is_file in files.items() if is_file}
    if len(loaded) < len(files):
        with choose.open(out) as store:
            for text, is_file in files.items():
                if not is_file:
                    loaded[text] = _get(store, RoutingKey(text, choice), tokens)
            found = compare(loaded[a], loaded[b], tokens=tokens, layer_ids=_wanted(layer_ids))
    else:
        found = compare(loaded[a], loaded[b], tokens=tokens, layer_ids=_wanted(layer_ids))
    if not out.document(_document(found, loaded[a], loaded[b], files[a], files[b], a, b)):
        _print(out, found, _name(a, files[a], choice), _name(b, files[b], choice))
    if plot is not None:
        from fastdeploy_routing_plugins.cli import figures  # noqa: PLC0415 - only for pictures

        names = [Path(text).name if files[text] else short_id(text, choice) for text in (a, b)]
        plot.save(lambda figure: figures.agreement(figure, found, *names), width=8, height=4.5)
        out.line(f"plot -> {plot.path}")
    return 0 if found.same else 1


def _is_file(text: str, all_ids: bool) -> bool:
    if not all_ids and text.endswith(_NO_FILE):
        raise UsageProblem(
            f"{text!r} does not say which experts, layers and tokens it holds",
            f"`get` writes {_FILE} files, which do; --ids if it is a rollout id",
        )
    return not all_ids and text.endswith(_FILE)


def _get(store: SyncStore, key: RoutingKey, tokens: slice | None) -> RoutingRecord:
    """Reads a rollout, or those of the tokens that it has."""
    try:
        if tokens is None:
            return store.get(key)
        start, stop = bounds("tokens", tokens)
        total = store.status(key).total_tokens
        if total is not None:
            start, stop = min(start, total), total if stop is None else min(stop, total)
        return store.get(key, tokens=slice(start, stop))
    except StoreError as err:
        err.message = naming(key, err.message)
        raise


def _wanted(layers: slice | None) -> Container[int] | None:
    if layers is None:
        return None
    start, stop = bounds("layers", layers)
    return range(start, 2**31 if stop is None else stop)


def _name(text: str, is_file: bool, choice: int) -> str:
    return text if is_file else show_id(text, choice)


def _side(record: RoutingRecord, only: OnlyOne, file: str | None) -> dict[str, Any]:
    return {
        "id": record.key.rollout_id,
        "choice": record.key.choice,
        "file": file,
        "attempt": record.attempt,
        "layer_ids": list(record.layer_ids),
        "tokens": list(record.part.tokens),
        "only_here": {"layer_ids": list(only.layer_ids), "tokens": [list(tokens) for tokens in only.tokens]},
    }


def _document(
    found: Comparison, of_a: RoutingRecord, of_b: RoutingRecord, a_file: bool, b_file: bool, a: str, b: str
) -> dict[str, Any]:
    return {
        "a": _side(of_a, found.only_a, a if a_file else None),
        "b": _side(of_b, found.only_b, b if b_file else None),
        "same": found.same,
        "num_experts": found.num_experts,
        "top_k": found.top_k,
        "tokens": list(found.tokens),
        "num_tokens": found.num_tokens,
        "agreement": found.agreement,
        "same_share": found.same_share,
        "rows": found.rows,
        "different_rows": found.rows - found.same_rows,
        "layers": [
            {
                "layer_id": layer.layer_id,
                "agreement": layer.agreement,
                "same_share": layer.same_share,
                "different_rows": layer.rows - layer.same,
            }
            for layer in found.layers
        ],
    }


def _print(out: Output, found: Comparison, a: str, b: str) -> None:
    ids = show_numbers([layer.layer_id for layer in found.layers])
    out.line(f"{'A':9} {a}")
    out.line(f"{'B':9} {b}")
    start, stop = found.tokens
    out.line(f"{'compared':9} layers {ids}, tokens {start}:{stop}, top-{found.top_k} of {found.num_experts} experts")
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        if only.layer_ids:
            out.line(f"{'only in ' + name:9} layers {show_numbers(only.layer_ids)}")
        if only.tokens:
            out.line(f"{'only in ' + name:9} tokens {', '.join(f'{start}:{stop}' for start, stop in only.tokens)}")
    out.line()
    rows = [(str(layer.layer_id), layer.shared, layer.same, layer.rows) for layer in found.layers]
    out.table(
        ("LAYER", "AGREEING EXPERTS", "SAME SETS", "TOKENS THAT DIFFER"),
        [
            (name, show_share(shared, count * found.top_k), show_share(same, count), str(count - same))
            for name, shared, same, count in [*rows, ("all", found.shared, found.same_rows, found.rows)]
        ],
        right="rrrr",
    )
    out.line()
    out.line("same" if found.same else "different")
