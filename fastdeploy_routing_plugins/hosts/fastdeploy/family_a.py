"""FastDeploy's first routing replay (family A): the worker puts layer by layer into a store object of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...opening import open_store
from .family_d import patch_ids, patch_put
from .gate import Shape, fits
from .requests import ARRIVALS
from .settings import resolve_store, schema_of
from .sink import CLEAR_TIMEOUT, Sink, named

if TYPE_CHECKING:
    from types import ModuleType

_SHAPES = (
    Shape("get_routing_store", ("fd_config",)),
    Shape("RoutingStoreBase.put", ("self", "routing_indices", "rollout_id", "layer_idx")),
    Shape("RoutingReplayManager.register_request", ("self", "batch_id", "request_id")),
    Shape("RoutingReplayManager.split_request_id", ("self", "request_id")),
    Shape("RoutingReplayManager._put_request_to_store", ("self", "batch_id", "request_id")),
    Shape("RoutingReplayManager._clear_table_slot", ("self", "batch_id")),
)
_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


def patch(module: ModuleType) -> None:
    """Patches the module ``routing_indices_cache``: ids, and where routing goes."""
    if not fits(module, _SHAPES):
        return
    module.get_routing_store = HostStore  # type: ignore[attr-defined]
    manager = module.RoutingReplayManager
    patch_ids(manager)
    patch_put(manager, _put_request_to_store, ("self", "batch_id", "request_id"))
    _log.info("routing stores: FastDeploy's RoutingReplayManager (family A) is patched")


def _put_request_to_store(self: Any, batch_id: int, request_id: str) -> None:
    if self.tp_rank != 0:
        ARRIVALS.take(request_id)
    else:
        sink, rollout_id = self.routing_store.sink, self.split_request_id(request_id)
        # [layers, max_model_len, top_k], filled up with -1
        sink.attempt(rollout_id, lambda: sink.put_now(rollout_id, self.routing_replay_table[batch_id]))
    self._clear_table_slot(batch_id)


class HostStore:
    """The store object that FastDeploy's manager holds, over a ``Sink``.

    Args:
        fd_config: FastDeploy's whole configuration.

    Attributes:
        sink: Where routing goes.

    Raises:
        RoutingError: no such store can be used; stops the engine.
    """

    def __init__(self, fd_config: Any, *_: Any, **__: Any) -> None:
        self.fd_config = fd_config
        self.sink = Sink(resolve_store(fd_config.routing_replay_config), schema_of(fd_config))
        if fd_config.parallel_config.tensor_parallel_rank == 0:  # the others never put
            self.sink.open()

    def put(self, routing_indices: Any, rollout_id: str, layer_idx: int | None = None) -> None:
        """Hands over one layer's routing, or that of all layers; what goes wrong is logged and does not raise."""
        self.sink.put(rollout_id, routing_indices, layer=layer_idx)

    def get(self, rollout_id: str, layer_idx: int | None = None) -> Any:
        """Returns the stored routing of one layer, or of all, as a Paddle tensor of int32.

        Raises:
            RoutingError: it is not there, or cannot be read.
        """
        import paddle  # noqa: PLC0415 - FastDeploy has it; nothing else here needs it

        self.sink.open().flush(CLEAR_TIMEOUT)
        key, _ = named(rollout_id)
        layers = None if layer_idx is None else (layer_idx, layer_idx + 1)
        with open_store(self.sink.resolved, schema=self.sink.schema) as store:
            routing = store.get(key, layers=layers).routing.astype("int32")
        return paddle.to_tensor(routing if layer_idx is None else routing[0])

    def clear(self, rollout_id: str, layer_idx: int | None = None) -> None:
        """Deletes a rollout, with its first layer; FastDeploy asks once for each layer.

        Raises:
            RoutingError: it cannot be deleted.
        """
        if not layer_idx:
            self.sink.open().delete(named(rollout_id)[0]).result(CLEAR_TIMEOUT)

    def clear_store(self) -> None:
        """Deletes what this engine stored, and returns when that has happened.

        Raises:
            RoutingError: it cannot be deleted.
        """
        self.sink.clear()
