"""The way into the arena: ``Gate`` finds room, holds the engine up within limits, spills, and publishes in order."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from ..arena.layout import MAX_META
from ..errors import ArenaFullError, InvalidRecordError, StoreClosedError, StoreUnavailableError
from . import operations
from .ledger import Ledger
from .operations import Operation, PutOp
from .spill import SpillFolder
from .tickets import Ticket, WriteFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from ..arena.arena import Arena, Block
    from .limits import WriterLimits

_log = logging.getLogger("fastdeploy_routing_plugins.writer")
_FULL_LOOK = 0.001  # s between looks for room while the engine is held up


class Gate:
    """Hands operations to the worker, in order. Safe to call from several threads.

    Attributes:
        arena: Where blocks lie.
        ledger: What is published and has not ended.
        refused: How many operations found no room.

    Args:
        arena: The arena.
        limits: The writer's limits.
        spill_dir: Absolute path of the folder for parts that find no room, if there is one.
        on_failure: See ``RoutingWriter``.
    """

    def __init__(
        self,
        arena: Arena,
        limits: WriterLimits,
        spill_dir: str | None,
        on_failure: Callable[[WriteFailure], None] | None,
    ) -> None:
        self.arena = arena
        self.ledger = Ledger(self._take_back, self._failed)
        self.refused = 0
        self._limits = limits
        self._spill = SpillFolder(spill_dir, arena.file.path, limits.spill_bytes) if spill_dir else None
        self._on_failure = on_failure
        self._budget = limits.on_full_wait
        self._pid = os.getpid()
        self._publishing = threading.Lock()
        self._closed = False
        self._closer = 0  # the thread that closes

    @property
    def spilled_bytes(self) -> int:
        """Bytes that lie in the spill folder."""
        return 0 if self._spill is None else self._spill.nbytes

    @property
    def closed(self) -> bool:
        """Whether it is closing, closed, or in a forked child."""
        return self._closed

    def check(self) -> None:
        """Raises StoreClosedError if the writer was closed, or opened in another process."""
        if not self._closed:
            return
        if os.getpid() != self._pid:
            raise StoreClosedError("this writer was opened in another process", hint="open it after the fork")
        if threading.get_ident() != self._closer:
            raise StoreClosedError("the writer is closed")

    def forget(self) -> None:
        """In a forked child: lets nothing through any more."""
        self._closed = True
        self._publishing = threading.Lock()
        self.ledger.forget()

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """From here on only the calling thread gets through, and nobody once this ends."""
        with self._publishing:
            self._closed, self._closer = True, threading.get_ident()
        try:
            yield
        finally:
            self._closer = 0

    def room(self, operation: Operation) -> Block | None:
        """Returns a block for an operation; holds the caller up if the arena is full, within the budget.

        The budget is what a full arena may hold its engine up in total; whole again once a part had room at once.

        Raises:
            InvalidRecordError: the operation's own text is too long.
            StoreClosedError: the writer was closed meanwhile.
        """
        meta = operations.encode(operation)
        if len(meta) > MAX_META:
            raise InvalidRecordError(
                f"what describes this part has {len(meta)} bytes, at most {MAX_META} are possible",
                hint="state fewer weight_versions, or submit tokens in parts",
            )
        nbytes = operation.nbytes if isinstance(operation, PutOp) else 0
        block = self.arena.allocate(meta, nbytes)
        if block is not None:
            if nbytes:
                self._budget = self._limits.on_full_wait
            return block
        if self.ledger.is_listener or not self.arena.fits(len(meta), nbytes):
            return None  # who hears of what has ended is who makes room, and so must not wait for it
        try:
            while self._budget > 0:
                began = time.monotonic()
                self.arena.want(len(meta), nbytes)
                time.sleep(min(self._budget, _FULL_LOOK))
                self.check()
                block = self.arena.allocate(meta, nbytes)
                self._budget -= time.monotonic() - began
                if block is not None:
                    return block
            return None
        finally:
            self.arena.want_nothing()

    def spilled(self, operation: PutOp, array: npt.NDArray[Any]) -> tuple[PutOp, Block]:
        """Writes a payload that the arena has no room for into the spill folder.

        Raises:
            ArenaFullError: there is none, or it has no room either.
        """
        if self._spill is None:
            raise self.full(operation)
        try:
            name = self._spill.write(array)
        except StoreUnavailableError as err:
            self.refused += 1
            raise ArenaFullError(
                f"the arena is full, and {err.message}", hint="set arena_bytes or spill_bytes higher, or flush() first"
            ) from err
        spilled: PutOp = msgspec.structs.replace(operation, spill=name)
        block = self.arena.allocate(operations.encode(spilled), 0)
        if block is None:
            self._spill.remove(name, operation.nbytes)
            raise self.full(operation)
        return spilled, block

    def full(self, operation: Operation) -> ArenaFullError:
        """Returns the error for an operation that found no room: what takes it, and what frees it."""
        self.refused += 1
        nbytes = operation.nbytes if isinstance(operation, PutOp) else 0
        if not self.arena.fits(len(operations.encode(operation)), nbytes):
            return ArenaFullError(
                f"a part of {nbytes} bytes does not fit into an arena of {self.arena.file.nbytes} bytes",
                hint="set arena_bytes higher, or submit layers or tokens in parts",
            )
        kept = self.ledger.retained_bytes
        free_by = "release(ids) on the trainer side frees what the store keeps" if kept else "flush() waits for it"
        return ArenaFullError(
            f"the arena is full: {self.ledger.queue_bytes} bytes wait for the store, {kept} bytes are kept by it, "
            f"{self.arena.largest} bytes are free in one piece, the part has {nbytes}",
            hint=f"{free_by}; or set arena_bytes higher, or spill_dir",
        )

    def publish(self, operation: Operation, block: Block, since: float) -> Ticket:
        """Hands a filled block to the worker.

        Args:
            operation: What to do.
            block: Its block.
            since: When the caller began to hand it over, in ``time.monotonic()``.

        Raises:
            ArenaFullError: the worker is behind by a whole ring.
            StoreClosedError: the writer was closed meanwhile.
        """
        nbytes = operation.nbytes if isinstance(operation, PutOp) else 0
        ticket = Ticket(operation, block, nbytes, self.ledger.changed, since)
        try:
            while True:
                with self._publishing:  # what comes after the last flush must not be taken
                    if self._closed:
                        self.check()
                    if self.arena.publish(block) is not None:
                        break
                if self._budget <= 0 or self.ledger.is_listener:
                    raise self.full(operation)
                time.sleep(_FULL_LOOK)
                self._budget -= _FULL_LOOK
            self.ledger.add(ticket)
        except BaseException:  # a signal handler may raise anywhere
            if block.sequence:
                self.ledger.add(ticket)  # it is the worker's now
            else:
                self._take_back(ticket)
            raise
        return ticket

    def _take_back(self, ticket: Ticket) -> None:
        operation = ticket.operation
        if isinstance(operation, PutOp) and operation.spill and self._spill is not None:
            self._spill.remove(operation.spill, operation.nbytes)
        self.arena.release(ticket.block)

    def _failed(self, failure: WriteFailure) -> None:
        with contextlib.suppress(Exception):  # a host's log handlers are no reason to stop
            _log.error("%s failed: %s: %s", failure.what, failure.error.code, failure.error)
        if self._on_failure is not None:
            try:
                self._on_failure(failure)
            except BaseException:  # noqa: BLE001 - the host's own code must not end the thread that calls it
                with contextlib.suppress(Exception):
                    _log.exception("on_failure raised")
