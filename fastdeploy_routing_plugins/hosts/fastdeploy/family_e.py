"""FastDeploy 2.6 (family E): the engine gathers a finished request's rows and hands them over.

The classes stay, since other modules have bound them; methods are patched in place.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArenaFullError, UnsupportedError
from ...patterns import fill_value, shows_bfloat16
from .buffers import patch_buffer, patch_view
from .gate import Arguments, Shape, collecting, fits, has
from .gather import Rows
from .requests import ARRIVALS, HostId, identify, note_arrival, patch_request
from .settings import RESPONSE, resolve_store
from .store_wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable
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
_SWAP_VIEW = (
    Shape("RoutingSwapBufferView.__init__", ("self", "shape", "dtype", "shm_name")),
    Shape("RoutingSwapBufferView.close", ("self",)),
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
    swap_view = has(module, "RoutingSwapBufferView")
    if not fits(module, (*_MANAGER, *_SWAP_VIEW) if swap_view else _MANAGER):
        return
    patch_buffer(module.RoutingHostBuffer, "routing_host_buffer", ("self", "num_gpu_blocks", *_BUFFER))
    patch_buffer(module.RoutingSwapBuffer, "routing_swap_buffer", ("self", "num_cpu_blocks", *_BUFFER))
    patch_view(module.RoutingHostBufferView)
    if swap_view:
        patch_view(module.RoutingSwapBufferView)
    module.split_request_id = _split_request_id(module.split_request_id)  # type: ignore[attr-defined]
    if has(module, "StoreWrapper"):  # a name of its own for what ``patch_store`` replaces
        module.StoreWrapper = StoreWrapper  # type: ignore[attr-defined]
    _patch_manager(module.RoutingCacheManager)
    _log.info("routing stores: FastDeploy's RoutingCacheManager is patched")


def patch_store(module: ModuleType) -> None:
    """Patches ``fastdeploy.cache_manager.routing_store``: its queue and process give way to a writer.

    Not if the manager is FastDeploy's own, whose ids tell neither choices nor attempts apart.
    """
    if fits(module, _STORE) and (collecting() or _manager_is_patched()):
        module.StoreWrapper = StoreWrapper  # type: ignore[attr-defined]


def patch_token_processor(module: ModuleType) -> None:
    """Patches ``TokenProcessor._finalize_routing``, which sees requests, and ``Request``, which this module uses."""
    newer = has(module, "TokenProcessor._finalize_routing")
    if newer and not fits(module, [Shape("TokenProcessor._finalize_routing", ("self", "task_id", "task", "result"))]):
        return
    patch_request(module)
    if not newer:
        return
    original = module.TokenProcessor._finalize_routing

    @functools.wraps(original)
    def _finalize_routing(self: Any, task_id: str, task: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self, "routing_cache_manager", None)
        if not getattr(result, "finished", False) or getattr(manager, "_store_wrapper", None) is None:
            return original(self, task_id, task, result, *args, **kwargs)
        note_arrival(task, task_id)
        try:
            return original(self, task_id, task, result, *args, **kwargs)
        finally:
            ARRIVALS.take(task_id)  # by now it was, unless routing was not handed over

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
    if not fits(module, shapes):
        return
    _patch_expert_service(module.ExpertService)


def _patch_expert_service(service: Any) -> None:
    original, reset, leave = service.__init__, service.reset_kvcache_blocks, service._exit_sub_services

    def make_manager(self: Any, blocks: int | None) -> None:
        wanted = getattr(self.cfg, "routing_replay_config", None)
        if wanted is None or not wanted.enable_routing_replay or blocks is None or not _manager_is_patched():
            return
        if getattr(self.engine, "routing_cache_manager", None) is None:
            self.engine._init_routing_cache_manager(int(blocks))

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not self.do_profile:
            make_manager(self, self.cfg.cache_config.num_gpu_blocks_override)

    @functools.wraps(reset)
    def reset_kvcache_blocks(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = reset(self, *args, **kwargs)
        make_manager(self, self.get_profile_block_num_signal.value[0])
        return done

    @functools.wraps(leave)
    def _exit_sub_services(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine: Any = getattr(self, "engine", None)
        manager = getattr(engine, "routing_cache_manager", None)
        if manager is not None:
            engine.routing_cache_manager = None
            manager.close()
        return leave(self, *args, **kwargs)

    service.__init__ = __init__
    service.reset_kvcache_blocks = reset_kvcache_blocks
    service._exit_sub_services = _exit_sub_services


def _patch_manager(manager: Any) -> None:
    original, finished, wipe, end = manager.__init__, manager.on_request_finished, manager.reset, manager.close
    made = Arguments(original, ("self", "fd_config"))
    ended = Arguments(finished, ("self", "request_id", "block_table", "seq_len"))
    wiped = Arguments(wipe, ("self",))

    @functools.wraps(original)
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, fd_config = made.of(args, kwargs).known
        wants_store = fd_config.routing_replay_config.routing_store_type != RESPONSE
        if wants_store:
            resolve_store(fd_config.routing_replay_config)  # before any memory is taken
            _require_patched_store()
        self.host_buffer = self.host_view = self._store_wrapper = None
        try:
            original(*args, **kwargs)
            if wants_store and self._store_wrapper is None:  # FastDeploy makes one for local and rdma only
                self._store_wrapper = StoreWrapper(fd_config)
                self._store_wrapper.start_store_warpper()
        except BaseException:
            close(self)
            raise
        if wants_store and self.debug_mode:
            _log.warning("debug_mode records token positions instead of experts, so nothing is stored")

    @functools.wraps(finished)
    def on_request_finished(*args: Any, **kwargs: Any) -> Any:
        if ended.of(args, kwargs).known[0]._store_wrapper is None:
            return finished(*args, **kwargs)
        self, request_id, block_table, seq_len = ended.known_of(args, kwargs)
        if self.debug_mode:
            self.gather_routing_for_request(block_table, seq_len)  # FastDeploy's own check
            return None
        sink, key = self._store_wrapper.sink, identify(request_id)
        buffer = self.host_view.buffer
        sink.attempt(key, lambda: _hand_over(sink, key, Rows(buffer, block_table, self.block_size, seq_len), buffer))
        return None

    @functools.wraps(wipe)
    def reset(*args: Any, **kwargs: Any) -> Any:
        call = wiped.of(args, kwargs)
        if call.further:  # perhaps less than all is meant
            return wipe(*args, **kwargs)
        buffer = call.known[0].host_buffer
        buffer.buffer.fill(fill_value(buffer.dtype))
        return None

    @functools.wraps(end)
    def close(self: Any, *_: Any, **__: Any) -> None:
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
    manager.routing_stores_patched = True


def _split_request_id(original: Callable[..., Any]) -> Callable[..., HostId]:
    arguments = Arguments(original, ("request_id",))

    def split_request_id(*args: Any, **kwargs: Any) -> HostId:
        return identify(*arguments.known_of(args, kwargs))

    return split_request_id


def _manager_is_patched() -> bool:
    """Whether ``RoutingCacheManager`` has its patch; FastDeploy's modules are patched together or not at all."""
    from fastdeploy.cache_manager import routing_cache_manager  # type: ignore[import-not-found]  # noqa: PLC0415

    return hasattr(getattr(routing_cache_manager, "RoutingCacheManager", None), "routing_stores_patched")


def _require_patched_store() -> None:
    """Makes sure that FastDeploy's own store process is out of the way.

    Raises:
        UnsupportedError: its module is not as expected.
    """
    from fastdeploy.cache_manager import routing_store  # noqa: PLC0415

    if routing_store.StoreWrapper is not StoreWrapper:  # it may have been imported before the manager was patched
        patch_store(routing_store)
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
