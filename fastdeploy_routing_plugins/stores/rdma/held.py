"""An object on a producer's shelf, and what keeps it there while somebody looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...arena.layout import PAGE, TAIL_BYTES
from .place import Place, encode

if TYPE_CHECKING:
    from ...arena.arena import Block
    from ...backend import Buffer
    from .shelf import Shelf


class Held:
    """An object on a shelf.

    Attributes:
        name: Its full name.
        header: Its header.
        place: Where it lies.
        raw: The same, encoded.
        payload: Its payload, in place.
        spare: Whether another producer serves it, see ``spares``.
        pending: Whether the service is being told of it: what that says of the name meanwhile says nothing of this.
        told: How often that began.
    """

    __slots__ = (
        "block", "buffer", "gone", "header", "leases", "name", "payload", "pending", "place", "raw", "spare", "told"
    )  # fmt: skip

    def __init__(
        self, name: str, header: bytes, place: Place, payload: memoryview, block: Block, buffer: Buffer | None
    ) -> None:
        self.name = name
        self.header = header
        self.place = place
        self.raw = encode(place)
        self.payload = payload
        self.block = block
        self.buffer = buffer
        self.leases = 0
        self.gone = False
        self.spare = False
        self.pending = False
        self.told = 0

    @property
    def nbytes(self) -> int:
        """Size of the payload in bytes."""
        return self.payload.nbytes

    @property
    def block_bytes(self) -> int:
        """Size of the block that the payload lies in."""
        place = self.place
        end = place.payload_at + place.payload_bytes + TAIL_BYTES
        return (-(-end // PAGE) - place.page) * PAGE


class Seen(NamedTuple):
    """An object as it was when somebody began to ask the service about it.

    Attributes:
        name: Its full name.
        raw: Its encoded place.
        told: ``Held.told`` if the service knew of it; -1: it was being told.
    """

    name: str
    raw: bytes
    told: int


class Lease:
    """Header and payload of an object that stay as they are within this context."""

    __slots__ = ("_held", "_shelf")

    def __init__(self, shelf: Shelf, held: Held) -> None:
        self._shelf = shelf
        self._held = held

    def __enter__(self) -> tuple[bytes, memoryview]:
        return self._held.header, self._held.payload

    def __exit__(self, *exc: object) -> None:
        self._shelf._return(self._held)
