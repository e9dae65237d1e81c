"""Integers that came as something else: the bit patterns of bfloat16, and what marks rows that nobody filled.

Paddle has no uint16: its dtype of that name is bfloat16, which holds integers exactly up to 256. From 255 experts on
FastDeploy keeps ids in it, so that NumPy shows bit patterns (200 as 17224).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InvalidRecordError

if TYPE_CHECKING:
    import numpy.typing as npt

    from .schema import RoutingSchema

MAX_BFLOAT16_EXPERTS = 256
MINUS_ONE = 0xBF80
"""The pattern of -1, which marks unfilled rows."""
_ONE = 0x3F80  # the pattern of 1.0; those of smaller positive integers: only 0


@functools.lru_cache(maxsize=32)
def fill_value(dtype: np.dtype[Any] | str) -> int:
    """Returns what marks a row that was never filled: -1, or what it wraps to in an unsigned type."""
    info = np.iinfo(np.dtype(dtype))
    return -1 if info.min < 0 else int(info.max)


def shows_bfloat16(array: npt.NDArray[Any], schema: RoutingSchema) -> bool:
    """Whether 16-bit values are bfloat16 patterns: up to 256 experts no id is as large as the pattern of 1."""
    return schema.num_experts <= MAX_BFLOAT16_EXPERTS and array.size > 0 and int(array.max()) >= _ONE


def rounded(schema: RoutingSchema) -> InvalidRecordError:
    """Returns the error of ids of so many experts that bfloat16 does not tell them apart."""
    return InvalidRecordError(
        f"ids of {schema.num_experts} experts came as bfloat16, which rounds above {MAX_BFLOAT16_EXPERTS}",
        hint='Paddle\'s dtype "uint16" is bfloat16; the engine has to keep ids in int32',
    )


def decoded(bits: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns the integers from 0 to 255 that bfloat16 bit patterns stand for.

    Raises:
        InvalidRecordError: a pattern stands for something else.
    """
    floats = np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)
    whole = (floats >= 0) & (floats < MAX_BFLOAT16_EXPERTS)  # false for patterns that are no numbers
    ids = np.where(whole, floats, 0).astype(np.uint8)
    wrong = ~whole | (ids != floats)
    if wrong.any():
        bad = int(bits[wrong].ravel()[0])
        raise InvalidRecordError(
            f"the bit pattern {bad:#06x} is no bfloat16 integer from 0 to {MAX_BFLOAT16_EXPERTS - 1}",
            hint="rows that were never captured look like this"
            if bad in (0xFFFF, MINUS_ONE)
            else "ids came rounded, or as something else than bfloat16",
        )
    return ids
