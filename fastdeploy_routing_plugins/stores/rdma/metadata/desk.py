"""What the service does with each question. No sockets: ``service`` brings questions and carries answers away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from . import messages as m
from .answering import Rows, entries, list_prefix, small_listing
from .asked import Asked, RefusalError
from .naming import digest, is_name, plain_namespace, rollout_of
from .owners import Owner
from .registry import Registry
from .waiting import Waiter

if TYPE_CHECKING:
    from .limits import Limits
    from .page import Page

_AT_ONCE: Final = 1000  # names that one question removes
_UNFREED: Final = 1_000_000  # names that an owner is told to free, and does not
_COUNTED: Final = 4096  # names of a listing that can be waited for


Work = Callable[[Any, Asked, float], Any]


class Desk(Registry):
    """The service's knowledge, and what changes it.

    Args:
        limits: What is allowed.
        page: The page of counters.
    """

    def __init__(self, limits: Limits, page: Page) -> None:
        super().__init__(limits, page)
        self.works: dict[type, Work] = {
            m.AskListings: self.listings,
            m.AskEntries: self.entries,
            m.AskChange: self.change,
            m.Publish: self.publish,
            m.Delete: self.delete,
            m.DeletePrefix: self.delete_prefix,
            m.AskOwner: self.owner,
            m.Register: self.register,
            m.Inventory: self.inventory,
            m.Sign: self.sign,
            m.Unregister: self.unregister,
        }

    # --- reading ------------------------------------------------------------------------------------------------

    def listings(self, body: m.AskListings, asked: Asked, now: float) -> m.Listings:
        """Lists prefixes, as many as fit."""
        start = asked.session.start
        after = body.after or [""] * len(body.prefixes)
        if len(after) != len(body.prefixes):
            raise RefusalError(m.Refusal.MALFORMED, "prefixes and places to go on from differ in number")
        rows, found, room = Rows(), [], m.PAGE_BYTES
        for prefix, behind in zip(body.prefixes, after, strict=True):
            if not prefix.startswith(start):
                raise self._foreign(asked)
            row = list_prefix(self.index, self.page, rows, prefix, behind, room)
            found.append(row)
            room -= 64 + sum(map(len, row.names)) + sum(map(len, row.places))
            if room <= 0:
                break
        return m.Listings(rows.rows, found, self.page.ground)

    def entries(self, body: m.AskEntries, asked: Asked, now: float) -> m.Entries:
        """Looks names up."""
        start = asked.session.start
        for name in body.names:
            if not name.startswith(start):
                raise self._foreign(asked)
        return entries(self.index, body.names)

    def change(self, body: m.AskChange, asked: Asked, now: float) -> m.Listings | m.Unchanged | None:
        """Answers if a listing is not what was seen; else lets the question wait."""
        if not body.prefix.startswith(asked.session.start):
            raise self._foreign(asked)
        row, rows = self._listed(body.prefix)
        if row is None:
            return m.Unchanged(poll=True)
        if len(row.names) != body.count or digest(row.names) != body.digest:
            return m.Listings(rows.rows, [row], self.page.ground)
        if now >= asked.deadline or len(self.waiters) >= self.limits.waiting:
            return m.Unchanged()
        key = (asked.session.token, asked.id)
        self.waiters.add(Waiter(key, asked.identity, asked.id, body.prefix, asked.deadline))
        return None

    def _listed(self, prefix: str) -> tuple[m.ListingRow | None, Rows]:
        """Returns a prefix's whole listing if it can be waited for."""
        rows = Rows()
        row = list_prefix(self.index, self.page, rows, prefix)
        return (None if row.more or len(row.names) > _COUNTED else row), rows

    def after_wait(self, waiter: Waiter) -> m.Listings | m.Unchanged:
        """Returns the answer to a question whose wait is over because its listing changed."""
        row, rows = self._listed(waiter.prefix)
        return m.Unchanged(poll=True) if row is None else m.Listings(rows.rows, [row], self.page.ground)

    def owner(self, body: m.AskOwner, asked: Asked, now: float) -> m.OwnerIs:
        """Returns what an owner said about itself."""
        owner = self.index.owners.get(body.owner)
        if owner is None or not asked.session.may(owner.namespace):
            raise RefusalError(m.Refusal.UNREGISTERED, f"no owner {body.owner}")
        if owner.info.revision < body.revision and not owner.dead:
            raise RefusalError(m.Refusal.REVISION, f"owner {body.owner} has revision {owner.info.revision}")
        return m.OwnerIs(owner.raw, int(owner.state))

    # --- changing -----------------------------------------------------------------------------------------------

    def publish(self, body: m.Publish, asked: Asked, now: float) -> m.Published:
        """Notes what an owner holds."""
        owner = self._own(body.owner, asked, now)
        start, names = asked.session.start, body.names
        if len(names) != len(body.places):
            raise RefusalError(m.Refusal.MALFORMED, "names and places differ in number")
        for name in names:
            if not name.startswith(start):
                raise self._foreign(asked)
            if not is_name(name):
                raise RefusalError(m.Refusal.MALFORMED, f"no object is called {name!r:.100}")
        if len(self.index) + len(names) > self.limits.names:
            raise RefusalError(m.Refusal.FULL, f"the service holds {self.limits.names} names, its limit")
        rows, which, places = Rows(), [], []
        for name, where in zip(names, body.places, strict=True):
            outcome = self.index.publish(owner, name, where, body.again)
            if isinstance(outcome, Owner):
                which.append(rows.of(outcome))
                places.append(outcome.places[name])
            else:
                which.append(-1 if outcome is None else -1 - outcome)
                places.append(b"")
        rollouts = {rollout_of(name) for name in names} if len(names) <= m.SMALL else ()
        if body.again or len(rollouts) != 1:
            return m.Published(rows.rows, which, places)
        (rollout,) = rollouts
        listing = small_listing(self.index, self.page, rows, rollout)
        return m.Published(rows.rows, which, places, rollout, listing, self.page.ground)

    def delete(self, body: m.Delete, asked: Asked, now: float) -> m.Deleted:
        """Removes names."""
        for name in body.names:
            if not name.startswith(asked.session.start):
                raise self._foreign(asked)
        return m.Deleted(self._remove(body.names, m.Reason(body.reason), now, body.mine))

    def delete_prefix(self, body: m.DeletePrefix, asked: Asked, now: float) -> m.Deleted:
        """Removes what is under a prefix, or the first of it."""
        if not body.prefix.startswith(asked.session.start):
            raise self._foreign(asked)
        names: list[str] = []
        for name, _ in self.index.under(body.prefix):
            names.append(name)
            if len(names) == _AT_ONCE:
                break
        return m.Deleted(self._remove(names, m.Reason.DELETED, now, body.mine), more=len(names) == _AT_ONCE)

    def _remove(self, names: list[str], reason: m.Reason, now: float, mine: list[str]) -> int:
        count = 0
        for name in names:
            owner = self.index.holder(name)
            if owner is None or (reason is m.Reason.EVICTED and not _is_of(owner, mine)):
                continue
            where = self.index.delete(name, reason, now)
            if where is None:
                continue
            count += 1
            if owner.id not in mine:
                owner.drop(name, where)
                if owner.unfreed > _UNFREED:
                    self._turn(owner, m.State.LOST, now)
                if not self.told or self.told[-1] is not owner:
                    self.told.append(owner)
        return count

    # --- the rest -----------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Returns what is known, in figures."""
        index, now = self.index, time.monotonic()
        return {
            "names": len(index),
            "producers": len(index.owners),
            "waiting": len(self.waiters),
            "tombstones": len(index.stones),
            "lost_names": index.dead_names,
            "gone_bytes": index.gone_bytes,
            "owners": [
                {
                    "owner": owner.id,
                    "namespace": plain_namespace(owner.namespace),
                    "producer": owner.info.producer,
                    "node": owner.info.node,
                    "pid": owner.info.pid,
                    "state": owner.state.name.lower(),
                    "age": round(now - owner.seen, 3),
                    "names": len(owner.places),
                    "to_free": owner.unfreed,
                }
                for owner in list(index.owners.values())[:1000]
            ],
        }


def _is_of(owner: Owner, mine: list[str]) -> bool:
    """Whether an owner goes through the client that asks, as far as that says: others' objects nobody evicts."""
    return not mine or owner.id in mine or owner.heir in mine
