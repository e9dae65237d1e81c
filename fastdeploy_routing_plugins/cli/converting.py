"""What ``fd-routing convert`` needs: the model's schema from options, payloads from files, routing into a store."""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.convert import fastdeploy, p2pstore, payload, pdtensor, sglang, vllm
from fastdeploy_routing_plugins.names import MAX_LAYERS
from fastdeploy_routing_plugins.resolving.jsontext import parse_text
from fastdeploy_routing_plugins.schema import RoutingSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import BinaryIO

    from fastdeploy_routing_plugins.convert.rows import ForeignRows
    from fastdeploy_routing_plugins.keys import RoutingKey
    from fastdeploy_routing_plugins.store.sync import SyncStore

FORMATS = {
    "sglang": ("num_hidden_layers", "start", "num_tokens"),
    "vllm": ("num_hidden_layers", "start", "num_tokens"),
    "fastdeploy": ("dtype", "num_tokens"),
    "p2pstore": ("dtype",),
    "pdtensor": (),
}
"""The formats, and which options each has."""
_REPLIES: dict[str, Any] = {"sglang": sglang, "vllm": vllm, "fastdeploy": fastdeploy}
_FIELDS = ("num_experts", "top_k", "layer_ids")
_RANGE = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?", re.ASCII)
_MAX_FILE = payload.MAX_BYTES // 2 * 3  # base64 takes 4 bytes for 3, and there is JSON around it
_CHUNK = 1 << 20


# --- the model --------------------------------------------------------------------------------------------------


def schema_options(function: Callable[..., int]) -> Callable[..., int]:
    """Adds the options that state the model's schema; the command gets it as ``schema``."""

    @functools.wraps(function)
    def wrapped(*args: Any, stated: str | None, **kwargs: Any) -> int:
        said = {} if stated is None else parse_text(stated, "--schema")[0]
        if unknown := sorted(set(said).difference(_FIELDS)):
            raise UsageProblem(f"--schema has unknown keys: {', '.join(unknown)}", f"it has {', '.join(_FIELDS)}")
        options = {name: kwargs.pop(name) for name in _FIELDS}
        said |= {name: value for name, value in options.items() if value is not None}
        if missing := [_flag(name) for name in _FIELDS if name not in said]:
            raise UsageProblem(
                f"routing from elsewhere does not say what the model is like: {', '.join(missing)} missing",
                "for example --num-experts 128 --top-k 8 --layer-ids 1:47",
            )
        return function(*args, schema=RoutingSchema(**said), **kwargs)

    for option in (
        click.option("--layer-ids", callback=_parse_layers, metavar="A:B,...", help="Its MoE layers, such as 1:47."),
        click.option("--top-k", type=click.IntRange(1), metavar="K", help="Experts chosen per token."),
        click.option("--num-experts", type=click.IntRange(1), metavar="N", help="Routed experts of a layer."),
        click.option("--schema", "stated", metavar="JSON|@FILE", help="These three of the model as one object."),
    ):
        wrapped = option(wrapped)
    return wrapped


def _parse_layers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    ids: list[int] = []
    for piece in value.split(","):
        match = _RANGE.fullmatch(piece.strip())
        start, stop = (int(match[1]), int(match[2] or int(match[1]) + 1)) if match else (0, 0)
        if match is None or stop - start + len(ids) > MAX_LAYERS:
            raise click.BadParameter(f"{piece!r} is no layer such as 5 and no range such as 1:47", ctx, param)
        ids += range(start, stop)
    return tuple(ids)


def _flag(name: str) -> str:
    return "--hidden-layers" if name == "num_hidden_layers" else f"--{name.replace('_', '-')}"


# --- payloads ---------------------------------------------------------------------------------------------------


def convert(path: str, form: str, schema: RoutingSchema, options: Mapping[str, Any]) -> list[tuple[int, ForeignRows]]:
    """Returns ``(choice, routing)`` for each choice in a payload.

    Args:
        path: A file, ``-`` for stdin.
        form: One of ``FORMATS``.
        schema: The model's schema.
        options: What the converters take besides, None where the command line does not say.

    Raises:
        InvalidRecordError: it holds no routing in that format.
        UsageProblem: an option is not for this format, or the file cannot be read.
    """
    how = {name: value for name, value in options.items() if value is not None}
    check_options(form, how)
    data = _read(path)
    if form == "p2pstore":
        return [(0, p2pstore.rows(data, schema, **how))]
    if form == "pdtensor":
        return [(0, pdtensor.decode(data, schema))]
    module, head = _REPLIES[form], data.lstrip()[:1]
    if head in (b"{", b"["):
        found: list[tuple[int, ForeignRows]] = module.read(data, schema, **how)
        return found
    text = payload.parsed(data, str, "JSON text") if head == b'"' else data.strip()
    return [(0, module.rows(text, schema, **how))]


def check_options(form: str, options: Mapping[str, Any]) -> None:
    """Raises UsageProblem if an option is given that the format does not have."""
    if wrong := [_flag(name) for name, value in options.items() if value is not None and name not in FORMATS[form]]:
        raise UsageProblem(f"{', '.join(wrong)}: not for {form}")


def _read(path: str) -> bytes:
    try:
        if path == "-":
            if sys.stdin is None:
                raise UsageProblem("stdin is closed")
            return _all_of(sys.stdin.buffer)
        with open(path, "rb") as file:
            return _all_of(file)
    except OSError as err:
        raise UsageProblem(f"cannot read {path!r}: {err.strerror or err}") from err


def _all_of(file: BinaryIO) -> bytes:
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size > _MAX_FILE:
        raise payload.too_large(found.st_size)
    chunks, nbytes = [], 0
    while chunk := file.read(_CHUNK):
        chunks.append(chunk)
        nbytes += len(chunk)
        if nbytes > _MAX_FILE:
            raise payload.too_large(nbytes)
    return b"".join(chunks)


# --- into a store -----------------------------------------------------------------------------------------------


def put(store: SyncStore | None, key: RoutingKey, rows: Sequence[ForeignRows], attempt: int) -> dict[str, Any]:
    """Puts one choice's routing, and returns what was put.

    Args:
        store: None: only check what would be put.
        key: Which rollout.
        rows: Its routing; what the engine did not know is left out, and readers are told that it is missing.
        attempt: Number of the attempt.

    Raises:
        RoutingError: as ``put``.
    """
    parts = [part for each in rows for part in each.parts()]
    total = rows[0].total_tokens
    result: dict[str, Any] = {
        "id": key.rollout_id,
        "choice": key.choice,
        "parts": [{"layers": list(part.part.layers), "tokens": list(part.part.tokens)} for part in parts],
        "total_tokens": total,
        "complete": sum(len(part) * part.part.num_layers for part in parts) == (total or 0) * rows[0].schema.num_layers
        and total is not None,
        "bytes": sum(len(part) * part.part.num_layers * part.schema.row_bytes for part in parts),
        "there_already": store is not None and bool(parts),
    }
    for part in parts:
        if store is None:
            part.record(key)
        else:
            outcome = store.put(key, part.rows, schema=part.schema, attempt=attempt, **part.place)
            result["there_already"] &= outcome.duplicate
    if store is not None and not parts and total is not None:
        store.seal(key, total, attempt=attempt)
    return result
