"""How a reader gets objects: the service says who has them, each holder is asked for all of its own at once."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ...backend import Blob, GetRequest
from ...errors import AbsentError, CorruptDataError, NotFoundError, RoutingError, StoreUnavailableError
from .metadata.reading import called
from .place import Place, decode
from .transport.base import Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...backend import Choose, Deliver
    from .metadata.client import Entry, MetadataClient
    from .producing import Producer
    from .transport.base import Source
    from .transport.choose import Sources

_PAUSE: Final = 0.02  # s between tries to reach a producer that may be starting again
_LONGEST_PAUSE: Final = 0.3
_MUTE: Final = 0.5  # s for which a producer is not asked again that did not answer for as long as a call may take

Item = tuple[int, GetRequest, "Entry"]


class Puller:
    """Gets objects from whoever has them. Methods may be called from several threads.

    Args:
        client: The metadata service.
        sources: The ways to producers.
        timeout: Seconds that a call may take to reach them.
        own: Returns this process's producer, if it has one, whose objects need no way.
    """

    def __init__(
        self, client: MetadataClient, sources: Sources, timeout: float, own: Callable[[], Producer | None]
    ) -> None:
        self._client = client
        self._sources = sources
        self._timeout = timeout
        self._producer = own
        self._mute: dict[str, float] = {}  # until when, by owner

    def fetch(self, requests: Sequence[GetRequest], *, view: bool) -> list[Blob | AbsentError]:
        """Returns objects, or why they are not there; goes after those that moved meanwhile.

        Raises:
            StoreUnavailableError: one of them cannot be reached within the timeout.
        """
        deadline = time.monotonic() + self._timeout
        if len(requests) == 1:
            entry = self._client.lookup([requests[0].name])[0]
            sole = None if isinstance(entry, RoutingError) else self.attempt(requests[0], entry, deadline, view)
            if sole is not None:
                return [sole]
        found: list[Blob | AbsentError | None] = [None] * len(requests)
        left = list(range(len(requests)))
        tries = 0
        why: StoreUnavailableError | None = None
        while left:
            left, trouble = self._round(requests, left, found, deadline, view)
            spent = trouble is not None and trouble.facts.get("spent", False)
            why = why if spent and why is not None else trouble  # the last try is cut short: it says less
            if left and (spent or time.monotonic() >= deadline):
                raise why or self._restless(requests[left[0]], view)
            tries += 1
            if left and tries > 1:
                time.sleep(min(_PAUSE * 2 ** min(tries - 2, 8), _LONGEST_PAUSE))
        return [each for each in found if each is not None]

    def _restless(self, request: GetRequest, view: bool) -> RoutingError:
        """Returns why an object never lay where the service said: it moved, or is damaged where it is."""
        name = request.name
        before = self._client.lookup([name], fresh=True)[0]
        if not isinstance(before, RoutingError):
            blob = self._from(before.owner, [(0, request, before)], time.monotonic() + self._timeout, view)[0]
            if isinstance(blob, NotFoundError) and self._client.lookup([name], fresh=True)[0] == before:
                return CorruptDataError(f"{called(name)} is damaged where its producer keeps it", name=name)
        return StoreUnavailableError(f"{called(name)} moves faster than it can be read", hint="a retry may succeed")

    def _round(
        self,
        requests: Sequence[GetRequest],
        wanted: Sequence[int],
        found: list[Blob | AbsentError | None],
        deadline: float,
        view: bool,
    ) -> tuple[list[int], StoreUnavailableError | None]:
        """Asks each holder once; returns what is to be asked for again, and what a holder that is away led to."""
        homes: dict[str, list[Item]] = {}
        entries = self._client.lookup([requests[index].name for index in wanted])
        for index, entry in zip(wanted, entries, strict=True):
            if isinstance(entry, AbsentError):
                found[index] = entry
            elif isinstance(entry, RoutingError):
                raise entry
            else:
                homes.setdefault(entry.owner, []).append((index, requests[index], entry))
        left: list[int] = []
        trouble = None
        for owner, items in homes.items():
            try:
                blobs = self._from(owner, items, deadline, view)
            except StoreUnavailableError as err:
                trouble = err.with_facts(owner=owner)
                left += [index for index, _, _ in items]
                continue
            for (index, _, _), blob in zip(items, blobs, strict=True):
                if isinstance(blob, NotFoundError) and blob.facts.get("moved"):
                    left.append(index)
                elif isinstance(blob, RoutingError) and not isinstance(blob, AbsentError):
                    raise blob
                else:
                    found[index] = blob
        return left, trouble

    def attempt(self, request: GetRequest, entry: Entry, deadline: float, view: bool) -> Blob | None:
        """Returns one object if it is where the service says; None if something has to be seen to.

        Raises:
            StoreUnavailableError: its holder did not answer until the deadline.
        """
        try:
            blob = self._from(entry.owner, [(0, request, entry)], deadline, view)[0]
        except StoreUnavailableError as err:
            if err.facts.get("spent"):
                raise
            return None
        return blob if isinstance(blob, Blob) else None

    def collect(
        self,
        prefixes: Sequence[str],
        choose: Choose,
        deliver: Deliver,
    ) -> None:
        """See ``BlockingBackend._collect``."""
        homes: dict[str, list[Item]] = {}
        listings = self._client.listing(prefixes)
        chosen = choose([listing.names if listing.steady else () for listing in listings])
        for index, requests in enumerate(chosen):
            listing = listings[index]
            for request in requests:
                entry = listing.entries[listing.names.index(request.name)]
                homes.setdefault(entry.owner, []).append((index, request, entry))
        deadline = time.monotonic() + self._timeout
        for owner, items in homes.items():
            with suppress(StoreUnavailableError):
                self._hand_over(owner, items, deadline, deliver)

    def _hand_over(self, owner: str, items: Sequence[Item], deadline: float, deliver: Deliver) -> None:
        """Hands over what one holder has of some objects."""
        mine = self._mine(owner)
        if mine is None:
            wanted = [_wanted(item) for item in items]
            with self._asking(owner, deadline):
                source = self._source(owner, wanted)
                source.each(wanted, deadline, lambda at, blob: deliver(items[at][0], blob), view=True)
            return
        for index, request, _ in items:
            blob = _own(mine, request)
            if isinstance(blob, Blob):
                deliver(index, blob)

    def _from(self, owner: str, items: Sequence[Item], deadline: float, view: bool) -> list[Blob | RoutingError]:
        mine = self._mine(owner)
        if mine is not None:
            return [_own(mine, request) for _, request, _ in items]
        wanted = [_wanted(item) for item in items]
        with self._asking(owner, deadline):
            return self._source(owner, wanted).read(wanted, deadline, view=view)

    def _asking(self, owner: str, deadline: float) -> _Asking:
        return _Asking(self._mute, owner, deadline)

    def _mine(self, owner: str) -> Producer | None:
        producer = self._producer()
        return producer if producer is not None and producer.owner == owner else None

    def _source(self, owner: str, wanted: Sequence[Wanted]) -> Source:
        """Returns the way to a producer that leads to all arenas where something is wanted from."""
        newest = max([each.place.arena for each in wanted])
        info = self._client.owner(owner)
        if newest >= len(info.arenas):
            info = self._client.owner(owner, info.revision + 1)
        return self._sources.get(info)


class _Asking:
    """Within this context a producer is asked. One that uses up the time of a call is not asked again right away.

    A call that failed is made once more in a more general way, which would take as long again.

    Raises:
        StoreUnavailableError: it did not answer a moment ago, or does not until the deadline; fact ``spent``.
    """

    __slots__ = ("_deadline", "_mute", "_owner")

    def __init__(self, mute: dict[str, float], owner: str, deadline: float) -> None:
        self._mute = mute
        self._owner = owner
        self._deadline = deadline

    def __enter__(self) -> None:
        if self._mute and time.monotonic() < self._mute.get(self._owner, 0.0):
            raise StoreUnavailableError(
                f"its producer {self._owner} did not answer a moment ago", hint="a retry may succeed", spent=True
            )

    def __exit__(self, kind: object, err: BaseException | None, *_: object) -> None:
        if isinstance(err, StoreUnavailableError) and time.monotonic() >= self._deadline:
            now = time.monotonic()
            for owner in [owner for owner, until in list(self._mute.items()) if until < now]:
                self._mute.pop(owner, None)
            self._mute[self._owner] = now + _MUTE
            raise err.with_facts(spent=True) from err
        if err is None and self._mute:
            self._mute.pop(self._owner, None)


def _wanted(item: Item) -> Wanted:
    _, request, entry = item
    return Wanted(request.name, decode(entry.place, Place), request.ranges, request.into)


def _own(producer: Producer, request: GetRequest) -> Blob | RoutingError:
    """Reads what this process holds itself."""
    lease = producer.shelf.lease_own(request.name)
    if lease is None:
        return NotFoundError(f"{request.name} was deleted", moved=True)
    with lease as (header, payload):
        if request.ranges is None:
            return Blob(header, (bytes(payload),))
        return Blob(header, tuple(bytes(payload[start:stop]) for start, stop in request.ranges))
