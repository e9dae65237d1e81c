"""Copies of what another producer serves: published when that one ends.

Who puts what another producer holds already is told that it is there, and that readers can get it. That stays true
when the other one closes, or is lost: this one's copy was kept for it.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from ...envelope import PartHeader, decode_header
from ...errors import (
    AbsentError,
    CorruptDataError,
    DeletedError,
    EvictedError,
    NotFoundError,
    ProducerLostError,
    RoutingError,
    StoreUnavailableError,
    SupersededError,
    UnsupportedError,
)
from ...threads import begin
from .metadata.client import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .held import Held
    from .metadata.client import MetadataClient
    from .shelf import Shelf

_AT_ONCE: Final = 10_000  # copies that are asked after at a time, about once a second

_FAILURES: Final = 3  # comparisons that may fail before the next look

Stored = Callable[[str], "tuple[Entry, bytes] | None"]
"""Returns who else holds an object, and its header; None if that cannot be had now."""


class _Copy(msgspec.Struct):
    """What is known of an object that lies here as well.

    Attributes:
        owner: Who serves it, as it was when its header was compared with that of the copy.
        where: In which place.
        unknown: How often in turn the service did not know it at all.
        doubtful: Whether somebody serves what was not compared yet, so that the copy may be of what was deleted.
    """

    owner: str = ""
    where: bytes = b""
    unknown: int = 0
    doubtful: bool = False


class Spares:
    """The copies on one shelf. Methods may be called from several threads.

    Args:
        shelf: Where they lie; ``Held.spare`` marks them.
        client: The metadata service.
        owner: The id of this producer.
        stored: See ``Stored``; called in a thread of its own, since it may take its time.
    """

    def __init__(self, shelf: Shelf, client: MetadataClient, owner: str, stored: Stored) -> None:
        self._shelf = shelf
        self._client = client
        self._owner = owner
        self._stored = stored
        self._lock = threading.Lock()
        self._copies: dict[str, _Copy] = {}  # in turn
        self._comparing: threading.Thread | None = None

    def keep(self, entry: Entry) -> None:
        """Takes note of an object on the shelf that another producer serves, and that is the same there."""
        with self._lock:
            self._copies[entry.name] = _Copy(entry.owner, entry.place)

    def doubt(self, name: str) -> None:
        """Takes note of an object on the shelf that another producer serves, perhaps with other content."""
        with self._lock:
            self._copies[name] = _Copy(doubtful=True)

    def drop(self) -> bool:
        """Makes room: lets all copies go; returns whether there were any."""
        with self._lock:
            self._copies.clear()
        return self._shelf.drop_spares() > 0

    def look(self) -> None:
        """Asks after some copies: publishes those that nobody else serves any more, drops those that were deleted.

        Raises:
            StoreUnavailableError: the service does not answer.
        """
        if not self._copies:
            return
        with self._lock:
            names = list(itertools.islice(self._copies, _AT_ONCE))
            for name in names:  # whose turn is over goes to the end
                self._copies[name] = self._copies.pop(name)
        kept = [name for name in names if self._is_kept(name)]
        for name in set(names).difference(kept):  # deleted here meanwhile
            if not self._is_kept(name):
                self._forget(name)
        entries = self._client.lookup(kept, fresh=True)
        found = [(name, entry) for name, entry in zip(kept, entries, strict=True) if self._is_ours_now(name, entry)]
        # What another one evicted is there as long as any of them has it; what was deleted meanwhile is not.
        evicted = [name for name, entry in found if isinstance(entry, EvictedError)]
        self._publish(evicted, again=False)
        self._publish([name for name, entry in found if not isinstance(entry, EvictedError)], again=True)
        self._compare()

    def _is_ours_now(self, name: str, entry: Entry | RoutingError) -> bool:
        """Whether nobody else serves an object any more; lets the copy of one go that nobody is to have."""
        with self._lock:
            copy = self._copies.get(name)
            if copy is None:
                return False
            unknown = isinstance(entry, NotFoundError)
            before, copy.unknown = copy.unknown, copy.unknown + 1 if unknown else 0
            if isinstance(entry, Entry):
                if entry.owner == self._owner:
                    return True  # the service took it, and its answer did not arrive
                # Deleted and put again since, perhaps with other content, unless an heir of that producer has it.
                copy.doubtful = copy.doubtful or (entry.owner, entry.place) != (copy.owner, copy.where)
                return False
            if unknown and not before:
                return False  # a service that has just started may not have been told yet
            gone = isinstance(entry, (DeletedError, SupersededError))
            if not gone and not isinstance(entry, (AbsentError, ProducerLostError)):
                return False
            if not gone and not copy.doubtful:
                return True
            del self._copies[name]
        self._shelf.drop_spares([name])
        return False

    def _publish(self, names: Sequence[str], *, again: bool) -> None:
        ours = [held for name in names if (held := self._shelf.serve(name)) is not None]
        if not ours:
            return
        left = {held.name: held for held in ours}
        try:
            items = [(held.name, held.raw) for held in ours]
            outcomes = self._client.publish(self._owner, items, again=again)
            for held, outcome in zip(ours, outcomes, strict=True):
                if outcome is None:
                    del left[held.name]
                    self._shelf.known(held)
                    self._forget(held.name)
        finally:
            for name, held in left.items():  # somebody else was faster, or the service did not answer
                self._shelf.spare(name, held)
                with self._lock:
                    self._copies.setdefault(name, _Copy(doubtful=True))
        for held, outcome in zip(ours, outcomes, strict=True):
            if isinstance(outcome, AbsentError):  # deleted meanwhile
                self._let_go(held)

    # --- comparing ----------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Sees to it that what others serve is compared with the copies."""
        if self._comparing is not None and self._comparing.is_alive():
            return
        with self._lock:
            names = [name for name, copy in self._copies.items() if copy.doubtful]
        if names:
            thread = threading.Thread(target=self._compare_each, args=(names,), daemon=True)
            with suppress(StoreUnavailableError):  # at a later look
                begin(thread)
                self._comparing = thread

    def _compare_each(self, names: Sequence[str]) -> None:
        failures = 0
        for name in random.sample(names, len(names)):  # those of a producer that hangs must not keep others from it
            held = self._shelf.get(name)
            try:
                found = None if held is None or not held.spare else self._stored(name)
            except RoutingError:  # at a later look, if it is there still
                failures += 1
                if failures == _FAILURES:
                    return
                continue
            if held is None or found is None or self._shelf.get(name) is not held:
                continue
            entry, header = found
            if same_content(held.header, header):
                self.keep(entry)
            else:
                self._let_go(held)

    def _let_go(self, held: Held) -> None:
        """Lets a copy go, unless it was put again since."""
        if self._shelf.get(held.name) is held:
            self._forget(held.name)
            self._shelf.drop_spares([held.name])

    def _is_kept(self, name: str) -> bool:
        held = self._shelf.get(name)
        return held is not None and held.spare

    def _forget(self, name: str) -> None:
        with self._lock:
            self._copies.pop(name, None)


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
