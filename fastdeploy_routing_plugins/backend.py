"""What the author of a store writes: a blob store with a handful of verbs.

Keys, parts, digests, ranges over layers and waiting are done once, by ``RoutingStore``; a backend moves opaque headers
and payloads under opaque names. Two forms with the same verbs: ``Backend`` for asyncio code, ``BlockingBackend`` for a
blocking SDK (its methods are called from several threads at once).

Rules that the conformance kit checks:

* ``_put`` is create-if-absent, atomic between processes: a name appears whole, or not at all, and never changes.
* What ``_put`` accepted, every process finds at once by ``_get`` and ``_list``.
* Absence is an ``AbsentError`` (usually ``NotFoundError``), never None and never empty bytes.
* Names contain only ``0-9 a-z - . _ % = ` ~`` and ``/`` and have at most 400 characters.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .buffer import Buffer, LentBlock
from .errors import AbsentError, UnsupportedError

if TYPE_CHECKING:
    from .arena.file import ArenaFile
    from .errors import RoutingError

__all__ = [
    "Backend", "Blob", "BlockingBackend", "Buffer", "Choose", "Deliver", "GetRequest", "LentBlock", "Ranges",
    "poll_until_changed",
]  # fmt: skip

Ranges = Sequence[tuple[int, int]]
"""Half-open byte ranges ``(start, stop)`` of a payload, ascending, disjoint; ``()`` asks for the header only."""

POLL_FIRST = 0.001
POLL_LIMIT = 0.05
COLLECTED = 16  # objects that ``_collect`` gets at once


class Blob(msgspec.Struct, frozen=True, gc=False):
    """A stored object, or some of it.

    Attributes:
        header: The header exactly as it was put.
        payload: The whole payload as one bytes-like object, or one per asked range.
    """

    header: bytes
    payload: tuple[bytes | bytearray | memoryview, ...]

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("header_bytes", len(self.header)), ("pieces", len(self.payload))]

    def __repr__(self) -> str:
        return f"Blob(header of {len(self.header)} bytes, {len(self.payload)} pieces)"


class GetRequest(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One item of ``_get_many``; see ``_get`` for the fields. Equal are two that get the same.

    Attributes:
        into: Writable memory of the payload's size, where a backend may put it instead of into memory of its own. It
            may be written to even if nothing comes of it, but not after the call has returned.
    """

    name: str
    ranges: Ranges | None = None
    into: memoryview | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GetRequest):
            return NotImplemented
        return (self.name, self.ranges) == (other.name, other.ranges)

    def __hash__(self) -> int:
        return hash((self.name, self.ranges))


Choose = Callable[[Sequence[Sequence[str]]], Sequence[Sequence[GetRequest]]]
"""Told once of the names under all prefixes of ``_collect``; says what to get, prefix by prefix."""

Deliver = Callable[[int, Blob], None]
"""Takes an object, with an index. What it does not keep may be used again.

It may be called from several threads at the same time; objects of one index come one after the other.
"""


