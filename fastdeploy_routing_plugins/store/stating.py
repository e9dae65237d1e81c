"""What producers state of the weights that made tokens, where they do not all state the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..envelope import Header, PartHeader
from ..errors import ConflictError
from .assemble import uncovered_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..names import Part

_SHOWN = 4  # spans of an error's text


def check_weights(name: str, header: Header, stored: Header) -> None:
    """Checks that who puts what is stored already states no other weights than are stored.

    Args:
        name: The object's name.
        header: The header that was to be stored.
        stored: The one that is, of the same routing.

    Raises:
        ConflictError: it does; what it says of the weights would be lost.
    """
    if not (isinstance(header, PartHeader) and isinstance(stored, PartHeader)) or header.same_weights(stored):
        return
    raise ConflictError(
        f"the same routing is stored for {header.key()}, attempt {header.attempt}, with other weight versions: "
        f"{_shown(stored)}, not {_shown(header)}",
        hint="what is stored never changes: put with a higher attempt, or delete the rollout first",
        name=name,
    ) from None


def _shown(header: PartHeader) -> str:
    spans = [f"{version!r} of tokens {start}:{stop}" for start, stop, version in header.weight_versions]
    more = ["..."] if len(spans) > _SHOWN else []
    return ", ".join([*spans[:_SHOWN], *more]) or "none stated"


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
