"""Answers of the service turned into entries, listings and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....errors import (
    CorruptDataError,
    DeletedError,
    EvictedError,
    InvalidKeyError,
    NotFoundError,
    ProducerLostError,
    RoutingError,
    StoreUnavailableError,
    SupersededError,
)
from ....names import PartName, parse_name
from . import messages as m
from .page import BUCKETS
from .values import Entry, Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from .connection import Connection

_HINT_LOST: Final = "the process that held it died; what it held was in its memory"


def called(name: str) -> str:
    """Returns what people call an object: its rollout, and which part of it."""
    try:
        stored = parse_name(name)
    except InvalidKeyError:
        return name
    rollout = f"a rollout with a long id ({stored.rollout})" if stored.rollout_id is None else repr(stored.rollout_id)
    what = stored.object
    return f"{rollout}, {what.part}," if isinstance(what, PartName) else rollout


def absence(name: str, reason: int) -> RoutingError:
    """Returns the error for a name that is not there for this reason."""
    name = called(name)
    if reason == m.Reason.DELETED:
        return DeletedError(f"{name} was deleted")
    if reason == m.Reason.EVICTED:
        return EvictedError(f"{name} was evicted")
    if reason == m.Reason.SUPERSEDED:
        return SupersededError(f"{name} was replaced by a later attempt")
    if reason == m.Reason.LOST:
        return ProducerLostError(f"{name} is lost with its producer", hint=_HINT_LOST)
    if reason == m.Reason.CLOSED:
        return EvictedError(f"{name} is gone: its producer closed")
    return NotFoundError(f"nobody holds {name}")


def _odd(what: str) -> CorruptDataError:
    return CorruptDataError(f"an answer of the metadata service contradicts itself: {what}")


def _owner(row: int, owners: Sequence[m.OwnerRow]) -> m.OwnerRow:
    if not 0 <= row < len(owners):
        raise _odd("it refers to an owner that it does not name")
    return owners[row]


def take_entries(names: Sequence[str], answer: m.Entries) -> list[Entry | RoutingError]:
    """Returns what an answer says about each name.

    Raises:
        CorruptDataError: the answer contradicts itself.
    """
    if not len(names) == len(answer.which) == len(answer.places):
        raise _odd("as many names as places")
    return [
        absence(name, -1 - row) if row < 0 else _entry(name, _owner(row, answer.owners), where)
        for name, row, where in zip(names, answer.which, answer.places, strict=True)
    ]


def _entry(name: str, owner: m.OwnerRow, where: bytes) -> Entry | RoutingError:
    if owner.state == m.State.ALIVE:
        return Entry(name, owner.owner, where)
    facts = {"owner": owner.owner, "producer": owner.producer}
    name = called(name)
    if owner.state == m.State.LOST:
        return ProducerLostError(f"{name} is lost with its producer {owner.producer}", hint=_HINT_LOST, **facts)
    if owner.state == m.State.CLOSED:
        return EvictedError(f"{name} is gone: its producer {owner.producer} closed", **facts)
    return StoreUnavailableError(
        f"the producer of {name} {owner.producer}, gives no sign",
        hint="it may be starting again; if not, its routing counts as lost soon",
        **facts,
    )


def take_listing(prefix: str, answer: m.Listings, connection: Connection) -> Listing:
    """Returns the only listing of an answer, and remembers it."""
    if len(answer.rows) != 1:
        raise _odd(f"{len(answer.rows)} listings where one was asked for")
    return _listing(prefix, answer.rows[0], answer.owners, answer.ground, connection)


def take_listings(
    prefixes: Sequence[str], ask: Callable[[Any], Any], connection: Connection
) -> Iterator[tuple[str, Listing]]:
    """Asks for listings, in as many pages as they have.

    Args:
        prefixes: What to list.
        ask: Asks the service.
        connection: Remembers listings.
    """
    left = list(prefixes)
    while left:
        answer: m.Listings = ask(m.AskListings(left))
        if not 0 < len(answer.rows) <= len(left):
            raise _odd(f"{len(answer.rows)} listings for {len(left)} prefixes")
        for prefix, row in zip(left, answer.rows, strict=False):
            listing = _listing(prefix, row, answer.owners, answer.ground, connection)
            yield prefix, _whole(prefix, listing, row.more, ask) if row.more else listing
        left = left[len(answer.rows) :]


def _whole(prefix: str, first: Listing, more: str, ask: Callable[[Any], Any]) -> Listing:
    """Returns a listing with its further pages."""
    names, entries = list(first.names), list(first.entries)
    while more:
        answer: m.Listings = ask(m.AskListings([prefix], [more]))
        row = answer.rows[0] if len(answer.rows) == 1 else None
        if row is None or (row.more and row.more <= more):
            raise _odd("a page of a listing leads nowhere")
        names += row.names
        entries += _entries(prefix, row, answer.owners)
        more = row.more
    return Listing(names, entries, "")


def _listing(
    prefix: str, row: m.ListingRow, owners: Sequence[m.OwnerRow], ground: int, connection: Connection
) -> Listing:
    if row.bucket >= BUCKETS:
        raise _odd(f"bucket {row.bucket} of {BUCKETS}")
    gone = m.Reason(row.gone).name.lower() if 0 < row.gone <= max(m.Reason) else ""
    listing = Listing(row.names, _entries(prefix, row, owners), gone, row.bucket >= 0)
    page = connection.page
    if page is not None and row.bucket >= 0 and not row.more:
        connection.cache.keep(prefix, listing, page, row.bucket, row.version, ground)
    return listing


def _entries(prefix: str, row: m.ListingRow, owners: Sequence[m.OwnerRow]) -> list[Entry]:
    if not len(row.names) == len(row.owners) == len(row.places):
        raise _odd("a listing has as many names as places")
    for name in row.names:
        if not name.startswith(prefix):
            raise _odd(f"it lists {name:.200} under {prefix:.200}")
    return [
        Entry(name, _owner(index, owners).owner, where)
        for name, index, where in zip(row.names, row.owners, row.places, strict=True)
    ]


def take_published(
    names: Sequence[str], answer: m.Published, connection: Connection
) -> Iterator[Entry | RoutingError | None]:
    """Yields what became of each name, and remembers the listing that came along."""
    if not len(names) == len(answer.which) == len(answer.places):
        raise _odd("as many names as places")
    if answer.listing is not None:
        _listing(answer.prefix, answer.listing, answer.owners, answer.ground, connection)
    for name, row, where in zip(names, answer.which, answer.places, strict=True):
        if row == -1:
            yield None
        elif row < 0:
            yield absence(name, -1 - row)
        else:
            yield Entry(name, _owner(row, answer.owners).owner, where)
