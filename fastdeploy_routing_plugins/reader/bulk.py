"""The usual case of a batch: every rollout is there, in one part. Read with one listing and one fetch for all of them.

What is not like that, and whatever goes wrong, is left to the general way of ``gathering``, which tells why.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import AbsentError, RoutingError
from ..names import Part
from ..record import RoutingRecord, spans_within
from ..store import reading
from ..store.assemble import Attempts
from ..store.selection import closed
from .share import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..backend import Blob
    from ..names import PartName
    from ..schema import RoutingSchema
    from ..store.objects import Objects
    from ..store.routing_store import RoutingStore
    from .asking import Ask, Reading

_AT_ONCE = 16 << 20  # bytes of one fetch; what is larger takes its own
_LISTED = 256  # rollouts of one listing
_FETCHES = 4  # under way at the same time


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One rollout that is one part.

    Attributes:
        index: Which ask it is.
        ask: What is asked.
        attempt: The attempt that is there.
        what: The part's name.
        pieces: What is read of it: a list for each range of layers, with a piece for each range of tokens.
        length: How many tokens the rank has of it; None if a record is asked for, not a share.
    """

    index: int
    ask: Ask
    attempt: int
    what: PartName
    pieces: tuple[tuple[reading.Piece, ...], ...]
    length: int | None

    @property
    def flat(self) -> list[reading.Piece]:
        """All pieces in one list."""
        return [piece for row in self.pieces for piece in row]

    @property
    def nbytes(self) -> int:
        """Bytes that are moved."""
        cells = sum(piece.read.num_layers * piece.read.num_tokens for piece in self.flat)
        return cells * self.what.row_bytes


async def read_what_is_there(
    store: RoutingStore, asks: Sequence[tuple[int, Ask]], lanes: int, done: Callable[[int, Reading], None]
) -> None:
    """Reads the rollouts that are there in one part; tells ``done`` of each that was read, and of no other.

    Args:
        store: Where to read.
        asks: What to read, by index.
        lanes: How many fetches the store makes at the same time, if each of them moves one object after the other. 0:
            all fetches are made one after the other, without an event loop.
        done: Told the index and what was read.
    """
    wanted: list[_Wanted] = []
    for at in range(0, len(asks), _LISTED):
        wanted += await _listed(store, asks[at : at + _LISTED])
    gate = asyncio.Semaphore(max(_FETCHES, lanes))

    async def fetch(some: list[_Wanted]) -> None:
        async with gate:
            with contextlib.suppress(RoutingError):  # the general way meets it again, rollout by rollout
                await _fetch(store, some, done)

    fetches = [fetch(some) for some in _portions(wanted, -(-len(wanted) // (lanes or 1)))]
    if lanes and len(fetches) > 1:
        await asyncio.gather(*fetches)
    else:
        for each in fetches:
            await each


async def _listed(store: RoutingStore, asks: Sequence[tuple[int, Ask]]) -> list[_Wanted]:
    """Returns what can be read in one go."""
    prefixes = [ask.key.prefix(store.namespace) for _, ask in asks]
    schema = store.schema
    assert schema is not None
    found = []
    try:
        for (index, ask), prefix, names in zip(
            asks, prefixes, await store._objects.names_of(prefixes), strict=True
        ):  # fmt: skip
            sole = Attempts.sole(prefix, names)
            if sole is not None and sole[0] >= ask.min_attempt and sole[1].schema == schema.fingerprint:
                wanted = _wanted(index, ask, prefix, *sole, schema)
                found += [wanted] if wanted else []
    except RoutingError:
        return []
    return found


def _wanted(index: int, ask: Ask, prefix: str, attempt: int, what: PartName, schema: RoutingSchema) -> _Wanted | None:
    """Returns what is read of a part, if its range is one that can be read."""
    total = what.part.tokens[1]
    length: int | None = None
    try:
        ask.check_total(total)
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
    except RoutingError:
        return None
    if not layers or not all(start < stop for start, stop in [*layers, *tokens]) or not tokens:
        return None
    folder = f"{prefix}{attempt:019d}/"
    pieces = tuple(
        tuple(reading.plan(folder, [what], Part(those, these), verify=ask.verify)[0] for those in tokens)
        for these in layers
    )
    return _Wanted(index, ask, attempt, what, pieces, length)


def _layers(ask: Ask, schema: RoutingSchema) -> tuple[int, int]:
    if ask.layer_ids is None:
        return closed("layers", ask.layers, schema.num_layers)
    places = [schema.position(layer) for layer in ask.layer_ids]
    return (places[0], places[-1] + 1) if places == list(range(places[0], places[0] + len(places))) else (0, 0)


def _portions(wanted: Sequence[_Wanted], most: int) -> Iterator[list[_Wanted]]:
    """Yields portions of at most so many rollouts, and of not too many bytes."""
    portion: list[_Wanted] = []
    size = 0
    for each in wanted:
        if portion and (len(portion) >= most or size + each.nbytes > _AT_ONCE):
            yield portion
            portion, size = [], 0
        portion.append(each)
        size += each.nbytes
    if portion:
        yield portion


async def _fetch(store: RoutingStore, wanted: Sequence[_Wanted], done: Callable[[int, Reading], None]) -> None:
    objects = store._objects
    blobs = iter(
        await objects.get_many([piece.request() for each in wanted for piece in each.flat], view=wanted[0].ask.view)
    )
    for each in wanted:
        mine = [[next(blobs) for _ in row] for row in each.pieces]
        try:
            found = each.ask.checked(await _decoded(objects, each, mine))
        except RoutingError:
            continue
        done(each.index, found)


async def _decoded(objects: Objects, each: _Wanted, blobs: Sequence[Sequence[Blob | AbsentError]]) -> Reading:
    rows = []
    for pieces, found in zip(each.pieces, blobs, strict=True):
        row = []
        for piece, blob in zip(pieces, found, strict=True):
            if isinstance(blob, AbsentError):
                raise blob
            nbytes = each.nbytes if each.ask.verify else 0
            header, array = await objects.offload(
                nbytes, reading.decode_piece, piece, blob, verify=each.ask.verify
            )  # fmt: skip
            array.flags.writeable = False
            spans = spans_within(header.spans(), piece.rect.tokens) if header.weight_versions else ()
            row.append(
                RoutingRecord(
                    routing=array,
                    key=each.ask.key,
                    schema=header.schema(),
                    part=piece.rect,
                    total_tokens=each.what.part.tokens[1],
                    attempt=each.attempt,
                    weight_versions=spans,
                    producers=(header.producer,),
                )
            )
        rows.append(row)
    return rows[0][0] if each.length is None else joined(rows, each.length)
