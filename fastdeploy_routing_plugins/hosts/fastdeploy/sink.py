"""``Sink``: where every family's routing goes; one writer, and no failure that breaks the engine's step."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from dataclasses import replace
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from ...errors import ArenaFullError, InvalidKeyError, RoutingError, StoreClosedError
from ...keys import RolloutId, RoutingKey, shown
from ...opening import open_writer
from ...writer.limits import WriterLimits
from .arrays import real_rows
from .requests import HostId

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...resolver import ResolvedStore
    from ...schema import RoutingSchema
    from ...writer.routing_writer import RoutingWriter

CLOSE_TIMEOUT = 30.0
CLEAR_TIMEOUT = 60.0
_MAX_OWED = 10_000  # aborts that wait for room
_AT_ONCE = 4
_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


class Sink:
    """Hands routing over to the store that FastDeploy's configuration names. Safe to call from several threads.

    A part that cannot be handed over, or that the store does not take, is logged, counted, and its rollout aborted, so
    that no trainer waits for it; the engine goes on.

    Args:
        resolved: Which store.
        schema: The model's schema.

    Attributes:
        lost: How many parts could not be handed over.
    """

    def __init__(self, resolved: ResolvedStore, schema: RoutingSchema) -> None:
        self.resolved = resolved
        self.schema = schema
        self.lost = 0
        self._writer: RoutingWriter | None = None
        self._closed = False
        self._leaving: util.Finalize | None = None
        self._owed: deque[tuple[RoutingKey, int, str]] = deque(maxlen=_MAX_OWED)
        self._opening = threading.Lock()

    def open(self) -> RoutingWriter:
        """Returns the writer, opened with the first call.

        Raises:
            RoutingError: it does not open.
        """
        with self._opening:
            if self._closed:
                raise StoreClosedError("the routing store was shut down")
            if self._writer is None:
                limits = replace(WriterLimits.load(), abort_lost=True)  # the worker does, also when the engine is gone
                self._writer = writer = open_writer(self.resolved, schema=self.schema, limits=limits)
                # Children of multiprocessing, which FastDeploy's engines of further ranks are, run no atexit handlers.
                self._leaving = util.Finalize(None, _leave, args=(writer,), exitpriority=20)
            return self._writer

    @property
    def by_layer(self) -> bool:
        """Whether a request is to be stored layer by layer: only if that shows, in FastDeploy's own files or keys.

        Everywhere else the whole is one object, whatever ``use_fused_put`` says: it reads the same and costs less.
        """
        return not self.resolved.use_fused_put and getattr(self.resolved.config, "shows_layers", False)

    # --- handing over ---------------------------------------------------------------------------------------------

    def put(self, rollout_id: str, routing: Any, *, layer: int | None = None) -> None:
        """Hands over a request's routing, ``[layers, tokens, top_k]``, or that of one layer, ``[tokens, top_k]``."""
        self.attempt(rollout_id, lambda: self.put_now(rollout_id, routing, layer=layer))

    def put_gathered(self, rollout_id: str, tokens: int, dtype: Any, gather: Callable[[Any], None]) -> None:
        """Hands over a request that ``gather`` writes straight into shared memory, ``[tokens, layers, top_k]``."""
        key, attempt = named(rollout_id)
        with self.open().reserve(key, tokens, layout="token_first", attempt=attempt, dtype=dtype) as slot:
            gather(slot.view)

    def attempt(self, rollout_id: str, hand_over: Callable[[], None]) -> None:
        """Hands over; what goes wrong is logged and counted, and the rollout aborted."""
        try:
            hand_over()
        except RoutingError as err:
            _log.error("routing of %s is lost: %s", shown(rollout_id), err)
            self._lose(rollout_id, str(err))
        except Exception as err:  # noqa: BLE001 - one request must not end the engine, and all others with it
            _log.exception("routing of %s is lost", shown(rollout_id))
            self._lose(rollout_id, f"{type(err).__name__}: {err}")
        else:
            self._abort_owed(_AT_ONCE)

    def put_now(self, rollout_id: str, routing: Any, *, layer: int | None = None) -> None:
        """Does what ``put`` does, and raises what goes wrong."""
        whole = real_rows(routing, self.schema)
        key, attempt = named(rollout_id)
        writer = self.open()
        if layer is not None:
            writer.submit(key, whole, layers=(layer, layer + 1), attempt=attempt)
        elif self.by_layer:
            for index in range(whole.shape[0]):
                writer.submit(key, whole[index], layers=(index, index + 1), attempt=attempt)
        else:
            writer.submit(key, whole, attempt=attempt)

    def _lose(self, rollout_id: str, why: str) -> None:
        self.lost += 1
        try:
            key, attempt = named(rollout_id)
        except InvalidKeyError:
            return  # nobody can ask for it
        self._owed.append((key, attempt, f"the engine could not hand the routing over: {why}"))
        self._abort_owed(_AT_ONCE)

    def _abort_owed(self, most: int) -> None:
        """Aborts what was lost, as far as there is room for that."""
        for _ in range(min(most, len(self._owed))):
            try:
                key, attempt, reason = self._owed.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self.open().abort(key, reason, attempt=attempt)
            except ArenaFullError:
                self._owed.append((key, attempt, reason))
                return
            except RoutingError as err:
                _log.error("%s cannot be aborted: %s", key, err)

    # --- the rest -------------------------------------------------------------------------------------------------

    def end_turn(self, rollout_id: str) -> None:
        """Deletes the turn before this one, in order; with ``only_last_turn`` the store worker does that itself."""
        parsed = RolloutId.parse(str(rollout_id))
        if self.resolved.only_last_turn or not parsed.turn:
            return
        key, _ = named(rollout_id)
        before = RoutingKey(f"{parsed.trajectory}:{parsed.turn - 1}:{parsed.segment}", key.choice)
        self.attempt(rollout_id, lambda: _ignore(self.open().delete(before)))

    def clear(self) -> None:
        """Deletes what this engine stored, and returns when that has happened.

        Raises:
            RoutingError: it could not be deleted.
        """
        self.open().clear().result(CLEAR_TIMEOUT)

    def close(self) -> None:
        """Waits until everything is stored, for a while; what is left then, the store worker finishes alone."""
        with self._opening:
            self._closed = True
            writer, self._writer = self._writer, None
        if writer is None:
            return
        if self._leaving is not None:
            self._leaving.cancel()  # it keeps the writer
        failed, pending = self._close(writer)
        if failed or pending or self.lost:
            _log.error(
                "routing at shutdown: %d operations failed, %d are pending, %d were lost before they were handed over",
                failed,
                pending,
                self.lost,
            )

    def _close(self, writer: RoutingWriter) -> tuple[int, int]:
        """Closes the writer; returns how many operations failed, and how many are pending."""
        failed = 0
        if self._owed:
            failed = writer.flush(CLOSE_TIMEOUT).failed  # what the arena is full of, so that aborts find room
            for key, attempt, reason in self._owed:
                with contextlib.suppress(RoutingError):
                    writer.abort(key, reason, attempt=attempt)
            self._owed.clear()
        report = writer.close(CLOSE_TIMEOUT)
        return failed + report.failed, report.pending


def named(rollout_id: str) -> tuple[RoutingKey, int]:
    """Returns the key and the attempt of what FastDeploy passes along as a rollout id.

    Raises:
        InvalidKeyError: nothing can be stored under it.
    """
    if isinstance(rollout_id, HostId):
        return RoutingKey(str.__str__(rollout_id), rollout_id.choice), rollout_id.attempt
    return RoutingKey(rollout_id), 0


def _leave(writer: RoutingWriter) -> None:
    writer.close(writer.limits.exit_wait)


def _ignore(ticket: object) -> None:
    """Tickets need not be looked at: failures are logged."""
