"""Dividing items between ranks: ranges of whole numbers, half-open. Free of NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidKeyError
from ..keys import as_int, shown
from ..names import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def even(total: int, rank: int, size: int) -> Range:
    """Returns a rank's range of ``total`` items in order, as even as can be: the first ranks have one more.

    Raises:
        InvalidKeyError: ``rank`` is not one of ``size``, or a number is negative.
    """
    total, rank, size = checked("total", total, 0), checked("rank", rank, 0), checked("size", size, 1)
    if rank >= size:
        raise InvalidKeyError(f"rank {rank} is not one of {size}")
    base, more = divmod(total, size)
    start = rank * base + min(rank, more)
    return start, start + base + (rank < more)


def contiguous(length: int, rank: int, size: int) -> tuple[Range, ...]:
    """Returns a rank's tokens if each has one piece: ``length`` is padded up to ``size`` equal ones."""
    even(length, rank, size)  # checks them
    chunk = -(-length // size)
    return within([(rank * chunk, (rank + 1) * chunk)], length)


def zigzag(length: int, rank: int, size: int) -> tuple[Range, ...]:
    """Returns a rank's tokens if each has an early and a late piece, which balances causal attention.

    ``length`` is padded up to ``2 * size`` equal chunks; a rank has chunk ``rank`` and chunk ``2 * size - 1 - rank``,
    in this order, as in Megatron-LM, TransformerEngine and ring attention.
    """
    even(length, rank, size)  # checks them
    chunk = -(-length // (2 * size))
    late = 2 * size - 1 - rank
    return within([(rank * chunk, (rank + 1) * chunk), (late * chunk, (late + 1) * chunk)], length)


def within(ranges: Iterable[Range], total: int) -> tuple[Range, ...]:
    """Cuts ranges to ``0:total``; joins neighbours and leaves empty ones out."""
    kept: list[Range] = []
    for start, stop in ranges:
        stop = min(stop, total)
        if kept and start < stop and kept[-1][1] == start:
            kept[-1] = kept[-1][0], stop
        elif start < stop:
            kept.append((start, stop))
    return tuple(kept)


def picked(ranges: Sequence[Range], start: int, stop: int) -> list[Range]:
    """Returns items ``start:stop`` of the items that ranges list one after the other."""
    found, at = [], 0
    for first, last in ranges:
        low, high = max(start, at), min(stop, at + last - first)
        if low < high:
            found.append((first + low - at, first + high - at))
        at += last - first
    return found


def checked(what: str, value: object, low: int) -> int:
    """Returns a number of tokens; raises InvalidKeyError if it is none, or lower."""
    number = as_int(value)
    if number is None or not low <= number <= MAX_TOKENS:
        raise InvalidKeyError(f"{what} must be an integer from {low} on, got {shown(value)}")
    return number
