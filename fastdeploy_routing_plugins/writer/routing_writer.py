"""``RoutingWriter``: the engine's side. One copy into shared memory, and the engine goes on."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arena.arena import Arena
from ..arena.copying import copy_into
from ..arrays import is_token_first
from ..errors import ArenaFullError, InvalidRecordError, UnsupportedError
from ..keys import RoutingKey, as_key, shown
from ..schema import RoutingSchema
from ..spec import Capability
from . import lifetime
from .gate import Gate
from .limits import WriterLimits
from .operations import ClearOp, DeleteOp, DeletePrefixOp, FlushOp, Operation, Setup
from .parts import abort_operation, laid_out, named, native_integers, put_operation, reserved_shape, seal_operation
from .reservation import Reservation
from .stats import Window, WriterStats, collect
from .supervisor import Supervisor
from .tickets import FlushReport, Ticket, WriteFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from ..record import Versions
    from ..resolver import ResolvedStore
    from ..store.selection import Selection

_log = logging.getLogger("fastdeploy_routing_plugins.writer")
_USUAL = "layer_first"
_FULL_PAUSE = 0.01  # s between tries to get even a flush into a full arena


class RoutingWriter:
    """Hands routing over to a store worker. Safe to call from several threads; ``open_writer`` makes one.

    Operations on one trajectory (``data:gen`` of ``data:gen:turn:segment``) take effect in the order in which they
    were handed over; ``delete_prefix``, ``clear`` and ``flush`` come after everything before them.

    Args:
        resolved: Which store, from ``resolve``.
        schema: The model's schema.
        limits: Memory and time; None: the defaults and ``FD_ROUTING_WRITER_CONFIG``.
        on_failure: Called, in a thread of the writer, with each ``WriteFailure``; it is logged as well.

    Raises:
        ArenaRoomError: There is not enough shared memory; the hint says how to make some.
        WorkerError: The worker cannot be started.
        RoutingError: The store does not open; the error is the store's own.
    """

    def __init__(
        self,
        resolved: ResolvedStore,
        schema: RoutingSchema,
        limits: WriterLimits | None = None,
        *,
        on_failure: Callable[[WriteFailure], None] | None = None,
    ) -> None:
        given: object = schema
        if not isinstance(given, RoutingSchema):
            raise InvalidRecordError(f"{shown(schema)} is no RoutingSchema", hint="RoutingSchema(num_experts=…, …)")
        self.resolved = resolved
        self.schema = schema
        self.limits = limits = WriterLimits.load() if limits is None else limits
        self._dtype = np.dtype(schema.dtype)
        self._retains = Capability.RETAIN in resolved.spec.capabilities  # the arena then holds what readers get
        self._closed = True  # until there is something to close
        self._closing = threading.Lock()
        self._hand_over = Window()
        setup = Setup.of(resolved, schema, limits)
        self._arena = Arena.create(limits.arena_dir, limits.arena_bytes, setup.encode())
        try:
            self._gate = Gate(self._arena, limits, setup.spill_dir, on_failure)
            self._supervisor = Supervisor(self._arena, self._gate.ledger, limits, setup.cwd)
            self._supervisor.start()
        except BaseException:
            self._arena.close(remove=True)
            raise
        self._closed = False
        lifetime.opened(self)
        text = "routing writer: %s; arena of %d MiB in %s, worker pid %s"
        size = self._arena.file.nbytes >> 20
        _log.info(text, resolved.described(), size, limits.arena_dir, self._supervisor.pid)

    def __enter__(self) -> RoutingWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise UnsupportedError("a writer cannot be copied or pickled", hint="pass writer.resolved and open one there")

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._closed = True
            lifetime.dropped(self._supervisor, self._gate, self._arena)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the process that this one was forked from."""
        return self._closed

    def __repr__(self) -> str:
        return f"RoutingWriter({self.resolved.name!r}, namespace={self.resolved.namespace!r})"

    # --- handing over -------------------------------------------------------------------------------------------

    def submit(
        self,
        key: str | RoutingKey,
        routing: Any,
        *,
        layers: Selection = None,
        tokens: Selection = None,
        total_tokens: int | None = None,
        choice: int = 0,
        attempt: int = 0,
        layout: str = _USUAL,
        weight_versions: Versions = (),
    ) -> Ticket:
        """Copies routing into shared memory and returns; the memory is the caller's again at once.

        Rank, shape, dtype, and the counts of layers and tokens are checked here; ids, by the worker.

        Args:
            key: The rollout id, or a ``RoutingKey``.
            routing: Integers ``[layers, tokens, top_k]`` (``[tokens, top_k]`` for one layer), as ``RoutingStore.put``
                takes them. The schema's own dtype costs least.
            layers: Which MoE layers (positions in ``schema.layer_ids``) these are; None: all.
            tokens: Which tokens (absolute) these are; None: all tokens of the rollout.
            total_tokens: Recorded tokens of the whole rollout, if known; implied by ``tokens=None``.
            choice: Which choice of a request with ``n > 1``.
            attempt: The producer's number of the attempt; readers see the highest one.
            layout: ``"layer_first"``, or ``"token_first"`` for ``[tokens, layers, top_k]``.
            weight_versions: The weights that made these tokens: one version, or spans with absolute tokens.

        Raises:
            InvalidRecordError: The routing does not fit the schema or the ranges stated.
            InvalidKeyError: The id, choice, attempt or a range cannot be stored.
            ArenaFullError: There is no room, after ``on_full_wait``, nor in ``spill_dir``; nothing was taken.
            StoreClosedError: The writer is closed.
        """
        began = time.monotonic()
        self._gate.check()
        usual = type(routing) is np.ndarray and routing.dtype is self._dtype and layout == _USUAL and routing.ndim == 3
        if usual and routing.flags.c_contiguous:
            array, dtype, shape, turned = routing, self._dtype, routing.shape, False
        else:
            array, dtype, shape, turned = laid_out(routing, layout, may_turn=not self._retains)
        operation = put_operation(
            self.schema, key, shape, dtype, layers, tokens, total_tokens, choice, attempt, weight_versions, turned
        )
        block = self._gate.room(operation)
        if block is None:
            operation, block = self._gate.spilled(operation, np.ascontiguousarray(array, dtype))
        else:
            try:
                copy_into(self._arena.array(block, array.shape, dtype), array)
            except BaseException:
                self._arena.release(block)
                raise
        ticket = self._gate.publish(operation, block, began)
        self._hand_over.add(time.monotonic() - began)
        return ticket

    def reserve(
        self,
        key: str | RoutingKey,
        num_tokens: int,
        *,
        layers: Selection = None,
        tokens: Selection = None,
        total_tokens: int | None = None,
        choice: int = 0,
        attempt: int = 0,
        layout: str = _USUAL,
        dtype: npt.DTypeLike | None = None,
        weight_versions: Versions = (),
    ) -> Reservation:
        """Returns shared memory to gather routing into, so that nothing is copied at all.

        ``with writer.reserve(id, n) as slot: slot.view[...] = ...`` publishes at the end of the block, or gives the
        memory back if the block raises; ``slot.publish()`` and ``slot.cancel()`` do so by hand.

        ``slot.view`` has shape ``[layers, num_tokens, top_k]``, or ``[num_tokens, layers, top_k]`` with
        ``layout="token_first"``, and the schema's dtype, unless ``dtype`` names another native integer type. The other
        arguments are those of ``submit``.

        Raises:
            RoutingError: as ``submit``.
        """
        began = time.monotonic()
        self._gate.check()
        wanted = self._dtype if dtype is None else native_integers(dtype)
        shape = reserved_shape(self.schema, num_tokens, layers)
        turned = layout != _USUAL and is_token_first(layout)
        operation = put_operation(
            self.schema, key, shape, wanted, layers, tokens, total_tokens, choice, attempt, weight_versions, turned
        )
        block = self._gate.room(operation)
        if block is None:
            raise self._gate.full(operation)
        view = self._arena.array(block, (shape[1], shape[0], shape[2]) if turned else shape, wanted)
        return Reservation(self._gate, operation, block, view, self._hand_over, time.monotonic() - began)

    def publish(self, reservation: Reservation) -> Ticket:
        """Hands over what was gathered into a reservation's view, which must not be written to any more."""
        return reservation.publish()

    def seal(self, key: str | RoutingKey, total_tokens: int, *, choice: int = 0, attempt: int = 0) -> Ticket:
        """Says how many recorded tokens a rollout has in all, once that is known."""
        return self._order(seal_operation(key, total_tokens, choice, attempt))

    def abort(self, key: str | RoutingKey, reason: str, *, choice: int = 0, attempt: int = 0) -> Ticket:
        """Gives an attempt up: readers get ``AbortedError`` with the reason at once."""
        return self._order(abort_operation(key, reason, choice, attempt))

    def delete(self, key: str | RoutingKey, *, choice: int = 0) -> Ticket:
        """Deletes a rollout, all attempts, after what was handed over for its trajectory before."""
        return self._order(DeleteOp(**named(as_key(key, choice))))

    def delete_prefix(self, prefix: str) -> Ticket:
        """Deletes the rollouts whose id is ``prefix`` or continues after a colon: ``x:1`` never means ``x:10``."""
        return self._order(DeletePrefixOp(prefix=RoutingKey(prefix).rollout_id))  # what is no id begins no id

    def clear(self, *, everything: bool = False) -> Ticket:
        """Deletes the namespace's rollouts of this producer, or of all producers."""
        return self._order(ClearOp(everything=bool(everything)))

    def _order(self, operation: Operation) -> Ticket:
        self._gate.check()
        block = self._gate.room(operation)
        if block is None:
            raise self._gate.full(operation)
        return self._gate.publish(operation, block, time.monotonic())

    # --- ending -------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = 60.0) -> FlushReport:
        """Waits until everything handed over before has ended and the store has made it durable.

        Args:
            timeout: Seconds, None for no limit; the report then says what is still pending.

        Returns:
            What was stored and what failed since the last report; ``report.check()`` raises if anything failed.
        """
        self._gate.check()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        ticket: Ticket | None = None
        while ticket is None:
            try:
                ticket = self._order(FlushOp())
            except ArenaFullError:
                if time.monotonic() >= deadline:
                    return self._gate.ledger.report()
                time.sleep(_FULL_PAUSE)
        self._gate.ledger.wait(ticket.sequence + 1, deadline)
        return self._gate.ledger.report(ticket.sequence + 1)

    def close(self, timeout: float | None = 30.0) -> FlushReport:
        """Flushes, ends the worker and removes the arena. Never hangs; harmless when already closed.

        What is pending after ``timeout`` seconds is left to the worker, which goes on without this process.
        """
        with self._closing:
            if self._closed:
                return FlushReport(0, (), 0, 0, 0)
            with self._gate.closing():
                report = self.flush(timeout)
            self._closed = True
            lifetime.closed(self)
            if report.pending:
                _log.warning(
                    "%d operations (%d bytes) are pending; the store worker (pid %s) goes on with them alone",
                    report.pending,
                    report.pending_bytes,
                    self._supervisor.pid,
                )
                lifetime.leave(self._supervisor, self._gate, self._arena)
            else:
                gone = self._supervisor.stop(5.0)
                self._arena.close(remove=gone)
            return report

    def stats(self) -> WriterStats:
        """Returns counters, sizes and durations; cheap."""
        return collect(self._arena, self._gate, self._supervisor, self._hand_over)

    def forget(self) -> None:
        """In a forked child: closes what keeps the worker from noticing the engine's end."""
        self._closed = True
        self._closing = threading.Lock()
        self._gate.forget()
        self._supervisor.forget()
        self._arena.forget()