class Backend(ABC):
    """An asynchronous blob store. Must not block the event loop; one instance serves one event loop.

    Every store has ``_put`` and ``_delete``; ``_get`` with ``Capability.READ`` and ``_list`` with ``Capability.LIST``.
    All other verbs have defaults. A cancelled verb leaves its object whole or absent, and no connection open.
    """

    digests_on_copy: bool = False
    """See ``BlockingBackend``; only that form of a backend can have it."""

    async def _open(self) -> None:  # noqa: B027
        """Connects or prepares. Never deletes or changes what is stored."""

    async def _close(self) -> None:  # noqa: B027
        """Frees everything. Called once, also after a failed ``_open``; must return within seconds."""

    async def _flush(self) -> None:  # noqa: B027
        """Returns when every accepted put is as durable as the store makes it."""

    @abstractmethod
    async def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        """Creates an object; returns when every reader can get it.

        Raises:
            AlreadyExistsError: the name exists; carries the stored header, ``AlreadyExistsError(..., header=...)``.
            StoreUnavailableError: not possible now, a retry may succeed; the name then exists whole or not at all.
        """

    @abstractmethod
    async def _delete(self, names: Sequence[str]) -> int:
        """Deletes objects; returns how many of them existed. Unknown names are no error."""

    async def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        """Returns an object. ``ranges`` is only passed to a backend with ``Capability.RANGE``.

        Raises:
            AbsentError: there is none; the subclass says why, ``NotFoundError`` if nothing more is known.
        """
        raise UnsupportedError("this store keeps nothing that could be read")

    async def _list(self, prefix: str) -> list[str]:
        """Returns the names that begin with ``prefix``, sorted."""
        raise UnsupportedError("this store cannot list what it holds")

    async def _clear(self, prefix: str) -> int:
        """Deletes every object whose name begins with ``prefix``; returns how many."""
        names = await self._list(prefix)
        return await self._delete(names) if names else 0

    async def _wait(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        """Returns ``_list(prefix)`` as soon as it differs from ``seen``, or whatever it is at the deadline.

        Args:
            prefix: As in ``_list``.
            seen: An earlier result of ``_list(prefix)``.
            deadline: In seconds of ``time.monotonic()``.
        """
        return await poll_until_changed(self._list, prefix, seen, deadline)

    async def _absence(self, prefix: str) -> RoutingError | None:
        """Says why nothing is under a prefix, if this backend knows more than that nothing is."""
        return None

    async def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        """Gets several objects at once; absences are returned in place, other errors are raised."""

        async def one(request: GetRequest) -> Blob | AbsentError:
            try:
                return await (self._get(request.name) if request.ranges is None else self._get(*_pair(request)))
            except AbsentError as err:
                return err

        return list(await asyncio.gather(*[one(request) for request in requests]))

    async def _view_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        """As ``_get_many``; what it returns may lie in the store's own memory while something refers to it."""
        return await self._get_many(requests)

    async def _list_many(self, prefixes: Sequence[str]) -> list[list[str]]:
        """Returns ``_list`` of each of several prefixes."""
        return list(await asyncio.gather(*[self._list(prefix) for prefix in prefixes]))

    async def _look(self, prefix: str, view: bool) -> tuple[list[str], Blob | None]:
        """Returns ``_list`` of a prefix and, where that saves a question, the object if there is exactly one.

        Args:
            prefix: As in ``_list``.
            view: Whether the bytes may lie in the store's own memory, as with ``_view_many``.
        """
        return await self._list(prefix), None

    async def _release(self, names: Sequence[str]) -> None:  # noqa: B027
        """Tells a backend with ``Capability.RETAIN`` that readers are done with these objects."""

    async def _make_room(self, arena: ArenaFile, nbytes: int) -> int:
        """Called of a backend with ``Capability.RETAIN`` while an engine waits for room in its arena.

        A backend that may lose something gives buffers back, see ``Buffer.release``.

        Args:
            arena: Where there is no room, ``LentBlock.arena`` of what was lent from there.
            nbytes: How much is waited for.

        Returns:
            How many bytes were given back; 0 if nothing may go.
        """
        return 0

    async def _inherit(self) -> None:  # noqa: B027
        """Called after ``_open`` by a store worker: takes over what a dead one kept that wrote as this one.

        Only a store worker calls it: what somebody takes over goes when he closes the store.
        """

    async def _linger(self) -> None:  # noqa: B027
        """Called before ``_close`` when this process has nothing more to put, but is a store worker.

        Returns when nothing that this process keeps is needed by readers any more, or was kept long enough.
        """


class BlockingBackend(ABC):
    """A blob store over a blocking SDK: the verbs of ``Backend`` as plain methods, called from several threads.

    Every store has ``_put`` and ``_delete``; ``_get`` with ``Capability.READ`` and ``_list`` with ``Capability.LIST``.
    All other verbs have defaults.
    """

    threads: int = 8
    """How many calls the asynchronous form of the store makes at the same time."""

    digests_on_copy: bool = False
    """Whether ``_put`` copies what is not lent with ``Buffer.copy_into``, and takes the header that it returns."""

    def _open(self) -> None:  # noqa: B027
        """See ``Backend``."""

    def _close(self) -> None:  # noqa: B027
        """See ``Backend``."""

    def _flush(self) -> None:  # noqa: B027
        """See ``Backend``."""

    @abstractmethod
    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        """See ``Backend``."""

    @abstractmethod
    def _delete(self, names: Sequence[str]) -> int:
        """See ``Backend``."""

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        """See ``Backend``."""
        raise UnsupportedError("this store keeps nothing that could be read")

    def _list(self, prefix: str) -> list[str]:
        """See ``Backend``."""
        raise UnsupportedError("this store cannot list what it holds")

    def _clear(self, prefix: str) -> int:
        """See ``Backend``."""
        names = self._list(prefix)
        return self._delete(names) if names else 0

    def _wait(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        """See ``Backend``. Overridden only with ``Capability.NOTIFY``; blocks the calling thread."""
        pause = POLL_FIRST
        while True:
            names = self._list(prefix)
            left = deadline - time.monotonic()
            if left <= 0 or names != list(seen):
                return names
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, POLL_LIMIT)

    def _absence(self, prefix: str) -> RoutingError | None:
        """See ``Backend``."""
        return None

    def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        """See ``Backend``."""
        results: list[Blob | AbsentError] = []
        for request in requests:
            try:
                results.append(self._get(request.name) if request.ranges is None else self._get(*_pair(request)))
            except AbsentError as err:
                results.append(err)
        return results

    def _view_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        """See ``Backend``."""
        return self._get_many(requests)

    def _list_many(self, prefixes: Sequence[str]) -> list[list[str]]:
        """See ``Backend``."""
        return [self._list(prefix) for prefix in prefixes]

    def _look(self, prefix: str, view: bool) -> tuple[list[str], Blob | None]:
        """See ``Backend``."""
        return self._list(prefix), None

    def _collect(
        self,
        prefixes: Sequence[str],
        choose: Choose,
        deliver: Deliver,
    ) -> None:
        """Lists prefixes, and hands over what is wanted of what lies there; leaves out what is not to be had.

        Overridden where one object can be handed over while others are on their way, or where listing and getting are
        one question. What is left out, for whatever reason, is asked for again by other verbs, which tell why.

        Args:
            prefixes: As in ``_list``.
            choose: See ``Choose``.
            deliver: Takes the objects asked for under a prefix, in order. The bytes may lie in the store's own memory,
                as with ``_view_many``.
        """
        chosen = choose(self._list_many(prefixes))
        wanted = [(index, request) for index, requests in enumerate(chosen) for request in requests]
        for at in range(0, len(wanted), COLLECTED):
            some = wanted[at : at + COLLECTED]
            for (index, _), found in zip(some, self._view_many([request for _, request in some]), strict=True):
                if not isinstance(found, AbsentError):
                    deliver(index, found)

    def _release(self, names: Sequence[str]) -> None:  # noqa: B027
        """See ``Backend``."""

    def _make_room(self, arena: ArenaFile, nbytes: int) -> int:
        """See ``Backend``."""
        return 0

    def _inherit(self) -> None:  # noqa: B027
        """See ``Backend``."""

    def _linger(self) -> None:  # noqa: B027
        """See ``Backend``."""


def _pair(request: GetRequest) -> tuple[str, Ranges | None]:
    return request.name, request.ranges


async def poll_until_changed(
    listing: Callable[[str], object], prefix: str, seen: Sequence[str], deadline: float
) -> list[str]:
    """Polls an asynchronous ``_list`` with growing pauses (1 to 50 ms) until it changes or the deadline passes."""
    pause = POLL_FIRST
    while True:
        names: list[str] = await listing(prefix)  # type: ignore[misc]
        left = deadline - time.monotonic()
        if left <= 0 or names != list(seen):
            return names
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, POLL_LIMIT)
