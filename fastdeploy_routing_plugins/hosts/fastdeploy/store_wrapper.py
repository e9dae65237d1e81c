"""``StoreWrapper``: takes the place of FastDeploy's class of that name in its generations D and E."""

from __future__ import annotations

import logging
from typing import Any

from ...errors import RoutingError, StoreClosedError
from ...keys import RolloutId
from .settings import check_dtype, resolve_store, schema_of
from .sink import Sink

_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


class StoreWrapper:
    """The same methods as FastDeploy's, over a ``Sink``; what a newer one passes besides is ignored.

    Args:
        fd_config: FastDeploy's whole configuration.

    Attributes:
        sink: Where routing goes.

    Raises:
        RoutingError: no such store can be used, or the model's ids cannot be had exactly; stops the engine.
    """

    def __init__(self, fd_config: Any, *_: Any, **__: Any) -> None:
        self.fd_config = fd_config
        schema = schema_of(fd_config)
        check_dtype(fd_config, schema)
        self.sink = Sink(resolve_store(fd_config.routing_replay_config), schema)
        self._started = False

    def start_store_warpper(self, *_: Any, **__: Any) -> None:
        """Opens the store; named as FastDeploy names it."""
        if not self._started:
            self.sink.open()
            self._started = True

    def shutdown(self, *_: Any, **__: Any) -> None:
        """Waits until everything is stored, for a while; harmless when already shut down."""
        if self._started:
            self._started = False
            self.sink.close()

    def submit_put_task(
        self, routing_indices: Any, rollout_id: str, layer_idx: int | None = None, *_: Any, **__: Any
    ) -> None:
        """Hands over a request's routing, or that of one layer; what goes wrong is logged and does not raise."""
        self._check()
        self.sink.put(rollout_id, routing_indices, layer=layer_idx)

    def submit_clear_store_task(self, *further: Any, **named: Any) -> None:
        """Deletes what this engine stored, and returns when that has happened; a failure is logged."""
        self._check()
        if further or named:  # perhaps less than all is meant
            _log.error("the store was not cleared: what to clear is unknown here: %s", (*further, *named))
            return
        try:
            self.sink.clear()
        except RoutingError as err:
            _log.error("the store was not cleared: %s", err)

    def submit_clear_prefix_batch_task(
        self, rollout_id: str, layer_idx: int | None = None, *_: Any, **__: Any
    ) -> None:
        """Deletes the turn before, once; layers go with it."""
        self._check()
        if not layer_idx:
            self.sink.end_turn(rollout_id)

    def get_needed_clear_ids(self, rollout_id: str) -> str | None:
        """Returns the id of the turn before, or None if the id has none."""
        parsed = RolloutId.parse(str(rollout_id))
        return f"{parsed.trajectory}:{parsed.turn - 1}:{parsed.segment}" if parsed.turn else None

    def _check(self) -> None:
        if not self._started:
            raise StoreClosedError("Store not started.", hint="start_store_warpper() comes first")
