"""Where an object lies (``Place``) and who has it (``OwnerInfo``), as they travel through the metadata service.

Both are msgpack arrays, fields in the order below; later versions append fields, which older readers pass over. The
service never looks into a place.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from ...errors import CorruptDataError

MAX_PLACE = 80  # bytes; eight integers of at most 9 bytes, and the array's head
MAX_OWNER = 64 << 10  # bytes
SHELF = 0  # index of a producer's own arena among its arenas


Count = Annotated[int, msgspec.Meta(ge=0)]


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where an object lies in its producer's arenas. Pages are those of ``arena.layout``.

    Attributes:
        card: Page of the object's block in the shelf, whose meta text has its name and header.
        generation: That block's generation.
        header_bytes: Size of the header.
        payload_bytes: Size of the payload.
        arena: Which arena has the payload: 0 the shelf, in the card itself, else an index into ``OwnerInfo.arenas``.
        page: First page of the payload's block.
        block_generation: That block's generation.
        payload_at: Where the payload begins, in bytes from the start of the arena's file.
    """

    card: Count
    generation: Count
    header_bytes: Count
    payload_bytes: Count
    arena: Count
    page: Count
    block_generation: Count
    payload_at: Count


class ArenaInfo(msgspec.Struct, frozen=True, array_like=True):
    """An arena that a producer serves from.

    Attributes:
        path: Its file, for readers of the same host.
        nbytes: Its size.
        key: The arena's random key, by which a reader knows that it mapped the same file.
        address: Where the producer has mapped it, for RDMA; 0 without.
    """

    path: str
    nbytes: int
    key: int
    address: int = 0


class OwnerInfo(msgspec.Struct, frozen=True, array_like=True):
    """A producer as readers must know it to fetch from it.

    Attributes:
        owner: Its id, 32 hexadecimal digits, never used again.
        host: Identifies the running system, the kernel's boot id; equal on the same host.
        node: The host's name, for people.
        pid: Its process, for people.
        producer: The ``producer`` option of whoever writes.
        arenas: What it serves from; the list only grows.
        tcp: ``host:port`` of its TCP server; empty without.
        rdma: Its segment's name for RDMA; empty without.
        revision: Grows with every change of this.
    """

    owner: str
    host: str
    node: str
    pid: int
    producer: str
    arenas: tuple[ArenaInfo, ...] = ()
    tcp: str = ""
    rdma: str = ""
    revision: int = 0


T = TypeVar("T", Place, OwnerInfo)

_LIMITS: dict[type, int] = {Place: MAX_PLACE, OwnerInfo: MAX_OWNER}
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {
    Place: msgspec.msgpack.Decoder(Place),
    OwnerInfo: msgspec.msgpack.Decoder(OwnerInfo),
}


def encode(value: Place | OwnerInfo) -> bytes:
    """Returns a place or an owner as bytes."""
    return _encoder.encode(value)


def decode(raw: bytes | memoryview, kind: type[T]) -> T:
    """Returns what ``encode`` made.

    Raises:
        CorruptDataError: it is no such thing.
    """
    if len(raw) > _LIMITS[kind]:
        raise CorruptDataError(f"a {kind.__name__} of {len(raw)} bytes; at most {_LIMITS[kind]}")
    try:
        value: T = _decoders[kind].decode(raw)
    except msgspec.MsgspecError as err:
        raise CorruptDataError(f"not a {kind.__name__}: {err}") from None
    return value
