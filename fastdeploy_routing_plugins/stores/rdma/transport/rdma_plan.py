"""What is read of another host's arenas for one object, and where in a piece of receive memory each part goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ....arena.layout import MAX_META, PAGE, TAIL_BYTES, pages_for
from ....errors import CorruptDataError, UnsupportedError
from ..place import SHELF
from .rdma_blocks import block_bytes, card_bytes, moved
from .spans import spans_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..place import OwnerInfo
    from .base import Wanted

_GAP: Final = 32 << 10  # bytes; to read so many in vain is faster than one more transfer
_LINE: Final = 64  # bytes; what pieces of one transfer begin on


class Span(msgspec.Struct, frozen=True):
    """Bytes to read.

    Attributes:
        remote: Their address in the producer's process.
        nbytes: How many.
        at: Where they go, from the start of the piece.
    """

    remote: int
    nbytes: int
    at: int


class Plan(msgspec.Struct, frozen=True):
    """How one object is read. The piece begins with room for the head that is read last.

    Attributes:
        wanted: The object.
        spans: What is read first, in any order.
        again: The head to read after them; None if no payload is read.
        head: Offset in the piece of the head that says whether the payload is the right one: 0, that of ``again``; or,
            where ``again`` need not be read, since the block's end comes last anyway, that of the block.
        nbytes: Size of the piece.
        card: Which span has the card.
        pieces: Offset and size in the piece of each answer.
        tail: Offset in the piece of the block's last bytes; None if they are not read.
    """

    wanted: Wanted
    spans: tuple[Span, ...]
    again: Span | None
    head: int
    nbytes: int
    card: Span
    pieces: tuple[tuple[int, int], ...]
    tail: int | None


def plan(wanted: Wanted, info: OwnerInfo, *, in_order: bool = False) -> Plan:
    """Returns how to read an object.

    Args:
        wanted: The object, and what of it.
        info: Its producer.
        in_order: Whether the bytes of one span are read in order, from the first to the last.

    Raises:
        CorruptDataError: the place lies outside of the producer's arenas, or the ranges outside of the payload.
        NotFoundError: it lies in an arena that is not known yet; fact ``moved``.
        UnsupportedError: the producer does not serve that arena by RDMA.
    """
    place = wanted.place
    pieces = spans_of(wanted)
    offset = place.payload_at - place.page * PAGE
    inline = place.arena == SHELF
    if offset < PAGE or offset % PAGE or (inline and place.page != place.card):
        raise _impossible(wanted)
    card_at, room = place.card * PAGE, card_bytes(place, wanted.name)
    if room > MAX_META + 2 * PAGE:
        raise _impossible(wanted)
    room = min(room, info.arenas[SHELF].nbytes - card_at) if info.arenas else 0
    at = PAGE
    card = Span(_address(info, SHELF, card_at, room, wanted), room, at)
    if not any(start < stop for start, stop in pieces):
        return Plan(wanted, (card,), None, 0, at + room, card, tuple((at, 0) for _ in pieces), None)
    nbytes = block_bytes(place)
    block = _address(info, place.arena, place.page * PAGE, nbytes, wanted)
    again = Span(block, PAGE, 0)
    whole = pieces == ((0, place.payload_bytes),)
    spans: list[Span] = []
    if not (inline and whole):
        spans.append(card)
        at += pages_for(room) * PAGE
    if whole:
        spans.append(Span(block, nbytes, at))
        found = ((at + offset, place.payload_bytes),)
        head = at if in_order else 0
        return Plan(wanted, tuple(spans), again, head, at + nbytes, card, found, at + nbytes - TAIL_BYTES)
    where: dict[tuple[int, int], tuple[int, int]] = {}
    for first, last in merged(pieces):
        spans.append(Span(block + offset + first, last - first, at))
        where.update(
            {(start, stop): (at + start - first, stop - start) for start, stop in pieces if first <= start < last}
        )
        at += -(-(last - first) // _LINE) * _LINE
    return Plan(wanted, tuple(spans), again, 0, at, card, tuple(where.get(each, (at, 0)) for each in pieces), None)


def merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns ascending ranges with those joined that lie near each other, and without empty ones."""
    found: list[tuple[int, int]] = []
    for start, stop in pieces:
        if start == stop:
            continue
        if found and start - found[-1][1] <= _GAP:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def _address(info: OwnerInfo, index: int, start: int, nbytes: int, wanted: Wanted) -> int:
    """Returns where bytes of an arena lie in its producer's process; refuses what lies outside of it."""
    if index >= len(info.arenas):
        raise moved(wanted.name)  # to an arena that is newer than what is known of the producer
    arena = info.arenas[index]
    if arena.address == 0:
        raise UnsupportedError(f"the producer of {wanted.name} does not serve it by RDMA")
    if nbytes <= 0 or start + nbytes > arena.nbytes:
        raise _impossible(wanted)
    return arena.address + start


def _impossible(wanted: Wanted) -> CorruptDataError:
    return CorruptDataError(f"the place of {wanted.name} is none in its producer's arenas", name=wanted.name)
