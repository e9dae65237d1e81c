"""What every transport offers: a ``Source`` for readers, over a producer's ``Holdings``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import msgspec

from ....backend import Blob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from ....backend import Deliver, Ranges
    from ....errors import RoutingError
    from ..place import Place

_AT_ONCE: Final = 16 << 20  # bytes of objects that are fetched together, where they do not come one by one


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """One object, or some of it, that a reader wants.

    Attributes:
        name: The object's full name.
        place: Where its producer has it.
        ranges: Half-open byte ranges of the payload; None: all of it; ``()``: the header only.
        into: Where the bytes may be put, see ``backend.GetRequest``.
    """

    name: str
    place: Place
    ranges: Ranges | None = None
    into: memoryview | None = None


class Source(ABC):
    """A reader's way to one producer. Methods may be called from several threads.

    Attributes:
        kind: The transport's name.
    """

    kind: ClassVar[str]

    @abstractmethod
    def read(self, wanted: Sequence[Wanted], deadline: float, *, view: bool = False) -> list[Blob | RoutingError]:
        """Fetches objects.

        Args:
            wanted: What to fetch.
            deadline: When to give up, in ``time.monotonic()``.
            view: Whether the bytes may lie in the producer's own memory, for as long as something refers to them.

        Returns:
            For each, in order, the object, or why it is not there: ``DeletedError``, ``EvictedError``,
            ``SupersededError`` or ``NotFoundError`` when its place holds something else now.

        Raises:
            StoreUnavailableError: the producer does not answer, or does not listen; a retry may succeed.
            ProducerLostError: it is gone for certain.
            CorruptDataError: what came is not what the protocol allows.
        """

    def each(self, wanted: Sequence[Wanted], deadline: float, deliver: Deliver, *, view: bool = False) -> None:
        """Fetches objects and hands each over, with its index, as soon as it is there; leaves out those that are not.

        Args:
            wanted: What to fetch.
            deadline: When to give up, in ``time.monotonic()``.
            deliver: Takes an object; see ``backend.Deliver``.
            view: See ``read``.

        Raises:
            RoutingError: As ``read``; what was handed over before is good.
        """
        for start, stop in _portions(wanted):
            for index, found in enumerate(self.read(wanted[start:stop], deadline, view=view), start):
                if isinstance(found, Blob):
                    deliver(index, found)

    @abstractmethod
    def close(self) -> None:
        """Frees everything; what was handed out stays valid."""


def _portions(wanted: Sequence[Wanted]) -> Iterator[tuple[int, int]]:
    """Yields ranges of objects that do not take too much memory together."""
    start = size = 0
    for index, each in enumerate(wanted):
        nbytes = each.place.payload_bytes
        if index > start and size + nbytes > _AT_ONCE:
            yield start, index
            start, size = index, 0
        size += nbytes
    if start < len(wanted):
        yield start, len(wanted)


class Holdings(Protocol):
    """What a producer holds, as its servers need it."""

    def lease(self, name: str, card: int, generation: int) -> AbstractContextManager[tuple[bytes, memoryview]]:
        """Returns header and payload of an object, which stay as they are within the context.

        Raises:
            AbsentError: it is not there (any more); the subclass says why.
            SupersededError: the place belongs to another object now.
        """
        ...
