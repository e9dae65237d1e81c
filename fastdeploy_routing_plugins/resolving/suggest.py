"""The nearest right word to a wrong one, for error messages."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_WORD = 100  # nobody means a name by more than that, and comparing costs the square of it


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Returns the choice that ``word`` was most likely meant to be, or None if nothing is near.

    Case and the difference between ``-`` and ``_`` count for nothing; after that the number of typing mistakes counts
    (a letter too many, too few, wrong, or swapped with its neighbour), then the share of common text.
    """
    if len(word) > MAX_WORD:
        return None
    folded = _fold(word)
    scored = [(_mistakes(folded, _fold(choice)), -_likeness(folded, _fold(choice)), choice) for choice in choices]
    near = [score for score in scored if score[0] <= max(1, len(word) // 3) or score[1] <= -0.6]
    return min(near)[2] if near else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Returns ``did you mean 'x'?``, or an empty text if nothing is near."""
    found = nearest(word, choices)
    return f"did you mean {found!r}?" if found is not None else ""


def _fold(text: str) -> str:
    return text.casefold().replace("-", "_")


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _mistakes(one: str, other: str) -> int:
    """Counts insertions, deletions, substitutions and swaps of neighbours (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, last = last, row
    return last[-1]
