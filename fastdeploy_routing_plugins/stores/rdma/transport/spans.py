"""Byte ranges of a payload, checked once for every transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Wanted


def spans_of(wanted: Wanted) -> tuple[tuple[int, int], ...]:
    """Returns which bytes of its payload are wanted of an object, one span for each piece of the answer.

    Raises:
        CorruptDataError: the payload is shorter than the asker believes, or the ranges are none.
    """
    size = wanted.place.payload_bytes
    if wanted.ranges is None:
        return ((0, size),)
    end = 0
    for start, stop in wanted.ranges:
        if not end <= start <= stop <= size:
            raise CorruptDataError(
                f"{wanted.name} has {size} bytes of payload, no ranges {list(wanted.ranges)!r:.100}", name=wanted.name
            )
        end = stop
    return tuple(wanted.ranges)


def total(spans: Sequence[tuple[int, int]]) -> int:
    """Returns how many bytes that is."""
    if len(spans) == 1:  # the usual case
        return spans[0][1] - spans[0][0]
    return sum([stop - start for start, stop in spans])


def cut(memory: memoryview, spans: Sequence[tuple[int, int]]) -> tuple[memoryview, ...]:
    """Cuts memory that has the spans' bytes one after the other into one piece for each."""
    if len(spans) == 1:
        return (memory,)
    pieces, at = [], 0
    for start, stop in spans:
        pieces.append(memory[at : at + stop - start])
        at += stop - start
    return tuple(pieces)
