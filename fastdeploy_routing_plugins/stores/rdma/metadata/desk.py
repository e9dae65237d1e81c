"""What the service does with each question. No sockets: ``service`` brings questions and carries answers away."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ....errors import CorruptDataError
from .. import place
from . import messages as m
from .answering import Rows, entries, list_prefix, small_listing
from .index import Index
from .naming import digest, is_name, rollout_of
from .owners import Owner
from .page import bucket_of
from .waiting import Waiter, Waiters

if TYPE_CHECKING:
    from .limits import Limits
    from .page import Page
    from .sessions import Session

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")
_OWNER_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_AT_ONCE: Final = 1000  # names that one question removes
_UNFREED: Final = 1_000_000  # names that an owner is told to free, and does not
_COUNTED: Final = 4096  # names of a listing that can be waited for


class RefusalError(Exception):
    """A question that is not answered. Attribute ``body``: what is said instead."""

    def __init__(self, code: m.Refusal, message: str) -> None:
        super().__init__(message)
        self.body = m.Refused(int(code), message)


class Asked:
    """A question on its way.

    Attributes:
        identity: The connection that it came by.
        session: That connection's session.
        id: The question's id.
        deadline: When its answer is of no use any more.
    """

    __slots__ = ("deadline", "id", "identity", "session")

    def __init__(self, identity: bytes, session: Session, number: int, deadline: float) -> None:
        self.identity = identity
        self.session = session
        self.id = number
        self.deadline = deadline


Work = Callable[[Any, Asked, float], Any]


class Desk:
    """The service's knowledge, and what changes it.

    Args:
        limits: What is allowed.
        page: The page of counters.
    """

    def __init__(self, limits: Limits, page: Page) -> None:
        self.limits = limits
        self.page = page
        self.waiters = Waiters()
        self.index = Index(limits.tombstones, self._changed, self._counted)
        self.living = 0  # producers that are not dead, but for those of this very process
        self.told: list[Owner] = []  # owners that have something to free
        self.turned: list[Owner] = []  # owners that died, or came back
        self.changes: list[tuple[str, Owner | None, bytes]] | None = None  # for followers, if there are any
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

    def _counted(self, name: str, more: int) -> None:
        self.page.crowd(bucket_of(rollout_of(name)), more)

    def _changed(self, name: str, owner: Owner | None, where: bytes) -> None:
        self.page.count(bucket_of(rollout_of(name)))
        self.waiters.touch(name)
        if self.changes is not None:
            self.changes.append((name, owner, where))

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
            if owner is None:
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

    # --- owners -------------------------------------------------------------------------------------------------

    def register(self, body: m.Register, asked: Asked, now: float) -> m.Done:
        """Takes an owner in, or takes note of what it says about itself."""
        try:
            info = place.decode(body.info, place.OwnerInfo)
        except CorruptDataError as err:
            raise RefusalError(m.Refusal.MALFORMED, err.message) from None
        if not _OWNER_ID.fullmatch(info.owner):
            raise RefusalError(m.Refusal.MALFORMED, "an owner's id is 32 hexadecimal digits")
        namespace = asked.session.namespace
        owner = self.index.owners.get(info.owner)
        if owner is not None and not asked.session.may(owner.namespace):
            raise self._foreign(asked)
        if owner is None:
            if len(self.index.owners) >= self.limits.owners:
                raise RefusalError(m.Refusal.FULL, f"the service holds {self.limits.owners} owners, its limit")
            owner = self.index.owners[info.owner] = Owner(namespace, body.info, info, asked.identity, now)
            self.living += owner.info.pid != os.getpid()
            _log.info("producer %s (%s, pid %d) of namespace %s", info.producer, info.node, info.pid, namespace)
        elif info.revision >= owner.info.revision:
            owner.raw, owner.info = body.info, info
        if owner.dead:
            owner.listed = False
        self._lives(owner, now)
        self._inherit(owner, {each for each in body.succeeds if each != owner.id}, asked, now)
        return m.Done()

    def _inherit(self, heir: Owner, dead: set[str], asked: Asked, now: float) -> None:
        """Makes an owner the heir of dead ones, and of those whose heirs they were themselves."""
        if not dead:
            return
        for old in list(self.index.owners.values()):
            if (old.id in dead or old.heir in dead) and old is not heir and asked.session.may(old.namespace):
                old.heir = heir.id
                if old.id in dead and old.state == m.State.ALIVE:
                    self._turn(old, m.State.SUSPECT, now)

    def inventory(self, body: m.Inventory, asked: Asked, now: float) -> m.Done:
        """Takes note that an owner has published everything."""
        self._own(body.owner, asked, now).listed = True
        return m.Done()

    def sign(self, body: m.Sign, asked: Asked, now: float) -> m.Dropped:
        """Takes note that an owner lives; tells it what to free."""
        owner = self._own(body.owner, asked, now)
        if not owner.listed:
            raise RefusalError(m.Refusal.UNREGISTERED, f"owner {body.owner} has not published what it holds")
        owner.identity = asked.identity
        owner.acknowledge(body.dropped)
        return owner.untold(now) or m.Dropped(0, [], [])

    def unregister(self, body: m.Unregister, asked: Asked, now: float) -> m.Done:
        """Lets an owner go."""
        owner = self.index.owners.get(body.owner)
        if owner is not None and asked.session.may(owner.namespace) and owner.state != m.State.CLOSED:
            self._turn(owner, m.State.CLOSED, now)
        return m.Done()

    def _own(self, owner_id: str, asked: Asked, now: float) -> Owner:
        """Returns an owner that gives a sign of life."""
        owner = self.index.owners.get(owner_id)
        if owner is None or owner.dead or not asked.session.may(owner.namespace):
            raise RefusalError(m.Refusal.UNREGISTERED, f"owner {owner_id} is not registered")
        self._lives(owner, now)
        return owner

    def _lives(self, owner: Owner, now: float) -> None:
        owner.seen = now
        if owner.state != m.State.ALIVE:
            self._turn(owner, m.State.ALIVE, now)

    def _turn(self, owner: Owner, state: m.State, now: float) -> None:
        """Changes an owner's state, for everybody to see."""
        info, was = owner.info, owner.state.name.lower()
        _log.info("producer %s (%s, pid %d): %s -> %s", info.producer, info.node, info.pid, was, state.name.lower())
        was_dead = owner.dead
        self.index.set_state(owner, state, now)
        self.page.shake()
        if owner.dead != was_dead:
            self.living += (-1 if owner.dead else 1) * (owner.info.pid != os.getpid())
            self.turned.append(owner)
            for waiter in self.waiters.all():
                if any(holder is owner for _, holder in self._few(waiter.prefix)):
                    self.waiters.touch_waiter(waiter)

    def _few(self, prefix: str) -> list[tuple[str, Owner]]:
        return [pair for pair, _ in zip(self.index.under(prefix), range(_COUNTED), strict=False)]

    def judge(self, now: float, away: float) -> None:
        """Looks which owners were silent for too long.

        Args:
            now: The time.
            away: Seconds for which the service itself did not look; what owners said meanwhile may not be read yet.
        """
        for owner in self.index.owners.values():
            if owner.dead:
                continue
            owner.seen += away
            silent = now - owner.seen
            if silent >= self.limits.lease:
                self._turn(owner, m.State.LOST, now)
            elif silent >= self.limits.suspect and owner.state == m.State.ALIVE:
                self._turn(owner, m.State.SUSPECT, now)

    # --- the rest -----------------------------------------------------------------------------------------------

    def _foreign(self, asked: Asked) -> RefusalError:
        return RefusalError(m.Refusal.NAMESPACE, f"not of namespace {asked.session.namespace!r}")

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
                    "namespace": owner.namespace,
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
