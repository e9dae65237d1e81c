import math
from multiprocessing.shared_memory import SharedMemory

import numpy as np


class _Buffer:
    def _make(self, name, shape, dtype):
        self.shape, self.dtype, self.shm_name = shape, np.dtype(dtype), name
        try:
            stale = SharedMemory(name=name, create=False)
            stale.close()
            stale.unlink()
        except FileNotFoundError:
            pass
        self.shm = SharedMemory(create=True, size=math.prod(shape) * self.dtype.itemsize, name=name)
        self.buffer = np.ndarray(shape, dtype=self.dtype, buffer=self.shm.buf)
        self.buffer[:] = -1
        self._owner = True

    def close(self):
        self.shm.close()
        if self._owner:
            self.shm.unlink()
            self._owner = False


class RoutingHostBuffer(_Buffer):
    def __init__(
        self, num_gpu_blocks: int, block_size: int, num_moe_layers: int, top_k: int, dtype: str, dp_suffix: str = ""
    ):
        self.block_size = block_size
        self._make(f"routing_host_buffer.{dp_suffix}", (num_gpu_blocks * block_size, num_moe_layers, top_k), dtype)


class RoutingSwapBuffer(_Buffer):
    def __init__(
        self, num_cpu_blocks: int, block_size: int, num_moe_layers: int, top_k: int, dtype: str, dp_suffix: str = ""
    ):
        self.block_size = block_size
        self._make(f"routing_swap_buffer.{dp_suffix}", (num_cpu_blocks * block_size, num_moe_layers, top_k), dtype)


class RoutingHostBufferView:
    def __init__(self, shape, dtype: str, shm_name: str):
        self.shm = SharedMemory(name=shm_name, create=False)
        self.dtype = np.dtype(dtype)
        self.buffer = np.ndarray(shape, dtype=self.dtype, buffer=self.shm.buf)

    def scatter(self, slot_mapping, data):
        self.buffer[slot_mapping] = data

    def gather(self, slot_mapping):
        return self.buffer[slot_mapping].copy()

    def close(self):
        self.shm.close()


def split_request_id(request_id: str) -> str:
    chat_type, rest = request_id.split("-", 1)
    assert chat_type == "chatcmpl"
    return rest[::-1].split("-", 5)[-1][::-1]


class RoutingCacheManager:
    def __init__(self, fd_config, num_gpu_blocks: int):
        replay = fd_config.routing_replay_config
        self.num_moe_layers = replay.num_moe_layers
        self.moe_top_k = replay.moe_top_k
        self.routing_dtype = replay.routing_dtype
        self.only_last_turn = replay.only_last_turn
        self.use_fused_put = replay.use_fused_put
        self.debug_mode = replay.debug_mode
        self.block_size = fd_config.cache_config.block_size
        self.return_mode = replay.routing_store_type
        self.host_buffer = RoutingHostBuffer(
            num_gpu_blocks=num_gpu_blocks,
            block_size=self.block_size,
            num_moe_layers=self.num_moe_layers,
            top_k=self.moe_top_k,
            dtype=self.routing_dtype,
            dp_suffix=str(fd_config.parallel_config.local_engine_worker_queue_port),
        )
        self.host_view = RoutingHostBufferView(
            shape=self.host_buffer.shape, dtype=self.routing_dtype, shm_name=self.host_buffer.shm_name
        )
        self._store_wrapper = None
        if self.return_mode in ("local", "rdma"):
            from fastdeploy.cache_manager.routing_store import StoreWrapper

            self._store_wrapper = StoreWrapper(fd_config=fd_config)
            self._store_wrapper.start_store_warpper()

    def gather_routing_for_request(self, block_table, seq_len: int):
        positions = np.arange(seq_len)
        blocks = np.array(block_table[: math.ceil(seq_len / self.block_size)])
        slots = blocks[positions // self.block_size] * self.block_size + positions % self.block_size
        return self.host_view.gather(slots)

    def on_request_finished(self, request_id: str, block_table, seq_len: int):
        routing = self.gather_routing_for_request(block_table, seq_len)
        if self._store_wrapper is None:
            return routing
        rollout_id = split_request_id(request_id)
        routing = np.ascontiguousarray(routing.transpose(1, 0, 2))
        if self.use_fused_put:
            self._store_wrapper.submit_put_task(routing_indices=routing, rollout_id=rollout_id)
            if self.only_last_turn:
                self._store_wrapper.submit_clear_prefix_batch_task(rollout_id=rollout_id)
            return None
        for layer_id in range(self.num_moe_layers):
            self._store_wrapper.submit_put_task(
                routing_indices=routing[layer_id], rollout_id=rollout_id, layer_idx=layer_id
            )
            if self.only_last_turn:
                self._store_wrapper.submit_clear_prefix_batch_task(rollout_id=rollout_id, layer_idx=layer_id)
        return None

    def reset(self):
        self.host_buffer.buffer[:] = -1

    def close(self):
        if self.host_view is not None:
            self.host_view.close()
            self.host_view = None
        if self.host_buffer is not None:
            self.host_buffer.close()
            self.host_buffer = None
