"""What a writer has done and how fast: ``WriterStats``."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..arena.arena import Arena
    from .gate import Gate
    from .supervisor import Supervisor

_KEPT = 1024


class Window:
    """The last 1,024 durations, in seconds; ``add`` takes one more."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_KEPT)
        self.add = self._values.append

    def latency(self) -> Latency:
        """Returns what they amount to."""
        values = sorted(self._values)
        if not values:
            return Latency(0, 0.0, 0.0, 0.0)
        at = [values[min(len(values) - 1, math.ceil(share * len(values)) - 1)] for share in (0.5, 0.99)]
        return Latency(len(values), at[0], at[1], values[-1])


@dataclass(frozen=True, slots=True)
class Latency:
    """Durations in seconds, of the last 1,024.

    Attributes:
        count: How many there are.
        p50: Half of them were at most this long.
        p99: 99 % of them were at most this long.
        max: The longest.
    """

    count: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class WriterStats:
    """A writer's state. Bytes are payload bytes; times are seconds.

    Attributes:
        submitted: Parts handed over.
        submitted_bytes: Their size.
        stored: Parts that a reader can get.
        stored_bytes: Their size.
        duplicates: Parts among ``stored`` that were there already.
        failed: How many operations failed, by cause (an error's ``code``).
        refused: Parts that ``submit`` refused because the arena was full.
        spilled_bytes: What lies in ``spill_dir`` now.
        pending: Operations that have not ended.
        queue_bytes: Their payload bytes.
        retained_bytes: Payloads that a store keeps in the arena.
        oldest_pending_s: Age of the oldest operation that has not ended.
        arena_bytes: Size of the arena.
        arena_free_bytes: Free bytes of it.
        hand_over: How long ``submit`` and ``publish`` held their caller up.
        store: How long the store took for a part, waiting in the queue not included.
        transport: How payloads travel.
        worker_pid: Process id of the store worker; None while there is none.
        worker_restarts: How often it was replaced.
    """

    submitted: int
    submitted_bytes: int
    stored: int
    stored_bytes: int
    duplicates: int
    failed: dict[str, int]
    refused: int
    spilled_bytes: int
    pending: int
    queue_bytes: int
    retained_bytes: int
    oldest_pending_s: float
    arena_bytes: int
    arena_free_bytes: int
    hand_over: Latency
    store: Latency
    transport: str
    worker_pid: int | None
    worker_restarts: int

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return asdict(self)


def collect(arena: Arena, gate: Gate, supervisor: Supervisor, hand_over: Window) -> WriterStats:
    """Returns a writer's state, from where its pieces keep it."""
    ledger = gate.ledger
    counters = ledger.counters
    return WriterStats(
        submitted=counters.submitted,
        submitted_bytes=counters.submitted_bytes,
        stored=counters.stored,
        stored_bytes=counters.stored_bytes,
        duplicates=counters.duplicates,
        failed=dict(counters.failed),
        refused=gate.refused,
        spilled_bytes=gate.spilled_bytes,
        pending=ledger.pending,
        queue_bytes=ledger.queue_bytes,
        retained_bytes=ledger.retained_bytes,
        oldest_pending_s=ledger.oldest,
        arena_bytes=arena.file.nbytes,
        arena_free_bytes=arena.free,
        hand_over=hand_over.latency(),
        store=ledger.store_times.latency(),
        transport=supervisor.transport,
        worker_pid=supervisor.pid,
        worker_restarts=supervisor.restarts,
    )
