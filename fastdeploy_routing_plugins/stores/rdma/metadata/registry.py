"""Who holds objects: owners come, give signs of life, and go."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Final

from ....errors import CorruptDataError
from .. import place
from . import messages as m
from .asked import Asked, RefusalError
from .index import Index
from .naming import plain_namespace, rollout_of
from .owners import Owner
from .page import bucket_of
from .waiting import Waiters

if TYPE_CHECKING:
    from .limits import Limits
    from .page import Page

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")
_OWNER_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_COUNTED: Final = 4096  # names of a listing that can be waited for


class Registry:
    """The service's knowledge, and the owners in it.

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

    @property
    def back(self) -> int:
        """How many producers are here that a predecessor may have known; of this process, those that hold anything."""
        here, owners = os.getpid(), self.index.owners.values()
        return sum(not each.dead and (each.info.pid != here or bool(each.places)) for each in owners)

    def _counted(self, name: str, more: int) -> None:
        self.page.crowd(bucket_of(rollout_of(name)), more)

    def _changed(self, name: str, owner: Owner | None, where: bytes) -> None:
        self.page.count(bucket_of(rollout_of(name)))
        self.waiters.touch(name)
        if self.changes is not None:
            self.changes.append((name, owner, where))

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
            _log.info(
                "producer %s (%s, pid %d) of namespace %s",
                info.producer,
                info.node,
                info.pid,
                plain_namespace(namespace),
            )
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

    def _foreign(self, asked: Asked) -> RefusalError:
        return RefusalError(m.Refusal.NAMESPACE, f"not of namespace {asked.session.namespace!r}")
