"""Reading from a producer of the same user and host: its arenas are mapped, and its blocks looked at in place.

The block that has the payload is pinned while it is copied from, or looked at, so that its owner does not use it
again; whether it is still the right one is asked after the pin. What is small is copied without a pin, which would
take longer, and so is what a batch has a place for: whether the block is still the right one is asked after the copy.
Where the card is another block, that one is not pinned: it is copied whole, and the copy carries a digest.
"""

from __future__ import annotations

import os
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....arena.pool import SMALL
from ....arena.reading import ReadArena
from ....backend import Blob
from ....errors import ArenaError, CorruptDataError, NotFoundError, RoutingError, StoreUnavailableError
from ..card import decode_card
from ..place import SHELF
from .base import Source
from .sharing import is_worth, share
from .spans import cut, spans_of, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ....arena.pool import Pool
    from ....arena.reading import Pin
    from ....backend import Deliver
    from ..place import OwnerInfo
    from .base import Wanted

_NOTHING = memoryview(b"")


class ShmSource(Source):
    """The arenas of one producer.

    Args:
        info: The producer.
        pool: Where copies go.
        other: The source of an earlier revision of the same producer, whose mappings are used again.

    Raises:
        ArenaError: an arena cannot be mapped; see ``ReadArena``.
    """

    kind: ClassVar[str] = "shm"

    def __init__(self, info: OwnerInfo, pool: Pool, other: ShmSource | None = None) -> None:
        self._pool = pool
        known = {} if other is None else {(each.path, each.key): each for each in other._arenas}
        self._arenas: list[ReadArena] = []
        for each in info.arenas:
            self._arenas.append(known.get((each.path, each.key)) or ReadArena(each.path, each.nbytes, each.key))
        self._closed = False

    @property
    def removed(self) -> bool:
        """Whether the producer removed its arenas: nobody can read from it any more who has not mapped them."""
        return any(not os.path.exists(each.path) for each in self._arenas[:1])

    def read(self, wanted: Sequence[Wanted], deadline: float, *, view: bool = False) -> list[Blob | RoutingError]:
        """See ``Source``. Never waits. What cannot be pinned is copied, also if a view is asked for."""
        if self._closed:
            raise StoreUnavailableError("this way to the producer was closed meanwhile")
        found: list[Blob | RoutingError] = []
        for each in wanted:
            try:
                found.append(self._read(each, view))
            except (NotFoundError, CorruptDataError) as err:
                found.append(err.with_traceback(None))  # which would keep this list, and its views, in a cycle
        return found

    def each(self, wanted: Sequence[Wanted], deadline: float, deliver: Deliver, *, view: bool = False) -> None:
        """See ``Source``. Much is copied by two threads; what is wanted of one object, by one of them, in order.

        A view's pin is given back, and used for the next one, once nothing refers to it.
        """

        def hand_over(numbered: Iterable[tuple[int, Wanted]]) -> None:
            for index, one in numbered:
                if self._closed:
                    raise StoreUnavailableError("this way to the producer was closed meanwhile")
                try:
                    blob = self._read(one, view and one.into is None and one.place.payload_bytes > SMALL)
                except (NotFoundError, CorruptDataError):
                    continue
                deliver(index, blob)
                del blob

        if is_worth(sum([one.place.payload_bytes for one in wanted])):
            share([list(same) for _, same in groupby(enumerate(wanted), _name)], hand_over)
        else:
            hand_over(enumerate(wanted))

    def _read(self, wanted: Wanted, view: bool) -> Blob:
        place = wanted.place
        if place.arena >= len(self._arenas):
            raise _moved(wanted)  # to an arena that is newer than what is known of the producer
        spans = spans_of(wanted)
        nbytes = total(spans)
        if nbytes == 0:
            return Blob(self._header(wanted), (_NOTHING,) * len(spans))
        arena = self._arenas[place.arena]
        if (nbytes <= SMALL or wanted.into is not None) and not view:
            return self._copy(wanted, spans, nbytes)  # over before anybody could want the block again
        try:
            pin = arena.pin(place.page, place.block_generation)
        except ArenaError:
            return self._copy(wanted, spans, nbytes)
        with pin:
            return self._view(wanted, spans, pin) if view else self._copy(wanted, spans, nbytes)

    def _header(self, wanted: Wanted) -> bytes:
        """Returns the header of an object from its card."""
        place = wanted.place
        found = self._arenas[SHELF].card(place.card, place.generation)
        if found is None:
            raise _moved(wanted)
        card = decode_card(found[0])
        if card.inline:
            where = SHELF, place.card, place.generation, found[1], found[2]
        else:
            where = card.arena, card.page, card.block_generation, card.payload_at, card.payload_bytes
        header = card.header
        expected = place.arena, place.page, place.block_generation, place.payload_at, place.payload_bytes
        if card.name != wanted.name or where != expected or len(header) != place.header_bytes:
            raise CorruptDataError(f"the card of {wanted.name} is that of {card.name!r:.400}", name=wanted.name)
        return header

    def _found(self, wanted: Wanted) -> bytes:
        """Returns the header of an object whose payload is there, too. Ask this after the pin, or after the copy."""
        place = wanted.place
        header = self._header(wanted)
        stop = place.payload_at + place.payload_bytes
        if place.arena != SHELF and not self._arenas[place.arena].holds_payload(
            place.page, place.block_generation, place.payload_at, stop
        ):
            raise _moved(wanted)
        return header

    def _view(self, wanted: Wanted, spans: Sequence[tuple[int, int]], pin: Pin) -> Blob:
        header = self._found(wanted)
        at = wanted.place.payload_at
        first, last = spans[0][0], spans[-1][1]
        memory = self._arenas[wanted.place.arena].view(at + first, at + last, pin)
        if len(spans) == 1:
            return Blob(header, (memory,))
        return Blob(header, tuple([memory[start - first : stop - first] for start, stop in spans]))

    def _copy(self, wanted: Wanted, spans: Sequence[tuple[int, int]], nbytes: int) -> Blob:
        place = wanted.place
        arena = self._arenas[place.arena]
        if place.payload_at + place.payload_bytes > arena.nbytes:
            raise _moved(wanted)
        into = wanted.into
        memory = self._pool.take(nbytes) if into is None or into.nbytes != nbytes else into
        target, at = np.frombuffer(memory, np.uint8), 0
        for start, stop in spans:  # NumPy copies without holding the interpreter's lock
            source = arena.bytes[place.payload_at + start : place.payload_at + stop]
            np.copyto(target[at : at + stop - start], source)
            at += stop - start
        return Blob(self._found(wanted), cut(memory, spans))

    def close(self) -> None:
        """See ``Source``."""
        self._closed = True
        for each in self._arenas:
            each.close()


def _name(numbered: tuple[int, Wanted]) -> str:
    return numbered[1].name


def _moved(wanted: Wanted) -> NotFoundError:
    return NotFoundError(f"{wanted.name} does not lie where it did", name=wanted.name, moved=True)
