"""How old the weights may be that chose the experts: ``Freshness``.

Rollouts that run while the trainer goes on consist of tokens from several versions of the weights. Producers state
them as spans, part by part; here they are compared with the version that the trainer has now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InvalidRecordError, StaleError
from ..keys import as_int, shown
from ..record import RoutingRecord, WeightSpan

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..keys import RoutingKey
    from .share import RoutingShare

    Version = int | str


@dataclass(frozen=True, slots=True)
class StaleSpan:
    """Tokens whose routing is not accepted.

    Attributes:
        start: First token, absolute.
        stop: One past the last token.
        version: The weights that made them, or None if the producer stated none.
        age: How many versions behind; None if that is not known.
    """

    start: int
    stop: int
    version: Version | None
    age: int | None

    def __str__(self) -> str:
        if self.version is None:
            return f"tokens {self.start}:{self.stop} of weights that nobody stated"
        age = "not in the list of versions" if self.age is None else f"{self.age} behind"
        return f"tokens {self.start}:{self.stop} of version {self.version} ({age})"


@dataclass(frozen=True, slots=True)
class Freshness:
    """Which weight versions are young enough.

    Attributes:
        current: The version that the trainer has now.
        max_staleness: How many versions older is still accepted; 0: the current one only. A version that is newer
            than ``current`` is accepted: its trainer was set back.
        order: All versions that the trainer remembers, oldest first, ``current`` among them. Needed where versions are
            texts, or numbers that do not count one by one. A version that is not in it counts as too old.
        accept_unstated: Whether tokens without a stated version are accepted.

    Raises:
        InvalidRecordError: The values do not fit each other.
    """

    current: Version
    max_staleness: int
    order: tuple[Version, ...] = ()
    accept_unstated: bool = False

    def __post_init__(self) -> None:
        number = as_int(self.max_staleness)
        if number is None or number < 0:
            raise InvalidRecordError(f"max_staleness must be an integer from 0 on, got {shown(self.max_staleness)}")
        object.__setattr__(self, "max_staleness", number)
        order: object = self.order
        if isinstance(order, str) or not isinstance(order, Iterable):
            raise InvalidRecordError(f"order must list versions, oldest first, got {shown(order)}")
        object.__setattr__(self, "order", tuple(WeightSpan(0, 0, version).version for version in self.order))
        object.__setattr__(self, "current", WeightSpan(0, 0, self.current).version)
        if self.order and self.current not in self.order:
            raise InvalidRecordError(f"order does not have the current version {shown(self.current)}")
        if len(set(self.order)) != len(self.order):
            raise InvalidRecordError("order has a version twice")
        if not self.order and isinstance(self.current, str):
            raise InvalidRecordError(
                f"version {shown(self.current)} is a text: which versions are older is not known",
                hint="Freshness(..., order=[oldest, ..., current])",
            )

    def age(self, version: Version) -> int | None:
        """Returns how many versions behind the current one a version is; negative if ahead, None if not known."""
        if self.order:
            return self.order.index(self.current) - self.order.index(version) if version in self.order else None
        if isinstance(version, str) or isinstance(self.current, str):
            return None
        return self.current - version

    def stale(
        self,
        spans: Iterable[WeightSpan],
        ranges: Iterable[tuple[int, int]],
        unstated: Iterable[tuple[int, int]] = (),
    ) -> tuple[StaleSpan, ...]:
        """Returns what is too old among some tokens, in order.

        Args:
            spans: What the producers stated, absolute, in order. Where two versions are stated for one token, as for
                two layers of it, either can make it too old.
            ranges: Which tokens, absolute.
            unstated: Of which of them nothing is stated for some layers, although ``spans`` may have them for others.
        """
        found: list[StaleSpan] = []
        ranges = list(ranges)
        silent = [] if self.accept_unstated else list(unstated)
        spans = sorted(spans, key=lambda span: (span.start, span.stop))
        for start, stop in ranges:
            reached = start
            for span in spans:
                low, high = max(span.start, start), min(span.stop, stop)
                if low >= high:
                    continue
                if low > reached and not self.accept_unstated:
                    found.append(StaleSpan(reached, low, None, None))
                age = self.age(span.version)
                if age is None or age > self.max_staleness:
                    found.append(StaleSpan(low, high, span.version, age))
                reached = max(reached, high)
            if reached < stop and not self.accept_unstated:
                found.append(StaleSpan(reached, stop, None, None))
        known = [(span.start, span.stop) for span in found if span.version is None]
        for low, high in silent:
            for start, stop in ranges:
                found += [StaleSpan(*left, None, None) for left in _outside((max(low, start), min(high, stop)), known)]
        return tuple(sorted(found, key=lambda span: span.start) if silent else found)

    def of(self, routing: RoutingRecord | RoutingShare) -> tuple[StaleSpan, ...]:
        """Returns what is too old in what was read."""
        return self.stale(routing.weight_versions, _ranges(routing), routing.unstated)

    def mask(self, routing: RoutingRecord | RoutingShare) -> npt.NDArray[np.bool_]:
        """Returns bool ``[tokens]``: whether the weights of each token of ``routing``, in its order, are accepted."""
        fresh = np.ones(routing.num_tokens, np.bool_)
        at = 0
        stale = self.of(routing)
        for start, stop in _ranges(routing):
            for span in stale:
                low, high = max(span.start, start), min(span.stop, stop)
                if low < high:
                    fresh[at + low - start : at + high - start] = False
            at += stop - start
        return fresh

    def require(self, routing: RoutingRecord | RoutingShare) -> None:
        """Checks that all of it is young enough.

        Raises:
            StaleError: It is not; facts ``key`` and ``spans`` say what.
        """
        stale = self.of(routing)
        if stale:
            raise self.refusal(routing.key, stale)

    def refusal(self, key: RoutingKey, stale: tuple[StaleSpan, ...]) -> StaleError:
        """Returns the error that refuses a rollout."""
        said = "; ".join(map(str, stale[:3])) + (" …" if len(stale) > 3 else "")
        return StaleError(
            f"{key} is too old for version {self.current} with max_staleness {self.max_staleness}: {said}",
            hint="drop the sample, mask these tokens, or state weight_versions where it is put",
            key=key,
            spans=stale,
        )


def _outside(tokens: tuple[int, int], known: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns what of some tokens lies in none of some ranges, which may touch and follow each other in any order."""
    left = [tokens] if tokens[0] < tokens[1] else []
    for start, stop in known:
        cut = [(low, min(high, start)) for low, high in left] + [(max(low, stop), high) for low, high in left]
        left = [(low, high) for low, high in cut if low < high]
    return left


def _ranges(routing: RoutingRecord | RoutingShare) -> tuple[tuple[int, int], ...]:
    return (routing.part.tokens,) if isinstance(routing, RoutingRecord) else routing.token_ranges
