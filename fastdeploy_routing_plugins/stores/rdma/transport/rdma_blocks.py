"""Blocks as they arrive from another host's arena: recognised, or refused.

Nobody holds a block still for a reader that its producer does not see. A block's owner wipes its head before any byte
of it is used again (``arena.arena``), so a head that is read *after* the payload has arrived, and is still that of the
block which was asked for, proves that the payload is that block's. Where bytes are read in order, which RDMA does not
promise (``rdma_env.reads_in_order``), the block's end, which is wiped as well, proves it without another read.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from ....arena.layout import (
    BLOCK_MAGIC,
    HEAD_BYTES,
    MAX_META,
    PAGE,
    TAIL_BYTES,
    WORD,
    State,
    Word,
    block_size,
    checksum,
    pages_for,
)
from ....errors import CorruptDataError, NotFoundError
from ..card import decode_card
from ..place import SHELF, Place

_HEAD: Final = struct.Struct("<9Q")
_TAIL: Final = struct.Struct("<2Q")
_CARD_ROOM: Final = 128  # bytes of a card beside header and name: nine msgpack items, five of them numbers

_STATES: Final = (State.READY, State.DONE, State.RETAINED, State.FAILED)

Raw = bytes | bytearray | memoryview


class Head(msgspec.Struct, frozen=True):
    """The head of a block, as its bytes say.

    Attributes:
        generation: See ``arena.layout.BlockHead``.
        sequence: See there.
        pages: See there.
        meta_bytes: Size of the meta text.
        payload_at: Offset of the payload within the block.
        payload_bytes: Size of the payload.
    """

    generation: int
    sequence: int
    pages: int
    meta_bytes: int
    payload_at: int
    payload_bytes: int


def card_bytes(place: Place, name: str) -> int:
    """Returns how many bytes of a shelf, from a card's first on, are sure to have all of its head and meta text."""
    if place.arena == SHELF:
        return place.payload_at - place.card * PAGE
    return pages_for(HEAD_BYTES + place.header_bytes + len(name.encode()) + _CARD_ROOM + TAIL_BYTES) * PAGE


def block_bytes(place: Place) -> int:
    """Returns how many bytes the block that has the payload takes, its tail included."""
    return pages_for(place.payload_at - place.page * PAGE + place.payload_bytes + TAIL_BYTES) * PAGE


class DoubtError(NotFoundError):
    """A block of the right generation that is not whole: changed while it was read, or damaged. To be read again."""


def parse_head(raw: Raw) -> tuple[Head, int] | None:
    """Returns the head that a block begins with, and its digest; None if it is none, or that of a free block.

    Args:
        raw: Some of the block, from its first byte on.
    """
    if len(raw) < HEAD_BYTES:
        return None
    magic, state, generation, sequence, pages, meta_bytes, payload_at, payload_bytes, digest = _HEAD.unpack_from(raw)
    if magic != BLOCK_MAGIC or state not in _STATES:
        return None
    return Head(generation, sequence, pages, meta_bytes, payload_at, payload_bytes), digest


def expect(raw: Raw, key: int, page: int, generation: int, name: str) -> Head:
    """Returns the head of the block that is expected on a page.

    Args:
        raw: Some of the block, from its first byte on. The digest is compared if all of the meta text is there.
        key: The arena's key.
        page: The page.
        generation: The block's generation.
        name: Whose block it is, for messages.

    Raises:
        NotFoundError: another block is there now, or none; fact ``moved``.
        DoubtError: it is the right block, but not whole.
    """
    found = parse_head(raw)
    if found is None or found[0].generation != generation:
        raise moved(name)
    head, digest = found
    sound = head.meta_bytes <= MAX_META and (head.pages, head.payload_at) == block_size(
        head.meta_bytes, head.payload_bytes
    )
    if sound and HEAD_BYTES + head.meta_bytes <= len(raw):
        checked = page.to_bytes(WORD, "little") + bytes(raw[Word.GENERATION * WORD : Word.CHECKSUM * WORD])
        sound = checksum(key, checked, bytes(raw[HEAD_BYTES : HEAD_BYTES + head.meta_bytes])) == digest
    if not sound:
        raise DoubtError(f"the block of {name} is not whole")
    return head


def read_card(raw: Raw, key: int, place: Place, name: str) -> bytes:
    """Returns an object's header from its card.

    Args:
        raw: The card's block, as much of it as ``card_bytes`` says.
        key: The shelf's key.
        place: Where the object lies.
        name: Its full name.

    Raises:
        NotFoundError: see ``expect``.
        DoubtError: see ``expect``.
        CorruptDataError: it is the right block, and not this object's card.
    """
    head = expect(raw, key, place.card, place.generation, name)
    if HEAD_BYTES + head.meta_bytes > len(raw):
        raise CorruptDataError(f"the card of {name} is longer than its place says", name=name)
    card = decode_card(bytes(raw[HEAD_BYTES : HEAD_BYTES + head.meta_bytes]))
    if card.inline:
        where = SHELF, place.card, head.generation, place.card * PAGE + head.payload_at, head.payload_bytes
    else:
        where = card.arena, card.page, card.block_generation, card.payload_at, card.payload_bytes
    expected = place.arena, place.page, place.block_generation, place.payload_at, place.payload_bytes
    if card.name != name or where != expected or len(card.header) != place.header_bytes:
        raise CorruptDataError(f"what lies at the place of {name} is {card.name!r:.400}", name=name)
    return card.header


def check_payload(raw: Raw, key: int, place: Place, name: str) -> Head:
    """Returns the head of the block that has a payload, if it is the one that was asked for.

    Args:
        raw: Some of that block, from its first byte on, as it was after the payload had arrived.
        key: Its arena's key.
        place: Where the object lies.
        name: Its full name.

    Raises:
        NotFoundError: see ``expect``.
        DoubtError: see ``expect``.
        CorruptDataError: it is the right block, and has no such payload.
    """
    head = expect(raw, key, place.page, place.block_generation, name)
    if (place.page * PAGE + head.payload_at, head.payload_bytes) != (place.payload_at, place.payload_bytes):
        raise CorruptDataError(f"the payload of {name} is not where its place says", name=name)
    return head


def check_tail(raw: Raw, head: Head, name: str) -> None:
    """Compares a block's last bytes with its head.

    Raises:
        DoubtError: they differ.
    """
    if _TAIL.unpack(raw) != (head.generation, head.sequence):
        raise DoubtError(f"the block of {name} has an end that is not its own", name=name)


def moved(name: str) -> NotFoundError:
    """Returns the error for an object that is not where it was."""
    return NotFoundError(f"{name} does not lie where it did", name=name, moved=True)
