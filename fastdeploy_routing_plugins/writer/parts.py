"""From what an engine states about a part to the operation that the worker does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRecordError
from ..keys import MAX_ATTEMPT, RoutingKey, as_key, check_int
from ..names import MAX_TOKENS
from ..record import as_spans
from ..store.placing import place
from ..store.selection import Selection, bounds
from .operations import PutOp

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ..record import WeightSpan
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
    weight_versions: Sequence[WeightSpan],
) -> PutOp:
    """Checks everything about a part but its ids; see ``RoutingWriter.submit`` for the arguments.

    Raises:
        InvalidRecordError: the shape does not fit the schema or the ranges stated.
        InvalidKeyError: the id, choice, attempt or a range cannot be stored.
    """
    whole = as_key(key, choice)
    if shape[2] != schema.top_k:
        raise InvalidRecordError(f"routing has {shape[2]} ids a row, the schema has top_k={schema.top_k}")
    what = place(shape, schema, layers, tokens, total_tokens)
    spans = as_spans(weight_versions, what.part.tokens)
    return PutOp(
        **named(whole),
        attempt=check_int("attempt", attempt, MAX_ATTEMPT),
        layers=what.part.layers,
        tokens=what.part.tokens,
        total_tokens=what.total_tokens,
        dtype=dtype.str,
        time_ns=time.time_ns(),
        nbytes=shape[0] * shape[1] * shape[2] * dtype.itemsize,
        weight_versions=tuple((span.start, span.stop, span.version) for span in spans),
    )


def reserved_shape(schema: RoutingSchema, num_tokens: int, layers: Selection) -> tuple[int, int, int]:
    """Returns the shape of a reservation's view, ``[layers, tokens, top_k]``."""
    rows = check_int("num_tokens", num_tokens, MAX_TOKENS)
    if layers is None:
        return schema.num_layers, rows, schema.top_k
    start, stop = bounds("layers", layers)
    if stop is None:
        raise InvalidRecordError("layers must say where they end", hint="layers=(start, stop)")
    return stop - start, rows, schema.top_k


def named(key: RoutingKey) -> dict[str, Any]:
    """Returns a key as an operation's fields."""
    return {"rollout_id": key.rollout_id, "choice": key.choice, "kind": key.kind}
