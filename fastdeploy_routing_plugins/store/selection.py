"""Ranges as callers write them: ``None``, an int, a slice, a range or a pair becomes ``(start, stop)``."""

from __future__ import annotations

from ..errors import InvalidKeyError
from ..keys import as_int, shown
from ..names import MAX_TOKENS

Selection = int | slice | range | tuple[int, int] | None


def bounds(what: str, selection: Selection) -> tuple[int, int | None]:
    """Returns ``(start, stop)``; ``stop`` is None where the caller left the end open.

    Args:
        what: How error messages call the axis.
        selection: None for everything, an int for one index, or a half-open range with step 1. Absolute and not
            negative: an index from the end would mean something else once more tokens arrive.

    Raises:
        InvalidKeyError: it is none of these.
    """
    given: object = selection
    if given is None:
        return 0, None
    if isinstance(given, (slice, range)):
        if given.step is not None and _index(what, given.step) != 1:
            raise InvalidKeyError(f"{what} must be a range without gaps, got step {given.step}")
        first = _index(what, 0 if given.start is None else given.start)
        last = None if given.stop is None else _index(what, given.stop)
    elif isinstance(given, tuple) and len(given) == 2:
        first, last = _index(what, given[0]), _index(what, given[1])
    else:
        first = _index(what, given)
        last = first + 1
    if last is not None and last < first:
        raise InvalidKeyError(f"{what} {first}:{last} is reversed")
    return first, last


def _index(what: str, value: object) -> int:
    number = as_int(value)
    if number is None or not 0 <= number <= MAX_TOKENS:
        raise InvalidKeyError(
            f"{what} must be integers from 0 to {MAX_TOKENS}, got {shown(value)}",
            hint="an int, a slice or (start, stop), absolute",
        )
    return number


def closed(what: str, selection: Selection, total: int) -> tuple[int, int]:
    """Returns ``(start, stop)`` within ``0:total``; an open end is ``total``.

    Raises:
        InvalidKeyError: the range is malformed or goes beyond ``total``.
    """
    start, stop = bounds(what, selection)
    stop = total if stop is None else stop
    if not start <= stop <= total:
        raise InvalidKeyError(f"{what} {start}:{stop} is not within 0:{total}")
    return start, stop
