"""The metadata service as its clients see it: ``MetadataClient``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ....errors import CorruptDataError, ProducerLostError, StoreClosedError, StoreUnavailableError
from ....keys import encode_namespace
from .. import place
from . import messages as m
from .channel import EarlierError
from .connection import Connection, open_clients
from .embedded import Shared
from .naming import DEPTH, digest, rollout_of
from .page import bucket_of
from .reading import take_entries, take_listing, take_listings, take_published
from .security import Security
from .values import Entry, Listing
from .whereabouts import Fixed, Whereabouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....errors import RoutingError
    from ..address import Address
    from ..place import OwnerInfo
    from .channel import Channel

__all__ = ["Entry", "Listing", "MetadataClient", "Security"]

_AT_ONCE: Final = 1000  # names in one question
_SLICE: Final = 1.0  # s that one question waits: a service that is started again knows of none
_POLL: Final = 0.1  # s between looks at a listing that is too long to wait for
_RETRY: Final = 0.02  # s between tries while an owner is not registered
_BRIEF: Final = 0.5  # s for a question whose answer only helps
_REASONS: Final = {"deleted": m.Reason.DELETED, "evicted": m.Reason.EVICTED, "superseded": m.Reason.SUPERSEDED}

T = TypeVar("T")


class MetadataClient:
    """Asks a metadata service. Blocking; any number of threads may call it, and a forked child may go on with it.

    Every call ends within ``timeout`` seconds (``wait``: at its own deadline). Calls that meet a service that was just
    started again wait, within that time, until producers have told it what they hold.

    Args:
        address: Where the service is; None: the one that the processes of this host and user share, which this process
            runs if nobody else does.
        namespace: The namespace's text, not encoded; the client cannot leave it.
        security: Keys and secret.
        timeout: Seconds after which a call gives up on a silent service.
    """

    def __init__(
        self,
        address: Address | None,
        namespace: str,
        security: Security | None = None,
        timeout: float = 5.0,
    ) -> None:
        self.timeout = timeout
        self.namespace = encode_namespace(namespace)
        self._where: Whereabouts = (
            Shared(self.namespace) if address is None else Fixed(address, security or Security())
        )
        self._connection: Connection | None = None
        self._closed = False
        self.mine: tuple[str, ...] = ()  # owners whose links go through this client

    def open(self) -> None:
        """Finds the service and greets it.

        Raises:
            StoreUnavailableError: it does not answer; the hint says how to start one.
            UnsupportedError: it speaks another version of the protocol, or refuses this client.
            ConfigError: the keys cannot be used.
        """
        if self._connection is None:
            self._connection = Connection(self._where, self.namespace)
            open_clients().clients.add(self)
        try:
            self.greet()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Frees everything; calls under way in other threads end at once with ``StoreClosedError``."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._where.close()

    def in_child(self) -> None:
        """In a forked child: leaves the parent's sockets alone, and makes own ones when they are needed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave_behind()
            self._where.in_child()
            self.mine = ()
            self._connection = Connection(self._where, self.namespace)

    @property
    def epoch(self) -> int:
        """The service's number of this start, as of its latest answer; 0 before the first."""
        connection = self._connection
        return 0 if connection is None else connection.epoch

    def greet(self) -> None:
        """Makes sure that the service answers the calling thread. Raises as ``open``."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self.connection().channel().greet(deadline)
            except EarlierError:
                continue

    # --- asking -------------------------------------------------------------------------------------------------

    def new_channel(self) -> Channel:
        """Returns a channel of its own for a thread that keeps and closes it."""
        return self.connection().new_channel()

    def connection(self) -> Connection:
        """Returns what this process's threads share. Raises StoreClosedError."""
        connection = self._connection
        if connection is None:
            raise StoreClosedError("the store was closed" if self._closed else "the client is not open")
        return connection

    def ask(
        self, body: Any, *, deadline: float = 0.0, until: float | None = None, channel: Channel | None = None
    ) -> Any:
        """Asks a question and returns the answer; asks anew if the service was started again.

        Args:
            body: The question.
            deadline: When to give up; in ``timeout`` seconds unless given.
            until: See ``Channel.ask``.
            channel: Which one to use; the calling thread's unless given.
        """
        connection = self.connection()
        deadline = deadline or time.monotonic() + self.timeout
        channel = channel or connection.channel()
        number = channel.new_number()
        while True:
            try:
                channel.greet(deadline)
                return channel.ask(body, number, deadline, patient=connection.restarted, until=until)[1]
            except EarlierError:
                continue

    def _insist(self, body: Any, deadline: float, kind: type[T]) -> T:
        """Asks until the service is ready to answer; returns an answer of this kind."""
        while True:
            answer = self.ask(body, deadline=deadline)
            if type(answer) is kind:
                return answer
            if type(answer) is not m.Refused:
                raise CorruptDataError(f"the metadata service answers {type(body).__name__} with {answer!r:.100}")
            if answer.code == m.Refusal.FULL:
                raise StoreUnavailableError(answer.message, hint="delete what is not needed, or raise its limits")
            left = deadline - time.monotonic()
            if left <= 0:
                raise StoreUnavailableError(f"the metadata service cannot say yet: {answer.message}")
            time.sleep(min(_RETRY, left))

    # --- reading ------------------------------------------------------------------------------------------------

    def listing(self, prefixes: Sequence[str]) -> list[Listing]:
        """Returns what lies under each prefix; one round trip for all of them, unless what comes is large.

        Raises:
            StoreUnavailableError: the service does not answer.
            StoreClosedError: the client was closed.
        """
        connection = self.connection()
        found = connection.cache.get_all(prefixes)
        missing = [prefix for prefix, listing in found.items() if listing is None]
        deadline = time.monotonic() + self.timeout
        for at in range(0, len(missing), _AT_ONCE):
            part = missing[at : at + _AT_ONCE]
            found.update(take_listings(part, lambda body: self._insist(body, deadline, m.Listings), connection))
        return [found[prefix] for prefix in prefixes]  # type: ignore[misc]

    def listed(self, prefix: str) -> Listing:
        """Returns what lies under one prefix. Costs no question if that is remembered, or certainly is nothing."""
        listing = self.connection().cache.get(prefix)
        if listing is not None:
            return listing
        return Listing([], []) if self.vacant(prefix) else self.listing([prefix])[0]

    def vacant(self, prefix: str) -> bool:
        """Whether certainly nothing is under a rollout's prefix; False: ask. Costs no question."""
        page = self.connection().page
        return page is not None and prefix.count("/") == DEPTH and page.vacant(bucket_of(prefix))

    def lookup(self, names: Sequence[str], *, fresh: bool = False) -> list[Entry | RoutingError]:
        """Returns who holds each object and where, or why nobody does; ``fresh``: the service says so now.

        The errors are ``NotFoundError``, ``DeletedError``, ``EvictedError``, ``SupersededError``,
        ``ProducerLostError`` and, while the producer gives no sign, ``StoreUnavailableError`` (facts: ``owner``,
        ``producer``).
        """
        connection = self.connection()
        found: list[Entry | RoutingError | None] = [
            None if fresh else connection.cache.find(rollout_of(name), name) for name in names
        ]
        missing = [index for index, entry in enumerate(found) if entry is None]
        deadline = time.monotonic() + self.timeout
        for at in range(0, len(missing), _AT_ONCE):
            part = missing[at : at + _AT_ONCE]
            answer = self._insist(m.AskEntries([names[index] for index in part]), deadline, m.Entries)
            for index, entry in zip(part, take_entries([names[index] for index in part], answer), strict=True):
                found[index] = entry
        return found  # type: ignore[return-value]

    def wait(self, prefix: str, seen: Sequence[str], deadline: float) -> Listing:
        """Returns the listing as soon as its names differ from ``seen``, or whatever it is at the deadline.

        Args:
            prefix: As in ``listing``.
            seen: The names of an earlier listing.
            deadline: In seconds of ``time.monotonic()``.

        Raises:
            StoreUnavailableError: the service does not answer.
            StoreClosedError: the client was closed.
        """
        connection = self.connection()
        known, mark = list(seen), digest(seen)
        listing = connection.cache.get(prefix)
        while listing is None or listing.names == known:
            now = time.monotonic()
            if now >= deadline:
                return listing or self.listing([prefix])[0]
            until = min(deadline, now + _SLICE)
            body = m.AskChange(prefix, len(known), mark)
            answer = self.ask(body, deadline=until + self.timeout, until=until)
            listing = None
            if type(answer) is m.Listings:
                listing = take_listing(prefix, answer, connection)
            elif type(answer) is m.Unchanged and answer.poll:
                time.sleep(max(0.0, min(_POLL, deadline - time.monotonic())))
                listing = self.listing([prefix])[0]
        return listing

    def owner(self, owner_id: str, revision: int = 0) -> OwnerInfo:
        """Returns what an owner said about itself, at least in this revision; remembered after the first time.

        Raises:
            ProducerLostError: it is gone.
            StoreUnavailableError: the service does not answer, or knows no such owner or revision (yet).
        """
        connection = self.connection()
        info = connection.owners.get(owner_id)
        if info is not None and info.revision >= revision:
            return info
        answer = self._insist(m.AskOwner(owner_id, revision), time.monotonic() + self.timeout, m.OwnerIs)
        info = place.decode(answer.info, place.OwnerInfo)
        if answer.state >= m.State.LOST:
            raise ProducerLostError(f"producer {info.producer} is gone", owner=owner_id, producer=info.producer)
        connection.owners[owner_id] = info
        return info

    def lives(self, owner_id: str) -> bool | None:
        """Returns whether an owner gives signs of life; None if the service does not say so soon.

        Raises:
            StoreClosedError: the client was closed.
        """
        try:
            answer = self.ask(m.AskOwner(owner_id, 0), deadline=time.monotonic() + _BRIEF)
        except StoreUnavailableError:
            return None
        return bool(answer.state == m.State.ALIVE) if type(answer) is m.OwnerIs else None

    def status(self) -> dict[str, Any]:
        """Returns the service's figures."""
        return self._insist(m.AskStatus(), time.monotonic() + self.timeout, m.StatusIs).figures

    # --- writing ------------------------------------------------------------------------------------------------

    def publish(
        self, owner: str, items: Sequence[tuple[str, bytes]], again: bool = False
    ) -> list[Entry | RoutingError | None]:
        """Says that an owner holds objects. The owner must be registered, see ``ProducerLink``.

        Args:
            owner: The owner's id.
            items: Names, and where the owner has them.
            again: Whether this only repeats what was said before; what was deleted meanwhile is then refused.

        Returns:
            For each: None, it was taken; an ``Entry``, the name exists and belongs to another owner or place, and
            nothing was changed; with ``again``, ``DeletedError`` or another ``AbsentError`` for what was deleted.

        Raises:
            StoreUnavailableError: the service does not answer, or does not know the owner (yet).
        """
        connection = self.connection()
        deadline = time.monotonic() + self.timeout
        outcomes: list[Entry | RoutingError | None] = []
        for at in range(0, len(items), _AT_ONCE):
            part = items[at : at + _AT_ONCE]
            body = m.Publish(owner, [name for name, _ in part], [where for _, where in part], again)
            answer = self._insist(body, deadline, m.Published)
            outcomes += take_published(body.names, answer, connection)
        return outcomes

    def delete(self, names: Sequence[str], reason: str = "deleted") -> int:
        """Removes objects, whoever holds them; returns how many there were.

        Their owners are told to free them, but for those whose link goes through this client: the caller frees theirs.

        Args:
            names: Full names.
            reason: ``"deleted"``, ``"evicted"`` or ``"superseded"``: what readers are told afterwards.
        """
        deadline = time.monotonic() + self.timeout
        count = 0
        for at in range(0, len(names), _AT_ONCE):
            body = m.Delete(list(names[at : at + _AT_ONCE]), int(_REASONS[reason]), list(self.mine))
            count += self._insist(body, deadline, m.Deleted).count
        return count

    def delete_prefix(self, prefix: str) -> int:
        """Removes everything under a prefix, whoever holds it; returns how many there were. See ``delete``."""
        count, more = 0, True
        while more:
            body = m.DeletePrefix(prefix, list(self.mine))
            answer = self._insist(body, time.monotonic() + self.timeout, m.Deleted)
            count, more = count + answer.count, answer.more
        return count
