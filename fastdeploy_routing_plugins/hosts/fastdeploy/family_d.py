"""FastDeploy 2.4 and 2.5 (family D): the worker collects a finished request's rows and hands them over."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from .gate import Arguments, Shape, fits
from .requests import ARRIVALS, HostId, identify
from .store_wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

_SHAPES = (
    Shape("StoreWrapper.__init__", ("self", "fd_config")),
    Shape("StoreWrapper.start_store_warpper", ("self",)),
    Shape("StoreWrapper.submit_put_task", ("self", "routing_indices", "rollout_id", "layer_idx")),
    Shape("StoreWrapper.submit_clear_prefix_batch_task", ("self", "rollout_id")),
    Shape("RoutingReplayManager.register_request", ("self", "batch_id", "request_id")),
    Shape("RoutingReplayManager.split_request_id", ("self", "request_id")),
    Shape("RoutingReplayManager._get_routing_from_cache", ("self", "finished_batch_ids", "seq_lens_decoder")),
    Shape("RoutingReplayManager._put_request_to_store", ("self", "batch_id", "request_id", "seq_lens_decoder")),
)
_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


def patch(module: ModuleType) -> None:
    """Patches the module ``routing_indices_cache``: ids, and where routing goes."""
    if not fits(module, _SHAPES):
        return
    module.StoreWrapper = StoreWrapper  # type: ignore[attr-defined]
    manager = module.RoutingReplayManager
    patch_ids(manager)
    patch_put(manager, _put_request_to_store, ("self", "batch_id", "request_id", "seq_lens_decoder"))
    _log.info("routing stores: FastDeploy's RoutingReplayManager (family D) is patched")


def patch_ids(manager: Any) -> None:
    """Patches a ``RoutingReplayManager``: rollout ids are exact, and arrivals noted at the latest here."""
    register, split = manager.register_request, manager.split_request_id
    registered = Arguments(register, ("self", "batch_id", "request_id"))
    named = Arguments(split, ("self", "request_id"))

    @functools.wraps(register)
    def register_request(*args: Any, **kwargs: Any) -> Any:
        ARRIVALS.note(registered.of(args, kwargs).known[2])
        return register(*args, **kwargs)

    @functools.wraps(split)
    def split_request_id(*args: Any, **kwargs: Any) -> HostId:
        return identify(named.known_of(args, kwargs)[1])

    manager.register_request = register_request
    manager.split_request_id = split_request_id


def patch_put(manager: Any, put: Callable[..., None], parameters: Sequence[str]) -> None:
    """Replaces ``_put_request_to_store``, whatever else a newer FastDeploy passes to it."""
    arguments = Arguments(manager._put_request_to_store, parameters)

    @functools.wraps(manager._put_request_to_store)
    def _put_request_to_store(*args: Any, **kwargs: Any) -> None:
        put(*arguments.known_of(args, kwargs))

    manager._put_request_to_store = _put_request_to_store


def _put_request_to_store(self: Any, batch_id: int, request_id: str, seq_lens_decoder: Any) -> None:
    if self.tp_rank != 0:
        ARRIVALS.take(request_id)
    else:
        wrapper, rollout_id = self._store_wrapper, self.split_request_id(request_id)
        sink = wrapper.sink
        sink.attempt(rollout_id, lambda: sink.put_now(rollout_id, _rows(self, batch_id, seq_lens_decoder)))
        if self.only_last_turn:
            wrapper.submit_clear_prefix_batch_task(rollout_id=rollout_id)


def _rows(self: Any, batch_id: int, seq_lens_decoder: Any) -> Any:
    """Returns ``[layers, tokens, top_k]``; FastDeploy's own method has no answer for a request without tokens."""
    lengths = np.asarray(seq_lens_decoder.numpy() if hasattr(seq_lens_decoder, "numpy") else seq_lens_decoder)
    if int(lengths.reshape(self.max_num_seqs, -1)[batch_id, 0]) == 0:
        return np.empty((self.num_moe_layers, 0, self.moe_top_k), np.uint8)
    return self._get_routing_from_cache(finished_batch_ids=[batch_id], seq_lens_decoder=seq_lens_decoder)
