"""How what was handed over ended: ``Ticket`` for one operation, ``WriteFailure``, ``FlushReport`` for many."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import StoreUnavailableError
from .messages import Outcome, rebuilt
from .operations import describe

if TYPE_CHECKING:
    from ..arena.arena import Block
    from ..errors import RoutingError
    from ..keys import RoutingKey
    from .operations import Operation


@dataclass(frozen=True, slots=True)
class WriteFailure:
    """Something that was handed over and could not be done.

    Attributes:
        what: The operation, for people: ``put of 'data:0:0:0', layers 0:45, tokens 0:1024``.
        key: The rollout, or None for an operation on several.
        error: Why; ``error.code`` is the cause for programs.
        nbytes: Payload bytes that are lost.
        attempt: Which attempt.
        verb: The kind of operation: ``put``, ``seal``, ``abort``, ``delete``, ``deleteprefix`` or ``clear``.
    """

    what: str
    key: RoutingKey | None
    error: RoutingError
    nbytes: int
    attempt: int = 0
    verb: str = ""


@dataclass(frozen=True, slots=True)
class FlushReport:
    """What became of everything handed over since the last report.

    Attributes:
        stored: Operations that a reader can see the effect of.
        failures: Those that failed, at most 10,000; ``failed`` counts all.
        failed: How many failed.
        pending: How many had not ended at the deadline.
        pending_bytes: Their payload bytes.
    """

    stored: int
    failures: tuple[WriteFailure, ...]
    failed: int
    pending: int
    pending_bytes: int

    @property
    def ok(self) -> bool:
        """Whether everything is stored."""
        return not self.failed and not self.pending

    def check(self) -> FlushReport:
        """Returns this report, or raises what went wrong first.

        Raises:
            RoutingError: of the first failure.
            StoreUnavailableError: something is still pending.
        """
        if self.failures:
            first = self.failures[0]
            more = f" (and {self.failed - 1} more failed)" if self.failed > 1 else ""
            raise type(first.error)(f"{first.what}: {first.error.message}{more}", hint=first.error.hint, report=self)
        if self.pending:
            raise StoreUnavailableError(
                f"{self.pending} operations ({self.pending_bytes} bytes) had not ended at the deadline", report=self
            )
        return self


class Ticket:
    """One operation on its way; from ``submit``, ``publish``, ``seal``, ``abort`` and the deletes."""

    __slots__ = ("_error", "_outcome", "block", "changed", "nbytes", "operation", "since")

    def __init__(
        self, operation: Operation, block: Block, nbytes: int, changed: threading.Condition, since: float
    ) -> None:
        self.operation = operation
        self.block = block
        self.nbytes = nbytes
        self.changed = changed
        self.since = since
        self._outcome: Outcome | None = None
        self._error: RoutingError | None = None

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._error else "stored"
        return f"Ticket({describe(self.operation)}: {state})"

    @property
    def sequence(self) -> int:
        """Place in the order in which operations were handed over."""
        return self.block.sequence

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> Outcome:
        """Waits for the end and returns how it went: ``duplicate``, ``count`` (of a delete), ``seconds``.

        Args:
            timeout: Seconds to wait; None: until it has ended, which the writer's limits bound.

        Raises:
            StoreUnavailableError: it has not ended within ``timeout``.
            RoutingError: what it failed with.
        """
        if self._outcome is None:
            seconds = threading.TIMEOUT_MAX if timeout is None else min(timeout, threading.TIMEOUT_MAX)
            with self.changed:
                if not self.changed.wait_for(self.done, seconds):
                    raise StoreUnavailableError(f"{describe(self.operation)} has not ended within {timeout} s")
        assert self._outcome is not None
        if self._error is not None:
            raise self._error
        return self._outcome

    def settle(self, outcome: Outcome) -> RoutingError | None:
        """Notes the end; called by the ledger."""
        if outcome.code:
            self._error = rebuilt(outcome.code, outcome.message, outcome.hint)
        self._outcome = outcome
        return self._error
