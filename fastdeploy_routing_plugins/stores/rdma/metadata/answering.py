"""Answers of the service that read: listings and entries, as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .messages import MAX_PLACE, PAGE_BYTES, SMALL, Entries, ListingRow, OwnerRow, State
from .naming import rollout_of_prefix
from .page import bucket_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .index import Index
    from .owners import Owner
    from .page import Page

_LOOKED_AT: Final = 10_000  # names for one page of a listing: those of dead owners are passed over


class Rows:
    """The owners that one answer refers to."""

    def __init__(self) -> None:
        self.rows: list[OwnerRow] = []
        self._index: dict[str, int] = {}

    def of(self, owner: Owner) -> int:
        """Returns the index of an owner's row."""
        index = self._index.get(owner.id)
        if index is None:
            index = self._index[owner.id] = len(self.rows)
            self.rows.append(owner.row)
        return index


def list_prefix(
    index: Index, page: Page, rows: Rows, prefix: str, after: str = "", room: int = PAGE_BYTES
) -> ListingRow:
    """Returns what lies under a prefix, or its first page.

    Args:
        index: All names.
        page: The page of counters.
        rows: Gets the owners.
        prefix: The prefix.
        after: Where an earlier page ended.
        room: Bytes that names and places may take; one name is there in any case.
    """
    names: list[str] = []
    owners: list[int] = []
    places: list[bytes] = []
    steady, more, looked, last = True, "", 0, after
    for name, owner in index.under(prefix, after):
        looked += 1
        if looked > _LOOKED_AT or (room <= 0 and names):
            more = last
            break
        last = name
        if owner.state >= State.LOST:
            continue
        place = owner.places[name]
        names.append(name)
        owners.append(rows.of(owner))
        places.append(place)
        room -= len(name) + len(place)
        steady = steady and owner.state == State.ALIVE
    rollout = rollout_of_prefix(prefix) if steady and not more and not after else ""
    if not rollout:
        gone = 0 if names or more or after else why_empty(index, prefix)
        return ListingRow(names, owners, places, more, gone=gone)
    bucket = bucket_of(rollout)
    gone = 0 if names else why_empty(index, prefix)
    return ListingRow(names, owners, places, more, bucket, page.version(bucket), gone)


def why_empty(index: Index, prefix: str) -> int:
    """Returns the reason why nothing is under a prefix."""
    for _, owner in index.under(prefix):
        return int(State(owner.state)) + 2  # what is still there, is of dead owners: LOST and CLOSED as reasons
    return int(index.stones.latest(prefix) or 0)


def small_listing(index: Index, page: Page, rows: Rows, rollout: str) -> ListingRow | None:
    """Returns the listing of a rollout if it is small."""
    row = list_prefix(index, page, rows, rollout, room=SMALL * (MAX_PLACE + 200))
    return None if row.more or len(row.names) > SMALL else row


def entries(index: Index, names: Sequence[str]) -> Entries:
    """Returns who holds names and where, or why nobody does."""
    rows = Rows()
    which: list[int] = []
    places: list[bytes] = []
    for name in names:
        owner = index.holder(name)
        if owner is None:
            which.append(-1 - index.why_not(name))
            places.append(b"")
        else:
            which.append(rows.of(owner))
            places.append(b"" if owner.dead else owner.places[name])
    return Entries(rows.rows, which, places)
