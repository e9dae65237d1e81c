"""Everything that was handed over and has not ended: ``Ledger``."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..arena.layout import State
from ..errors import StoreClosedError, UnsupportedError
from .messages import Outcome
from .operations import FlushOp, PutOp, describe, verb_of
from .stats import Window
from .tickets import FlushReport, WriteFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..arena.arena import Block
    from ..errors import RoutingError
    from .tickets import Ticket

MAX_KEPT_FAILURES = 10_000


@dataclass(slots=True)
class Counters:
    """What has happened since the writer opened."""

    submitted: int = 0
    submitted_bytes: int = 0
    stored: int = 0
    stored_bytes: int = 0
    duplicates: int = 0
    refused: int = 0
    failed: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Everything that is published and has not ended.

    Args:
        release: Takes a block back.
        on_failure: Called for every failure, outside of any lock.
    """

    def __init__(self, release: Callable[[Ticket], None], on_failure: Callable[[WriteFailure], None]) -> None:
        self._lock = threading.RLock()  # of ``changed``; cheaper to take
        self.changed = threading.Condition(self._lock)
        self.listener = 0  # the thread that hears of outcomes, and so must not wait for one
        self.counters = Counters()
        self.store_times = Window()
        self._release = release
        self._on_failure = on_failure
        self._open: dict[int, Ticket] = {}
        self._retained: dict[int, Ticket] = {}
        self._early: dict[int, Outcome] = {}
        self._given_back: set[int] = set()
        self._failures: deque[WriteFailure] = deque(maxlen=MAX_KEPT_FAILURES)
        self._since_report = [0, 0]  # stored, failed
        self._unknown: Outcome | None = None
        self.queue_bytes = 0

    def add(self, ticket: Ticket) -> None:
        """Takes a published operation."""
        sequence = ticket.block.sequence
        with self._lock:
            if sequence in self._open:
                return
            self._open[sequence] = ticket
            self.queue_bytes += ticket.nbytes
            if self._unknown is not None:
                ticket.settle(self._unknown)
            if isinstance(ticket.operation, PutOp):
                self.counters.submitted += 1
                self.counters.submitted_bytes += ticket.nbytes
            early = self._early.pop(sequence, None)
        if early is not None:  # the worker was faster than this thread
            self.settle([early])

    def settle(self, outcomes: list[Outcome]) -> None:
        """Notes how operations ended."""
        failures = []
        with self.changed:
            for outcome in outcomes:
                ticket = self._open.pop(outcome.sequence, None)
                if ticket is None:
                    if outcome.sequence not in self._retained:
                        self._early[outcome.sequence] = outcome
                    elif not outcome.retained:  # the next worker did it again, and its store does not keep it
                        self._release(self._retained.pop(outcome.sequence))
                    continue
                self.queue_bytes -= ticket.nbytes
                given_back = outcome.sequence in self._given_back
                self._given_back.discard(outcome.sequence)
                error = ticket.settle(outcome)
                if error is not None:
                    failures.append(self._note_failure(ticket, error))
                else:
                    self._note_success(ticket, outcome)
                if outcome.retained and not given_back:
                    self._retained[outcome.sequence] = ticket
                else:
                    self._release(ticket)
            self.changed.notify_all()
        for failure in failures:
            self._on_failure(failure)

    def _note_success(self, ticket: Ticket, outcome: Outcome) -> None:
        operation = ticket.operation
        self._since_report[0] += not isinstance(operation, FlushOp)
        if isinstance(operation, PutOp):
            self.counters.stored += 1
            self.counters.stored_bytes += ticket.nbytes
            self.counters.duplicates += outcome.duplicate
            self.store_times.add(outcome.seconds)

    def _note_failure(self, ticket: Ticket, error: RoutingError) -> WriteFailure:
        operation = ticket.operation
        key = getattr(operation, "key", None)
        attempt = getattr(operation, "attempt", 0)
        failure = WriteFailure(describe(operation), key, error, ticket.nbytes, attempt, verb_of(operation))
        self._failures.append(failure)
        self._since_report[1] += 1
        self.counters.failed[error.code] = self.counters.failed.get(error.code, 0) + 1
        return failure

    def reconcile(self, state_of: Callable[[Block], int], code_of: Callable[[Block], str], why: str) -> None:
        """Ends what a dead worker had ended without being able to say so.

        Args:
            why: What is known of failures among it.
            state_of: Returns a block's state; nobody works on the blocks now.
            code_of: Returns the code of the error that a failed block ended in.
        """
        with self.changed:
            found = [(number, ticket.block, state_of(ticket.block)) for number, ticket in self._open.items()]
            kept = [(number, ticket.block) for number, ticket in self._retained.items()]
        outcomes = []
        for number, block, state in found:
            if state == State.FAILED:
                outcomes.append(Outcome(sequence=number, code=code_of(block), message=why))
            elif state in (State.DONE, State.RETAINED):
                outcomes.append(Outcome(sequence=number, retained=state == State.RETAINED))
        self.settle(outcomes)
        self.give_back([number for number, block in kept if state_of(block) == State.DONE])

    def fail_older(self, age: float, error: RoutingError) -> None:
        """Ends, without success, what has been open for longer than ``age`` seconds."""
        limit = time.monotonic() - age
        with self.changed:
            late = [number for number, ticket in self._open.items() if ticket.since < limit]
        self.settle(
            [Outcome(sequence=number, code=error.code, message=error.message, hint=error.hint) for number in late]
        )

    def abandon(self, why: str, *, code: str = StoreClosedError.code) -> None:
        """Ends the tickets of what goes on without this process; how it ends is not known here any more."""
        with self.changed:
            self._unknown = Outcome(sequence=0, code=code, message=why)
            for ticket in self._open.values():
                ticket.settle(self._unknown)
            self.changed.notify_all()

    def forget(self) -> None:
        """In a forked child: ends all tickets, which would wait for a thread that is not here."""
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)  # nor is, perhaps, the thread that holds the old one
        for ticket in self._open.values():
            ticket.changed = self.changed
        self.abandon("this was handed over by another process, which alone learns how it ends")

    def give_back(self, sequences: list[int]) -> None:
        """Takes payloads back that a backend had kept."""
        with self.changed:
            for sequence in sequences:
                ticket = self._retained.pop(sequence, None)
                if ticket is not None:
                    self._release(ticket)
                elif sequence in self._open:
                    self._given_back.add(sequence)  # the store was done with it before its put returned
            self.changed.notify_all()

    @property
    def is_listener(self) -> bool:
        """Whether the calling thread is the one that hears of outcomes."""
        return threading.get_ident() == self.listener

    def wait(self, below: int, deadline: float) -> bool:
        """Waits until every operation below a sequence has ended; returns whether that was before the deadline."""
        if self.is_listener:
            raise UnsupportedError("on_failure must not wait for the writer", hint="set a flag, and wait elsewhere")

        def over() -> bool:
            return not any(sequence < below for sequence in self._open)

        with self.changed:
            return self.changed.wait_for(over, min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))

    def report(self, below: int | None = None) -> FlushReport:
        """Returns what ended since the last report, and what is pending, of the operations below a sequence."""
        with self.changed:
            late = [ticket for sequence, ticket in self._open.items() if below is None or sequence < below]
            late = [ticket for ticket in late if not isinstance(ticket.operation, FlushOp)]
            stored, failed = self._since_report
            self._since_report = [0, 0]
            failures = tuple(self._failures)
            self._failures.clear()
            return FlushReport(stored, failures, failed, len(late), sum(ticket.nbytes for ticket in late))

    @property
    def pending(self) -> int:
        """Number of operations that have not ended."""
        return len(self._open)

    @property
    def retained_bytes(self) -> int:
        """Payload bytes that backends keep in the arena."""
        with self.changed:
            return sum(ticket.nbytes for ticket in self._retained.values())

    @property
    def oldest(self) -> float:
        """Age, in seconds, of the oldest operation that has not ended; 0 if there is none."""
        with self.changed:
            return max(0.0, time.monotonic() - min((ticket.since for ticket in self._open.values()), default=1e300))
