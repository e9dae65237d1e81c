"""Ids for rows that nobody recorded: distinct within a row, spread over the experts, and never taken for a record.

A trainer that dispatches padding to experts needs rows that it can dispatch: equal ids in a row break the split sizes
of an all-to-all, and one favourite expert unbalances the others. Which rows are padding is said by a mask, not by a
value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidRecordError
from ..keys import as_int, shown
from ..schema import canonical_dtype

if TYPE_CHECKING:
    from ..arrays import IntArray

_NARROW = 1 << 16  # up to here products of two ids fit 32 bits


def period(num_experts: int, top_k: int) -> int:
    """Returns after how many rows ``spread_rows`` repeats itself; every expert occurs equally often until then."""
    return num_experts // math.gcd(num_experts, top_k)


def spread_rows(count: int, num_experts: int, top_k: int, *, start: int = 0) -> IntArray:
    """Returns rows ``start`` to ``start + count`` of an endless table of padding.

    Any run of consecutive rows names every expert equally often, give or take one, and neighbours in a row are about
    ``num_experts / top_k`` experts apart, so that every rank of an expert-parallel group gets its share.

    Args:
        count: Number of rows.
        num_experts: Logical experts of a layer.
        top_k: Ids of a row, at most ``num_experts``.
        start: First row; pass on where the last call ended, so that several runs together stay balanced.

    Returns:
        ``[count, top_k]`` in the stored dtype of ``num_experts``.

    Raises:
        InvalidRecordError: a row of distinct ids does not exist, since there are fewer experts than ``top_k``.
    """
    if top_k > num_experts:
        raise InvalidRecordError(f"{num_experts} experts do not make a row of {top_k} distinct ids")
    width = np.uint32 if num_experts <= _NARROW else np.uint64
    # Counting on from row to row is what balances; a stride without a common divisor keeps that and spreads a row.
    first = (start % period(num_experts, top_k)) * top_k % num_experts
    turns = (first + np.arange(count * top_k, dtype=np.uint64)) % np.uint64(num_experts)
    ids = turns.astype(width) * width(_stride(num_experts, top_k)) % width(num_experts)
    spread: IntArray = ids.astype(canonical_dtype(num_experts)).reshape(count, top_k)
    return spread


def _stride(num_experts: int, top_k: int) -> int:
    stride = max(1, num_experts // top_k)
    while math.gcd(stride, num_experts) != 1:
        stride += 1
    return stride


def check_fill(fill: Any, dtype: np.dtype[Any]) -> int:
    """Returns the id that a caller asks padding to have.

    Raises:
        InvalidRecordError: it is no integer that ``dtype`` holds.
    """
    number, limits = as_int(fill), np.iinfo(dtype)
    if number is None or not limits.min <= number <= limits.max:
        raise InvalidRecordError(
            f"fill={shown(fill)} is no value of {dtype}, which holds {limits.min} to {limits.max}",
            hint="to_paddle(fill=-1) and to_torch(fill=-1) mark padding in signed integers; the mask does it anyway",
        )
    return number
