"""What is read of a rollout that is there in one part, and what the bytes that come are made into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..envelope import Identity
from ..errors import AbsentError, RoutingError
from ..names import Part
from ..record import RoutingRecord, spans_within
from ..store import reading
from ..store.assemble import Attempts
from ..store.selection import closed
from .share import joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backend import Blob
    from ..names import PartName
    from ..schema import RoutingSchema
    from .asking import Ask, Reading
    from .places import Places


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """One rollout that is one part.

    Attributes:
        index: Which ask it is.
        ask: What is asked.
        attempt: The attempt that is there.
        what: The part's name.
        pieces: What is read of it: a list for each range of layers, with a piece for each range of tokens.
        length: How many tokens the rank has of it; None if a record is asked for, not a share.
        single: Whether there is one piece.
    """

    index: int
    ask: Ask
    attempt: int
    what: PartName
    pieces: tuple[tuple[reading.Piece, ...], ...]
    length: int | None
    single: bool

    @property
    def flat(self) -> list[reading.Piece]:
        """All pieces in one list."""
        return [piece for row in self.pieces for piece in row]

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return sum(map(len, self.pieces))

    @property
    def nbytes(self) -> int:
        """Bytes that are moved."""
        return sum([piece.read.num_layers * piece.read.num_tokens for piece in self.flat]) * self.what.row_bytes


def wanted(
    index: int, ask: Ask, namespace: str, prefix: str, names: Sequence[str], schema: RoutingSchema
) -> Wanted | None:
    """Returns what is read of what lies under a rollout's prefix; None if that is not one part that can be read."""
    sole = Attempts.sole(prefix, names)
    if sole is None or sole[0] < ask.min_attempt or sole[1].schema != schema.fingerprint:
        return None
    attempt, what = sole
    try:
        ask.check_total(what.total_tokens)
        if ask.whole:
            known = Identity(namespace, ask.key, attempt, what)
            piece = reading.Piece(names[0], what, what.part, what.part, known)
            return Wanted(index, ask, attempt, what, ((piece,),), None, True)
        return _some(index, ask, prefix, attempt, what, schema)
    except RoutingError:
        return None


def _some(index: int, ask: Ask, prefix: str, attempt: int, what: PartName, schema: RoutingSchema) -> Wanted | None:
    total = what.part.tokens[1]
    length: int | None = None
    if ask.rank is None:
        layers = [_layers(ask, schema)]
        tokens: Sequence[tuple[int, int]] = [closed("tokens", ask.tokens, total)]
    else:
        layers = list(ask.rank.layer_ranges(schema))
        tokens = [(0, total)]
        if ask.rank.splits_tokens or len(layers) != 1:
            divided = total if ask.length is None else ask.length
            length = ask.rank.local_length(divided)
            tokens = ask.rank.token_ranges(divided, total) if ask.rank.splits_tokens else tokens
    if not layers or not all(start < stop for start, stop in [*layers, *tokens]) or not tokens:
        return None
    folder = f"{prefix}{attempt:019d}/"
    pieces = tuple(
        tuple(reading.plan(folder, [what], Part(those, these), verify=ask.verify)[0] for those in tokens)
        for these in layers
    )
    return Wanted(index, ask, attempt, what, pieces, length, len(pieces) == len(pieces[0]) == 1)


def _layers(ask: Ask, schema: RoutingSchema) -> tuple[int, int]:
    if ask.layer_ids is None:
        return closed("layers", ask.layers, schema.num_layers)
    places = [schema.position(layer) for layer in ask.layer_ids]
    if not places:
        return 0, 0
    return (places[0], places[-1] + 1) if places == list(range(places[0], places[0] + len(places))) else (0, 0)


def decoded(each: Wanted, blobs: Sequence[Blob | AbsentError], places: Places | None = None) -> Reading:
    """Checks what was fetched for all pieces and returns it.

    Args:
        each: What was wanted.
        blobs: What came for each piece, in order.
        places: Where it is to lie; None: where it came.

    Raises:
        AbsentError: A piece is not there.
        RoutingError: It is not what was put, or not what was asked for.
    """
    if each.length is None:
        return each.ask.checked(_record(each, each.pieces[0][0], blobs[0], places))
    found = iter(blobs)
    rows = [[_record(each, piece, next(found), None) for piece in row] for row in each.pieces]
    return each.ask.checked(joined(rows, each.length))


def _record(each: Wanted, piece: reading.Piece, blob: Blob | AbsentError, places: Places | None) -> RoutingRecord:
    if isinstance(blob, AbsentError):
        raise blob
    header, views = reading.check_piece(piece, blob, verify=each.ask.verify)
    array = None if places is None else places.lying(each.index, blob.payload[0])
    if array is None:
        array = reading.to_array(piece, header, views)
        if places is not None:
            array = places.settle(each.index, array)
    array.flags.writeable = False
    return RoutingRecord(
        array,
        each.ask.key,
        header.schema(),
        piece.rect,
        each.what.part.tokens[1],
        each.attempt,
        spans_within(header.spans(), piece.rect.tokens) if header.weight_versions else (),
        (header.producer,),
    )
