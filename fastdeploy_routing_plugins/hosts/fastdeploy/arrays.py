"""What FastDeploy hands over as routing, as integers, without the unfilled rows at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays import layer_first
from ...errors import InvalidRecordError, UnsupportedError
from ...patterns import MAX_BFLOAT16_EXPERTS, MINUS_ONE, decoded, fill_value, rounded, shows_bfloat16

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...schema import RoutingSchema


def refuse_rounded(schema: RoutingSchema, dtype: str) -> None:
    """Refuses a model whose ids FastDeploy's routing buffers cannot hold.

    Raises:
        UnsupportedError: the buffers are bfloat16, and there are more experts than it tells apart.
    """
    if dtype == "uint16" and schema.num_experts > MAX_BFLOAT16_EXPERTS:
        raise UnsupportedError(
            f"FastDeploy keeps ids of {schema.num_experts} experts in Paddle's dtype uint16, which is bfloat16 and "
            f"rounds ids above {MAX_BFLOAT16_EXPERTS}: the routing is lost before any store gets it",
            hint="the routing buffers must be int32 for this model; that has to change in FastDeploy",
        )


def as_array(routing: Any) -> tuple[npt.NDArray[Any], bool]:
    """Returns an array, and whether it is known to hold bfloat16 bit patterns."""
    if isinstance(routing, np.ndarray):
        return routing, False
    bfloat16 = "bfloat16" in str(getattr(routing, "dtype", ""))
    return np.asarray(routing.numpy() if hasattr(routing, "numpy") else routing), bfloat16


def real_rows(routing: Any, schema: RoutingSchema) -> npt.NDArray[Any]:
    """Returns routing as integers ``[layers, tokens, top_k]`` without the rows at the end that nobody filled.

    Those go first: what they hold is no id.

    Raises:
        InvalidRecordError: it holds no integers, or bfloat16 that was rounded, or nobody filled any row.
    """
    array, bfloat16 = as_array(routing)
    return integers(without_padding(layer_first(array, "layer_first")), schema, bfloat16=bfloat16)


def integers(array: npt.NDArray[Any], schema: RoutingSchema, *, bfloat16: bool = False) -> npt.NDArray[Any]:
    """Returns an array, or the integers that it stands for if it is known to hold bfloat16, or shows that.

    Raises:
        InvalidRecordError: it holds bfloat16 that was rounded, or that are no ids.
    """
    if array.dtype != np.uint16 or not (bfloat16 or shows_bfloat16(array, schema)):
        return array
    if schema.num_experts > MAX_BFLOAT16_EXPERTS:
        raise rounded(schema)
    return decoded(array)


def filled(row: npt.NDArray[Any]) -> bool:
    """Whether any id in one token's row, in any layer, is there."""
    fill = fill_value(row.dtype)
    if row.item(0) not in (fill, MINUS_ONE):  # that tells nearly always, and costs least
        return True
    empty = row == fill
    if row.dtype == np.uint16:
        empty |= row == MINUS_ONE
    return not bool(empty.all())


def without_padding(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns ``[layers, tokens, top_k]`` without the rows at the end that nobody filled.

    Raises:
        InvalidRecordError: there are rows, and nobody filled any.
    """
    tokens = array.shape[1]
    if tokens == 0 or filled(array[:, -1]):
        return array
    fill = fill_value(array.dtype)
    empty = array == fill
    if array.dtype == np.uint16:
        empty |= array == MINUS_ONE
    real = np.flatnonzero(~empty.all(axis=(0, 2)))
    if not real.size:
        raise nothing_captured(tokens)
    return array[:, : int(real[-1]) + 1]


def nothing_captured(tokens: int) -> InvalidRecordError:
    """Returns the error of a request whose rows are all unfilled."""
    return InvalidRecordError(
        f"none of {tokens} rows was filled: the engine captured no routing for this request",
        hint="the log of FastDeploy's worker may say why",
    )
