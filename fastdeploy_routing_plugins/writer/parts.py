"""From what an engine states about a part to the operation that the worker does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import as_numpy, layer_first
from ..errors import InvalidRecordError
from ..keys import DEFAULT_KIND, MAX_ATTEMPT, MAX_ID_BYTES, RoutingKey, as_key, check_int
from ..names import MAX_TOKENS
from ..record import as_spans
from ..store.placing import place
from ..store.routing_store import MAX_REASON
from ..store.selection import Selection, bounds
from .operations import AbortOp, PutOp, SealOp

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..record import Versions, WeightSpan
    from ..schema import RoutingSchema


def put_operation(
    schema: RoutingSchema,
    key: str | RoutingKey,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    layers: Selection,
    tokens: Selection,
    total_tokens: int | None,
    choice: int,
    attempt: int,
    weight_versions: Versions,
    token_first: bool,
) -> PutOp:
    """Checks everything about a part but its ids.

    ``token_first`` is the payload's order, ``shape`` always ``(layers, tokens, top_k)``; see ``RoutingWriter.submit``
    for the other arguments.

    Raises:
        InvalidRecordError: the shape does not fit the schema or the ranges stated.
        InvalidKeyError: the id, choice, attempt or a range cannot be stored.
    """
    # What engines hand over nearly always is recognised first: an engine's thread waits meanwhile, and every function
    # that has not run for a while costs it some microseconds. Everything else goes the general way, with its messages.
    if type(key) is str and 0 < len(key) <= MAX_ID_BYTES and key.isascii() and type(choice) is int and choice == 0:
        rollout_id, number, kind = key, 0, DEFAULT_KIND
    else:
        whole = as_key(key, choice)
        rollout_id, number, kind = whole.rollout_id, whole.choice, whole.kind
    if shape[2] != schema.top_k:
        raise InvalidRecordError(
            f"routing has {shape[2]} ids a row, the schema has top_k={schema.top_k}", hint="is it of this model?"
        )
    total, rows = len(schema.layer_ids), shape[1]
    layer_range, token_range = (0, total), (0, rows)
    usual = tokens is None and total_tokens is None and rows <= MAX_TOKENS
    if usual and layers is None and shape[0] == total:
        total_tokens = rows
    elif usual and type(layers) is int and shape[0] == 1 and 0 <= layers < total:
        layer_range, total_tokens = (layers, layers + 1), rows
    else:
        what = place(shape, schema, layers, tokens, total_tokens)
        layer_range, token_range, total_tokens = what.part.layers, what.part.tokens, what.total_tokens
    spans: tuple[WeightSpan, ...] = ()
    if type(weight_versions) is not tuple or weight_versions:
        spans = as_spans(weight_versions, token_range)
    return PutOp(
        rollout_id=rollout_id,
        choice=number,
        kind=kind,
        attempt=attempt if type(attempt) is int and attempt == 0 else check_int("attempt", attempt, MAX_ATTEMPT),
        layers=layer_range,
        tokens=token_range,
        total_tokens=total_tokens,
        dtype=dtype.str,
        time_ns=time.time_ns(),
        nbytes=shape[0] * shape[1] * shape[2] * dtype.itemsize,
        weight_versions=tuple((span.start, span.stop, span.version) for span in spans) if spans else (),
        token_first=token_first,
    )


def laid_out(
    routing: Any, layout: str, *, may_turn: bool
) -> tuple[npt.NDArray[Any], np.dtype[Any], tuple[int, ...], bool]:
    """Returns how a part is copied: the array as it is walked, the payload's dtype, the part's shape, and its order.

    Args:
        routing: See ``RoutingWriter.submit``.
        layout: See ``RoutingWriter.submit``.
        may_turn: Whether an array that lies token by token may be copied so, ``[tokens, layers, top_k]``: the worker
            has more time to turn it than the engine. The last value returned says whether that is so.
    """
    array = layer_first(as_numpy(routing), layout)
    dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    if may_turn and not array.flags.c_contiguous and array.transpose(1, 0, 2).flags.c_contiguous:
        return array.transpose(1, 0, 2), dtype, array.shape, True
    return array, dtype, array.shape, False


def reserved_shape(schema: RoutingSchema, num_tokens: int, layers: Selection) -> tuple[int, int, int]:
    """Returns the shape of a reservation's view, ``[layers, tokens, top_k]``."""
    if layers is None and type(num_tokens) is int and 0 <= num_tokens <= MAX_TOKENS:
        return len(schema.layer_ids), num_tokens, schema.top_k
    rows = check_int("num_tokens", num_tokens, MAX_TOKENS)
    if layers is None:
        return schema.num_layers, rows, schema.top_k
    start, stop = bounds("layers", layers)
    if stop is None:
        raise InvalidRecordError("layers must say where they end", hint="layers=(start, stop)")
    return stop - start, rows, schema.top_k


def native_integers(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Returns the dtype of a reservation's view.

    Raises:
        InvalidRecordError: it is no native integer type.
    """
    wanted = np.dtype(dtype)
    if wanted.kind not in "iu" or not wanted.isnative:
        raise InvalidRecordError(f"dtype must be a native integer type, got {wanted}")
    return wanted


def named(key: RoutingKey) -> dict[str, Any]:
    """Returns a key as an operation's fields."""
    return {"rollout_id": key.rollout_id, "choice": key.choice, "kind": key.kind}


def seal_operation(key: str | RoutingKey, total_tokens: int, choice: int, attempt: int) -> SealOp:
    """Returns the operation of ``RoutingWriter.seal``; raises InvalidKeyError."""
    whole = named(as_key(key, choice))
    total = check_int("total_tokens", total_tokens, MAX_TOKENS)
    return SealOp(**whole, attempt=check_int("attempt", attempt, MAX_ATTEMPT), total_tokens=total)


def abort_operation(key: str | RoutingKey, reason: str, choice: int, attempt: int) -> AbortOp:
    """Returns the operation of ``RoutingWriter.abort``; raises InvalidKeyError."""
    whole = named(as_key(key, choice))
    text = str(reason)[:MAX_REASON].encode(errors="backslashreplace").decode()
    return AbortOp(**whole, attempt=check_int("attempt", attempt, MAX_ATTEMPT), reason=text)
