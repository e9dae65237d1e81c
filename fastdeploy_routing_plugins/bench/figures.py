"""What a series of times amounts to."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True)
class Figures:
    """Times of one kind of call; seconds and bytes.

    Attributes:
        name: What was called.
        candidate: Whose call it is.
        kind: ``put``, ``get``, ``batch``, or ``blocked``: how long ``submit`` holds an engine's thread up.
        count: Calls that succeeded in each round, and ...
        wanted: ... how many were made.
        mean: Over all calls of all rounds, as those below.
        min: The least.
        max: The greatest.
        total: All calls of a round together; the median of the rounds.
        p50: Median.
        p99: What 99 of 100 calls do not exceed.
        nbytes: Bytes of a call.
        rate: Bytes a second, at the median.
    """

    name: str
    candidate: str
    kind: str
    count: int
    wanted: int
    mean: float
    min: float
    max: float
    total: float
    p50: float
    p99: float
    nbytes: int
    rate: float


@dataclass(slots=True)
class Times:
    """Times as they come in.

    Attributes:
        name: See ``Figures``.
        candidate: See ``Figures``.
        kind: See ``Figures``.
        nbytes: See ``Figures``.
        rounds: The times of each round, in nanoseconds.
    """

    name: str
    candidate: str
    kind: str
    nbytes: int
    rounds: list[list[int]]

    def figures(self) -> Figures:
        """Returns what they amount to; there is at least one."""
        every = np.concatenate([np.asarray(times, np.float64) for times in self.rounds]) * NANOSECOND
        p50, p99 = (float(value) for value in np.percentile(every, (50, 99)))
        counts = [len(times) for times in self.rounds]
        return Figures(
            name=self.name,
            candidate=self.candidate,
            kind=self.kind,
            count=min(counts),
            wanted=max(counts),
            mean=float(every.mean()),
            min=float(every.min()),
            max=float(every.max()),
            total=statistics.median(sum(times) for times in self.rounds) * NANOSECOND,
            p50=p50,
            p99=p99,
            nbytes=self.nbytes,
            rate=self.nbytes / p50,
        )


ORIGINAL = (
    ("paddle.save", 37, 0.0872, 0.0692, 0.1226, 3.2273),
    ("paddle.load", 37, 0.0395, 0.0127, 0.1590, 1.4610),
    ("p2pstore.put", 37, 0.0073, 0.0063, 0.0076, 0.2691),
    ("p2pstore.get", 37, 0.0027, 0.0027, 0.0029, 0.1008),
)
"""What FastDeploy#5467 measured: name, files, and mean, min, max and total in seconds."""
