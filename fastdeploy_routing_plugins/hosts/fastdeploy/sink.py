"""``Sink``: where every family's routing goes; one writer, and no failure that breaks the engine's step."""

from __future__ import annotations

import logging
import threading
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from ...arrays import layer_first
from ...errors import ConflictError, RoutingError, StoreClosedError
from ...keys import RolloutId, RoutingKey
from ...opening import open_writer
from .arrays import integers, without_padding
from .requests import HostId

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...resolver import ResolvedStore
    from ...schema import RoutingSchema
    from ...writer.routing_writer import RoutingWriter
    from ...writer.tickets import WriteFailure

CLOSE_TIMEOUT = 30.0
CLEAR_TIMEOUT = 60.0
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
                self._writer = writer = open_writer(self.resolved, schema=self.schema, on_failure=self._failed)
                # Children of multiprocessing, which FastDeploy's engines of further ranks are, run no atexit handlers.
                util.Finalize(None, _leave, args=(writer,), exitpriority=20)
            return self._writer

    @property
    def by_layer(self) -> bool:
        """Whether a request is to be stored layer by layer: only if that shows, in FastDeploy's own file tree.

        Everywhere else the whole is one object, whatever ``use_fused_put`` says: it reads the same and costs less.
        """
        return not self.resolved.use_fused_put and self.resolved.options.get("layout") == "pdtensor"

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
            _log.error("routing of %r is lost: %s", rollout_id, err)
            self._lose(rollout_id, str(err))
        except Exception as err:  # noqa: BLE001 - one request must not end the engine, and all others with it
            _log.exception("routing of %r is lost", rollout_id)
            self._lose(rollout_id, f"{type(err).__name__}: {err}")

    def put_now(self, rollout_id: str, routing: Any, *, layer: int | None = None) -> None:
        """Does what ``put`` does, and raises what goes wrong."""
        whole = without_padding(layer_first(integers(routing, self.schema), "layer_first"))
        key, attempt = named(rollout_id)
        writer = self.open()
        if layer is not None:
            writer.submit(key, whole, layers=(layer, layer + 1), attempt=attempt)
        elif self.by_layer:
            for index in range(whole.shape[0]):
                writer.submit(key, whole[index], layers=(index, index + 1), attempt=attempt)
        else:
            writer.submit(key, whole, attempt=attempt)

    def _failed(self, failure: WriteFailure) -> None:
        """Called by the writer's own thread: what the store did not take is given up, so that no trainer waits."""
        # What contradicts itself says so to its reader; a delete that failed makes nothing wait.
        if failure.key is None or failure.verb not in ("put", "seal") or isinstance(failure.error, ConflictError):
            return
        writer = self._writer
        try:
            if writer is not None:
                writer.abort(failure.key, f"{failure.what} failed: {failure.error.message}", attempt=failure.attempt)
        except RoutingError as other:
            _log.error("%s cannot be aborted: %s", failure.key, other)

    def _lose(self, rollout_id: str, why: str) -> None:
        self.lost += 1
        try:
            key, attempt = named(rollout_id)
            self.open().abort(key, f"the engine could not hand the routing over: {why}", attempt=attempt)
        except RoutingError as other:
            _log.error("%r cannot be aborted either: %s", rollout_id, other)

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
        report = writer.close(CLOSE_TIMEOUT)
        if report.failed or report.pending or self.lost:
            _log.error(
                "routing at shutdown: %d operations failed, %d are pending, %d were lost before they were handed over",
                report.failed,
                report.pending,
                self.lost,
            )


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
