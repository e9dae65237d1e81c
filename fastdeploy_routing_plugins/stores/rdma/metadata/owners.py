"""A producer as the service knows it."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from .messages import Dropped, OwnerRow, State

if TYPE_CHECKING:
    from ..place import OwnerInfo
    from .asked import Identity

_TOLD_AT_ONCE = 1000  # names in one message to an owner
_TOLD_AGAIN = 1.0  # s after which an owner that acknowledged nothing is told again


class Owner:
    """A producer: what it said of itself, whether it lives, what it holds, and what it must free.

    Attributes:
        id: Its id.
        namespace: The encoded namespace that it belongs to.
        raw: What it said about itself, as it came.
        info: The same, taken apart.
        state: See ``State``.
        seen: When it last gave a sign.
        since: When its state last changed.
        identity: The connection that it listens at.
        places: What it holds: names and places.
        listed: Whether it published everything that it holds since it registered.
        heir: Id of the owner that takes its names over; empty if none does.
    """

    def __init__(self, namespace: str, raw: bytes, info: OwnerInfo, identity: Identity, now: float) -> None:
        self.id = info.owner
        self.namespace = namespace
        self.raw = raw
        self.info = info
        self.identity = identity
        self.state = State.ALIVE
        self.seen = now
        self.since = now
        self.places: dict[str, bytes] = {}
        self.listed = False
        self.heir = ""
        self._drops: deque[tuple[str, bytes]] = deque()
        self._freed = 0  # number of the last name that it acknowledged
        self._told = 0  # number of the last name that it was told
        self._told_at = 0.0

    @property
    def dead(self) -> bool:
        """Whether its names are gone."""
        return self.state >= State.LOST

    @property
    def row(self) -> OwnerRow:
        """What answers say about it."""
        return OwnerRow(self.id, int(self.state), self.info.producer)

    @property
    def unfreed(self) -> int:
        """How many names it has to free yet."""
        return len(self._drops)

    def drop(self, name: str, place: bytes) -> None:
        """Takes note that it must free what it has under a name."""
        self._drops.append((name, place))

    def forget_drops(self) -> None:
        """It will publish everything again, and learn then what is gone."""
        self._freed += len(self._drops)
        self._drops.clear()
        self._told = self._freed

    def acknowledge(self, number: int) -> None:
        """It freed what it was told up to this number."""
        number = min(number, self._told)
        while self._freed < number:
            self._drops.popleft()
            self._freed += 1

    def untold(self, now: float) -> Dropped | None:
        """Returns what it must be told to free now; None if there is nothing, or it was told a moment ago."""
        if not self._drops or (self._told > self._freed and now - self._told_at < _TOLD_AGAIN):
            return None
        drops = list(islice(self._drops, _TOLD_AT_ONCE))
        self._told = self._freed + len(drops)
        self._told_at = now
        return Dropped(self._told, [name for name, _ in drops], [place for _, place in drops])
