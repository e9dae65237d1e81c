"""Cards: what a block of a producer's shelf says about the object that it stands for.

A card is the block's meta text, a msgpack array in the order of ``Card``'s fields; later versions append fields, which
older readers pass over. That the block itself is whole is the arena's business (``arena.layout``).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ...arena.layout import MAX_META
from ...errors import CorruptDataError, InvalidRecordError
from .place import SHELF

MAX_NAME = 400  # characters, see ``backend``

Count = Annotated[int, msgspec.Meta(ge=0)]


class Card(msgspec.Struct, frozen=True, array_like=True):
    """An object as its producer's shelf knows it.

    Attributes:
        name: Its full name.
        header: Its header.
        arena: 0 (``place.SHELF``): the payload lies in the card's own block, whose head says where, and the next
            three numbers are 0. Else the index of the arena that has it, see ``OwnerInfo.arenas``.
        page: First page of the payload's block there.
        block_generation: That block's generation.
        payload_at: Where the payload begins, in bytes from the start of that arena's file.
        payload_bytes: Size of the payload.
    """

    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
    header: bytes
    arena: Count
    page: Count
    block_generation: Count
    payload_at: Count
    payload_bytes: Count

    @property
    def inline(self) -> bool:
        """Whether the payload lies in the card's own block."""
        return self.arena == SHELF


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Card)


def encode_card(
    name: str, header: bytes, arena: int, page: int, block_generation: int, payload_at: int, payload_bytes: int
) -> bytes:
    """Returns a card's meta text; see ``Card`` for the arguments.

    Raises:
        InvalidRecordError: the header is longer than a block's meta text may be.
    """
    raw = _encoder.encode(Card(name, header, arena, page, block_generation, payload_at, payload_bytes))
    if len(raw) > MAX_META:
        raise InvalidRecordError(
            f"a header of {len(header)} bytes does not fit on a card of {MAX_META}", hint="put it in smaller parts"
        )
    return raw


def decode_card(meta: bytes | memoryview) -> Card:
    """Returns what ``encode_card`` made.

    Raises:
        CorruptDataError: it is no card.
    """
    if len(meta) > MAX_META:
        raise CorruptDataError(f"a card of {len(meta)} bytes; at most {MAX_META}")
    try:
        return _decoder.decode(meta)
    except msgspec.MsgspecError as err:
        raise CorruptDataError(f"not a card: {err}") from None
    except UnicodeDecodeError:
        raise CorruptDataError("not a card: its name is no text") from None
