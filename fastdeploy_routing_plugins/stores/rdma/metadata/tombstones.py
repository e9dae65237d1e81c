"""What was removed, and why: remembered within a budget of bytes, the oldest forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from .messages import Reason

_OVERHEAD: Final = 400  # bytes of one, besides its name; measured with a million of them
_LOOKED_AT: Final = 64  # of one prefix, to tell why it is empty


class Tombstones:
    """Names that are gone."""

    def __init__(self) -> None:
        self._stones: OrderedDict[str, tuple[float, Reason]] = OrderedDict()
        self._order: SortedList[str] = SortedList()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._stones)

    def add(self, name: str, reason: Reason, now: float) -> None:
        """Remembers that a name was removed."""
        if name in self._stones:
            self._stones.move_to_end(name)
        else:
            self._order.add(name)
            self.nbytes += len(name) + _OVERHEAD
        self._stones[name] = now, reason

    def get(self, name: str) -> Reason | None:
        """Returns why a name is gone; None if it is not, or nobody remembers."""
        stone = self._stones.get(name)
        return None if stone is None else stone[1]

    def discard(self, name: str) -> None:
        """Forgets a name."""
        if self._stones.pop(name, None) is not None:
            self._order.remove(name)
            self.nbytes -= len(name) + _OVERHEAD

    def latest(self, prefix: str) -> Reason | None:
        """Returns why the name under a prefix that went last did so; of many names, the first few are looked at."""
        found = None
        for name in islice(self._order.irange(prefix), _LOOKED_AT):
            if not name.startswith(prefix):
                break
            stone = self._stones[name]
            found = stone if found is None else max(found, stone)
        return None if found is None else found[1]

    @property
    def oldest(self) -> float:
        """When the oldest came to be; infinity if there is none."""
        return next(iter(self._stones.values()))[0] if self._stones else float("inf")

    def forget_oldest(self) -> None:
        """Forgets the one that was added first."""
        self.discard(next(iter(self._stones)))
