"""Questions that wait for a change of a listing. One of a rollout costs nothing until that rollout changes."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .naming import rollout_of, rollout_of_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .asked import Identity


@dataclass(slots=True, eq=False)
class Waiter:
    """A question that waits.

    Attributes:
        key: Names it: the client's token and the question's id.
        identity: The connection that it came by.
        id: The question's id.
        prefix: What it waits for.
        deadline: When it is answered in any case.
    """

    key: tuple[bytes, int]
    identity: Identity
    id: int
    prefix: str
    deadline: float
    group: str = field(init=False)

    def __post_init__(self) -> None:
        self.group = rollout_of_prefix(self.prefix) or self.prefix.partition("/")[0]


class Waiters:
    """All that wait."""

    def __init__(self) -> None:
        self._all: dict[tuple[bytes, int], Waiter] = {}
        self._groups: dict[str, set[Waiter]] = {}  # by rollout; by namespace if a prefix is of more than one
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._count = 0
        self._touched: set[Waiter] = set()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, waiter: Waiter) -> None:
        """Lets a question wait; one that is asked again takes the place of itself."""
        self.remove(self._all.get(waiter.key))
        self._all[waiter.key] = waiter
        self._groups.setdefault(waiter.group, set()).add(waiter)
        self._count += 1
        heapq.heappush(self._deadlines, (waiter.deadline, self._count, waiter))
        if len(self._deadlines) > 2 * len(self._all) + 1000:
            self._deadlines = [item for item in self._deadlines if self._all.get(item[2].key) is item[2]]
            heapq.heapify(self._deadlines)

    def remove(self, waiter: Waiter | None) -> None:
        """Ends a wait."""
        if waiter is None or self._all.get(waiter.key) is not waiter:
            return
        del self._all[waiter.key]
        self._touched.discard(waiter)
        group = self._groups[waiter.group]
        group.discard(waiter)
        if not group:
            del self._groups[waiter.group]

    def touch(self, name: str) -> None:
        """Takes note that a name came or went."""
        if not self._all:
            return
        for group in (rollout_of(name), name.partition("/")[0]):
            for waiter in self._groups.get(group, ()):
                if name.startswith(waiter.prefix):
                    self._touched.add(waiter)

    def touch_waiter(self, waiter: Waiter) -> None:
        """Takes note that a question's listing changed."""
        self._touched.add(waiter)

    @property
    def touched(self) -> bool:
        """Whether a question's listing changed."""
        return bool(self._touched)

    def take_touched(self) -> list[Waiter]:
        """Returns those whose listing changed, and lets them wait no more."""
        if not self._touched:
            return []
        touched = list(self._touched)
        for waiter in touched:
            self.remove(waiter)
        return touched

    @property
    def next_deadline(self) -> float:
        """When to look again for those whose deadline has passed, at the latest."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def take_expired(self, now: float) -> Iterator[Waiter]:
        """Yields those whose deadline has passed, and lets them wait no more."""
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = heapq.heappop(self._deadlines)[2]
            if self._all.get(waiter.key) is waiter:
                self.remove(waiter)
                yield waiter

    def all(self) -> list[Waiter]:
        """Returns those that wait."""
        return list(self._all.values())
