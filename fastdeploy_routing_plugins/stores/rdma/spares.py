"""Copies of what another producer serves: published when that one ends.

Who puts what another producer holds already is told that it is there, and that readers can get it. That stays true
when the other one closes, or is lost: this one's copy was kept for it.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final

from ...envelope import PartHeader, decode_header
from ...errors import (
    AbsentError,
    CorruptDataError,
    DeletedError,
    NotFoundError,
    ProducerLostError,
    RoutingError,
    SupersededError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .metadata.client import Entry, MetadataClient
    from .shelf import Shelf

_AT_ONCE: Final = 1000  # copies that are asked after at a time, once a second


class Spares:
    """The copies on one shelf. Methods may be called from several threads.

    Args:
        shelf: Where they lie; ``Held.spare`` marks them.
        client: The metadata service.
        owner: The id of this producer.
    """

    def __init__(self, shelf: Shelf, client: MetadataClient, owner: str) -> None:
        self._shelf = shelf
        self._client = client
        self._owner = owner
        self._lock = threading.Lock()
        self._unknown: dict[str, int] = {}  # names in turn, and how often the service did not know them at all

    def keep(self, name: str) -> None:
        """Takes note of an object on the shelf that another producer serves."""
        with self._lock:
            self._unknown[name] = 0

    def drop(self) -> bool:
        """Makes room: lets all copies go; returns whether there were any."""
        with self._lock:
            self._unknown.clear()
        return self._shelf.drop_spares() > 0

    def look(self) -> None:
        """Asks after some copies: publishes those that nobody else serves any more, drops those that were deleted.

        Raises:
            StoreUnavailableError: the service does not answer.
        """
        if not self._unknown:
            return
        with self._lock:
            names = list(itertools.islice(self._unknown, _AT_ONCE))
            for name in names:  # whose turn is over goes to the end
                self._unknown[name] = self._unknown.pop(name)
        for name in [name for name in names if not self._is_kept(name)]:  # deleted here meanwhile
            names.remove(name)
            self._forget(name)
        entries = self._client.lookup(names, fresh=True)
        self._publish([name for name, entry in zip(names, entries, strict=True) if self._is_ours_now(name, entry)])

    def _is_ours_now(self, name: str, entry: Entry | RoutingError) -> bool:
        """Whether nobody else serves an object any more; lets the copy of one go that nobody is to have."""
        if isinstance(entry, (DeletedError, SupersededError)):
            self._forget(name)
            self._shelf.drop_spares([name])
            return False
        unknown = isinstance(entry, NotFoundError)
        with self._lock:
            before = self._unknown.get(name, 0)
            if name in self._unknown:
                self._unknown[name] = before + 1 if unknown else 0
        if unknown:  # a service that has just started may not have been told yet
            return before > 0
        return isinstance(entry, (AbsentError, ProducerLostError))

    def _publish(self, names: Sequence[str]) -> None:
        ours = [held for name in names if (held := self._shelf.serve(name)) is not None]
        if not ours:
            return
        left = {held.name: held for held in ours}
        try:
            outcomes = self._client.publish(self._owner, [(held.name, held.raw) for held in ours])
            for held, outcome in zip(ours, outcomes, strict=True):
                if outcome is None:
                    del left[held.name]
                    self._forget(held.name)
        finally:
            for name, held in left.items():  # somebody else was faster, or the service did not answer
                self._shelf.spare(name, held)

    def _is_kept(self, name: str) -> bool:
        held = self._shelf.get(name)
        return held is not None and held.spare

    def _forget(self, name: str) -> None:
        with self._lock:
            self._unknown.pop(name, None)


def same_content(one: bytes, stored: bytes) -> bool:
    """Whether two headers are of the same routing, and the first states no weights that the other does not."""
    if one == stored:
        return True
    try:
        mine, theirs = decode_header(one), decode_header(stored)
    except (CorruptDataError, UnsupportedError):
        return False
    if isinstance(mine, PartHeader) and isinstance(theirs, PartHeader) and not mine.same_weights(theirs):
        return False
    return mine.same_content(theirs)
