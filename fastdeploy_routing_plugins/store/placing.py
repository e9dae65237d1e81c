"""Where a put belongs: from an array's shape and the caller's ranges to a part and its totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidRecordError
from ..keys import check_int
from ..names import MAX_TOKENS, Part, PartName
from .selection import Selection, bounds

if TYPE_CHECKING:
    from ..schema import RoutingSchema


def place(
    shape: tuple[int, ...], schema: RoutingSchema, layers: Selection, tokens: Selection, total_tokens: int | None
) -> PartName:
    """Returns the part that an array of ``[layers, tokens, top_k]`` fills.

    Args:
        shape: The array's shape.
        schema: The model's schema.
        layers: Positions as the caller stated them; None: all of the schema's layers.
        tokens: Absolute tokens as the caller stated them; None: all tokens of the rollout, so the rows are the total.
        total_tokens: The rollout's total, if the caller knows it.

    Raises:
        InvalidRecordError: rows or layers do not equal what is stated.
        InvalidKeyError: a range is malformed or beyond the totals.
    """
    num_layers, rows = shape[0], shape[1]
    if total_tokens is not None:
        total_tokens = check_int("total_tokens", total_tokens, MAX_TOKENS)
    if tokens is None:
        token_range = 0, rows
        if total_tokens is None:
            total_tokens = rows
        elif total_tokens != rows:
            raise InvalidRecordError(
                f"routing has {rows} rows, total_tokens says {total_tokens}",
                hint="state tokens=(start, stop) for a part; the last token of a rollout has no routing",
            )
    else:
        token_range = _sized("tokens", tokens, rows)
    layer_range = (0, schema.num_layers) if layers is None else _sized("layers", layers, num_layers)
    if num_layers != layer_range[1] - layer_range[0]:
        turned = shape[1] == schema.num_layers
        raise InvalidRecordError(
            f"routing has {num_layers} layers, the schema has {schema.num_layers}: {schema}",
            hint='is it [tokens, layers, top_k]? Then state layout="token_first"'
            if turned
            else "state layers=(start, stop) for some of them; dense layers are not recorded",
        )
    return PartName(
        Part(token_range, layer_range), schema.num_layers, total_tokens, schema.row_bytes, schema.fingerprint
    )


def _sized(what: str, selection: Selection, size: int) -> tuple[int, int]:
    start, stop = bounds(what, selection)
    stop = start + size if stop is None else stop
    if stop - start != size:
        raise InvalidRecordError(f"routing has {size} {what}, the range {start}:{stop} has {stop - start}")
    return start, stop
