"""Which tokens nobody stated the weights of, for some of their layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .assemble import uncovered_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..names import Part


def unstated(parts: Iterable[tuple[Part, bool]]) -> tuple[tuple[int, int], ...]:
    """Returns the tokens of which some layer's weights are not stated, where those of other cells are.

    Args:
        parts: Rectangles of one rollout, and whether it is stated which weights made each. What several of them hold
            is stated if one of them states it.
    """
    given = list(parts)
    stated = [part for part, said in given if said]
    if not stated or len(stated) == len(given):
        return ()
    left = [rect for part, said in given if not said for rect in uncovered_by(stated, part)]
    return tuple(sorted({rect.tokens for rect in left if rect.num_tokens}))
