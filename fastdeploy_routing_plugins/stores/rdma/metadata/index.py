"""The names that the service knows: who holds what, in order. No sockets and no clock: callers say what time it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList

from .messages import Reason, State
from .tombstones import Tombstones

if TYPE_CHECKING:
    from .owners import Owner

_LOST_BYTES: Final = 450  # that a name of a dead owner costs, about; see benchmarks/metadata.py
_DEAD_OWNERS: Final = 1000  # without names, that are remembered

OnChange = Callable[[str, "Owner | None", bytes], None]
"""Called after each change with the name, who holds it now, and where; None and nothing if it is gone."""
OnCount = Callable[[str, int], None]
"""Called with each name that is new (1) or remembered no longer (-1), whoever holds it, dead or alive."""


class Index:
    """All names and owners.

    Args:
        budget: Bytes that what is gone may take.
        on_change: See ``OnChange``.
        on_count: See ``OnCount``.
    """

    def __init__(self, budget: int, on_change: OnChange, on_count: OnCount = lambda name, more: None) -> None:
        self.owners: dict[str, Owner] = {}
        self.stones = Tombstones()
        self.dead_names = 0
        self._names: dict[str, Owner] = {}
        self._order: SortedList[str] = SortedList()
        self._dead: dict[str, Owner] = {}  # oldest first
        self._empty: dict[str, Owner] = {}  # of these, those that hold nothing any more
        self._budget = budget
        self._on_change = on_change
        self._on_count = on_count

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._names) - self.dead_names

    # --- questions ----------------------------------------------------------------------------------------------

    def holder(self, name: str) -> Owner | None:
        """Returns who holds a name, dead or alive."""
        return self._names.get(name)

    def why_not(self, name: str) -> Reason:
        """Returns why nobody holds a name."""
        return self.stones.get(name) or Reason.UNKNOWN

    def under(self, prefix: str, after: str = "") -> Iterator[tuple[str, Owner]]:
        """Yields names under a prefix, in order, and who holds them, dead or alive.

        Args:
            prefix: The prefix.
            after: Only names behind this one.
        """
        start = max(prefix, after)
        for name in self._order.irange(start, inclusive=(not after or after < prefix, True)):
            if not name.startswith(prefix):
                return
            yield name, self._names[name]

    # --- changes ------------------------------------------------------------------------------------------------

    def publish(self, owner: Owner, name: str, place: bytes, again: bool) -> Owner | Reason | None:
        """Notes that an owner holds a name.

        Returns:
            None: noted. An owner, perhaps the same: it holds the name already, at another place; nothing was changed.
            A reason: it was removed, and is refused because it comes ``again``.
        """
        holder = self._names.get(name)
        if holder is None:
            reason = self.stones.get(name)
            if reason is not None:
                if again:
                    return reason
                self.stones.discard(name)
            self._names[name] = owner
            self._order.add(name)
            self._on_count(name, 1)
        elif holder is owner:
            if owner.places[name] == place:
                return None
            if not again:
                return owner
        elif holder.dead or holder.heir == owner.id:
            self._leaves(holder, name)
            self._names[name] = owner
        else:
            return holder
        owner.places[name] = place
        self._on_change(name, owner, place)
        return None

    def delete(self, name: str, reason: Reason, now: float) -> bytes | None:
        """Removes a name; returns where it was, or None if it was not there."""
        holder = self._names.pop(name, None)
        if holder is None:
            return None
        place = None if holder.dead else holder.places[name]
        self._leaves(holder, name)
        self._order.remove(name)
        self._on_count(name, -1)
        self.stones.add(name, reason, now)
        if place is not None:
            self._on_change(name, None, b"")
        return place

    def _leaves(self, holder: Owner, name: str) -> None:
        del holder.places[name]
        self.dead_names -= holder.dead

    # --- owners -------------------------------------------------------------------------------------------------

    def set_state(self, owner: Owner, state: State, now: float) -> None:
        """Changes an owner's state. The names of a dead one are gone; they come back with it."""
        was_dead = owner.dead
        owner.state, owner.since = state, now
        if owner.dead and not was_dead:
            self.dead_names += len(owner.places)
            self._dead[owner.id] = owner
            owner.forget_drops()
        elif was_dead and not owner.dead:
            self.dead_names -= len(owner.places)
            self._dead.pop(owner.id, None)
            self._empty.pop(owner.id, None)

    # --- forgetting ---------------------------------------------------------------------------------------------

    @property
    def gone_bytes(self) -> int:
        """About how many bytes what is gone takes."""
        return self.stones.nbytes + self.dead_names * _LOST_BYTES

    def forget(self, limit: int) -> bool:
        """Forgets what went first while the budget is exceeded.

        Args:
            limit: How many names may be forgotten now.

        Returns:
            Whether there is more to forget.
        """
        self._bury_owners()
        while self.gone_bytes > self._budget:
            if limit <= 0:
                return True
            limit -= 1
            owner = self._first_dead()
            if owner is not None and owner.since < self.stones.oldest:
                name, _ = owner.places.popitem()
                self.dead_names -= 1
                del self._names[name]
                self._order.remove(name)
                self._on_count(name, -1)
            else:
                self.stones.forget_oldest()
        return False

    def _first_dead(self) -> Owner | None:
        """Returns the owner with names that died first."""
        while self._dead:
            owner = next(iter(self._dead.values()))
            if owner.places:
                return owner
            self._empty[owner.id] = self._dead.pop(owner.id)
        return None

    def _bury_owners(self) -> None:
        self._first_dead()
        while len(self._empty) > _DEAD_OWNERS:
            oldest = next(iter(self._empty))
            del self._empty[oldest], self.owners[oldest]
