"""FastDeploy 2.6 (family E): the engine gathers a finished request's rows and hands them over.

The classes stay, since other modules have bound them; methods are patched in place.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArenaFullError, UnsupportedError
from .arrays import fill_value, shows_bfloat16
from .buffers import patch_buffer, patch_view
from .gate import Shape, fits, has, is_coroutine
from .gather import Rows
from .requests import ARRIVALS, HostId, arrival_of, identify
from .settings import RESPONSE, resolve_store
from .store_wrapper import StoreWrapper

if TYPE_CHECKING:
    from types import ModuleType

    from .sink import Sink

_BUFFER = ("block_size", "num_moe_layers", "top_k", "dtype", "dp_suffix")
_MANAGER = (
    Shape("RoutingCacheManager.__init__", ("self", "fd_config", "num_gpu_blocks")),
    Shape("RoutingCacheManager.on_request_finished", ("self", "request_id", "block_table", "seq_len")),
    Shape("RoutingCacheManager.gather_routing_for_request", ("self", "block_table", "seq_len")),
    Shape("RoutingCacheManager.reset", ("self",)),
    Shape("RoutingCacheManager.close", ("self",)),
    Shape("RoutingHostBuffer.__init__", ("self", "num_gpu_blocks", *_BUFFER)),
    Shape("RoutingHostBuffer.close", ("self",)),
    Shape("RoutingSwapBuffer.__init__", ("self", "num_cpu_blocks", *_BUFFER)),
    Shape("RoutingSwapBuffer.close", ("self",)),
    Shape("RoutingHostBufferView.__init__", ("self", "shape", "dtype", "shm_name")),
    Shape("RoutingHostBufferView.gather", ("self", "slot_mapping")),
    Shape("RoutingHostBufferView.close", ("self",)),
    Shape("split_request_id", ("request_id",)),
)
_STORE = (
    Shape("StoreWrapper.__init__", ("self", "fd_config")),
    Shape("StoreWrapper.start_store_warpper", ("self",)),
    Shape("StoreWrapper.submit_put_task", ("self", "routing_indices", "rollout_id", "layer_idx")),
    Shape("get_routing_store", ("routing_replay_config",)),
)
_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


def patch_manager(module: ModuleType) -> None:
    """Patches ``fastdeploy.cache_manager.routing_cache_manager``: shared memory, ids, and where routing goes."""
    if not fits(module, _MANAGER):
        return
    patch_buffer(module.RoutingHostBuffer, "routing_host_buffer")
    patch_buffer(module.RoutingSwapBuffer, "routing_swap_buffer")
    patch_view(module.RoutingHostBufferView)
    if hasattr(module, "RoutingSwapBufferView"):
        patch_view(module.RoutingSwapBufferView)
    module.split_request_id = identify  # type: ignore[attr-defined]
    _patch_manager(module.RoutingCacheManager)
    _log.info("routing stores: FastDeploy's RoutingCacheManager is patched")


def patch_store(module: ModuleType) -> None:
    """Patches ``fastdeploy.cache_manager.routing_store``: its queue and process give way to a writer."""
    if fits(module, _STORE):
        module.StoreWrapper = StoreWrapper  # type: ignore[attr-defined]


def patch_token_processor(module: ModuleType) -> None:
    """Patches ``TokenProcessor._finalize_routing``, which knows when a request arrived."""
    if not has(module, "TokenProcessor._finalize_routing"):
        return  # another generation
    shape = Shape("TokenProcessor._finalize_routing", ("self", "task_id", "task", "result"))
    if not fits(module, [shape]):
        return
    original = module.TokenProcessor._finalize_routing

    @functools.wraps(original)
    def _finalize_routing(self: Any, task_id: str, task: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(result, "finished", False):
            ARRIVALS.note(task_id, arrival_of(task))
        return original(self, task_id, task, result, *args, **kwargs)

    module.TokenProcessor._finalize_routing = _finalize_routing


def patch_expert_service(module: ModuleType) -> None:
    """Patches ``ExpertService``: data-parallel ranks from 1 on get a routing manager too."""
    if not has(module, "EngineService._init_routing_cache_manager"):
        return  # another generation
    shapes = (
        Shape("EngineService._init_routing_cache_manager", ("self", "num_gpu_blocks")),
        Shape("ExpertService.__init__", ("self", "cfg", "local_data_parallel_id", "start_queue")),
        Shape("ExpertService.reset_kvcache_blocks", ("self",)),
        Shape("ExpertService._exit_sub_services", ("self",)),
    )
    if not fits(module, shapes) or is_coroutine(module, "ExpertService.reset_kvcache_blocks"):
        return
    _patch_expert_service(module.ExpertService)


def _patch_expert_service(service: Any) -> None:
    original, reset, leave = service.__init__, service.reset_kvcache_blocks, service._exit_sub_services

    def make_manager(self: Any, blocks: int | None) -> None:
        wanted = getattr(self.cfg, "routing_replay_config", None)
        if wanted is None or not wanted.enable_routing_replay or blocks is None:
            return
        if getattr(self.engine, "routing_cache_manager", None) is None:
            self.engine._init_routing_cache_manager(int(blocks))

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not self.do_profile:
            make_manager(self, self.cfg.cache_config.num_gpu_blocks_override)

    @functools.wraps(reset)
    def reset_kvcache_blocks(self: Any) -> Any:
        done = reset(self)
        make_manager(self, self.get_profile_block_num_signal.value[0])
        return done

    @functools.wraps(leave)
    def _exit_sub_services(self: Any) -> Any:
        engine: Any = getattr(self, "engine", None)
        manager = getattr(engine, "routing_cache_manager", None)
        if manager is not None:
            engine.routing_cache_manager = None
            manager.close()
        return leave(self)

    service.__init__ = __init__
    service.reset_kvcache_blocks = reset_kvcache_blocks
    service._exit_sub_services = _exit_sub_services


def _patch_manager(manager: Any) -> None:
    original, finished, end = manager.__init__, manager.on_request_finished, manager.close

    @functools.wraps(original)
    def __init__(self: Any, fd_config: Any, num_gpu_blocks: int) -> None:
        wants_store = fd_config.routing_replay_config.routing_store_type != RESPONSE
        if wants_store:
            resolve_store(fd_config.routing_replay_config)  # before any memory is taken
            _require_patched_store()
        self.host_buffer = self.host_view = self._store_wrapper = None
        try:
            original(self, fd_config, num_gpu_blocks)
            if wants_store and self._store_wrapper is None:  # FastDeploy makes one for local and rdma only
                self._store_wrapper = StoreWrapper(fd_config)
                self._store_wrapper.start_store_warpper()
        except BaseException:
            close(self)
            raise
        if wants_store and self.debug_mode:
            _log.warning("debug_mode records token positions instead of experts, so nothing is stored")

    @functools.wraps(finished)
    def on_request_finished(self: Any, request_id: str, block_table: Any, seq_len: int) -> Any:
        if self._store_wrapper is None:
            return finished(self, request_id, block_table, seq_len)
        if self.debug_mode:
            self.gather_routing_for_request(block_table, seq_len)  # FastDeploy's own check
            return None
        sink, key = self._store_wrapper.sink, identify(request_id)
        buffer = self.host_view.buffer
        sink.attempt(key, lambda: _hand_over(sink, key, Rows(buffer, block_table, self.block_size, seq_len), buffer))
        return None

    @functools.wraps(manager.reset)
    def reset(self: Any) -> None:
        self.host_buffer.buffer.fill(fill_value(self.host_buffer.dtype))

    @functools.wraps(end)
    def close(self: Any) -> None:
        wrapper, self._store_wrapper = self._store_wrapper, None
        view, self.host_view = self.host_view, None
        buffer, self.host_buffer = self.host_buffer, None
        for part in (view, buffer):
            if part is not None:
                part.close()
        if wrapper is not None:
            wrapper.shutdown()

    manager.__init__ = __init__
    manager.on_request_finished = on_request_finished
    manager.reset = reset
    manager.close = close


def _require_patched_store() -> None:
    """Makes sure that FastDeploy's own store process is out of the way.

    Raises:
        UnsupportedError: its module is not as expected.
    """
    from fastdeploy.cache_manager import routing_store  # type: ignore[import-not-found]  # noqa: PLC0415

    if routing_store.StoreWrapper is not StoreWrapper:
        raise UnsupportedError(
            "fastdeploy.cache_manager.routing_store is not as expected, so no routing store can be used",
            hint="the log says what differs; upgrade fastdeploy-routing-plugins, or unset FD_PLUGINS",
        )


def _hand_over(sink: Sink, key: HostId, rows: Rows, buffer: Any) -> None:
    if sink.by_layer:
        sink.put_now(key, _copied(sink, rows, buffer))
        return
    bfloat16 = _is_bfloat16(sink, rows, buffer)
    dtype = sink.schema.dtype if bfloat16 else buffer.dtype
    try:
        sink.put_gathered(key, rows.tokens, dtype, rows.decode_into if bfloat16 else rows.copy_into)
    except ArenaFullError:
        if sink.open().limits.spill_dir is None:
            raise
        sink.put_now(key, _copied(sink, rows, buffer))


def _copied(sink: Sink, rows: Rows, buffer: Any) -> Any:
    bfloat16 = _is_bfloat16(sink, rows, buffer)
    shape = (rows.tokens, sink.schema.num_layers, sink.schema.top_k)
    made = np.empty(shape, dtype=sink.schema.dtype if bfloat16 else buffer.dtype)
    (rows.decode_into if bfloat16 else rows.copy_into)(made)
    return made.transpose(1, 0, 2)


def _is_bfloat16(sink: Sink, rows: Rows, buffer: Any) -> bool:
    return buffer.dtype == np.uint16 and shows_bfloat16(np.asarray([rows.peak()], np.uint16), sink.schema)
