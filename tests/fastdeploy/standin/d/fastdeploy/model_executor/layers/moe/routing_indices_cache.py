import numpy as np

from fastdeploy.second_store import (
    RoutingStoreBase,
    RoutingStoreLocal,
    StoreProcess,
    StoreWrapper,
    get_routing_store,
)
from fastdeploy.tensors import Tensor

__all__ = [
    "RoutingReplayManager",
    "RoutingStoreBase",
    "RoutingStoreLocal",
    "StoreProcess",
    "StoreWrapper",
    "get_routing_store",
]


class RoutingReplayManager:
    def __init__(self, fd_config, block_table, total_block_num):
        model = fd_config.model_config
        self.fd_config = fd_config
        self.block_table = block_table
        self.max_num_seqs = fd_config.scheduler_config.max_num_seqs
        self.num_moe_layers = model.num_hidden_layers - model.moe_layer_start_index
        self.moe_top_k = model.moe_k
        self.only_last_turn = fd_config.routing_replay_config.only_last_turn
        self.use_fused_put = fd_config.routing_replay_config.use_fused_put
        self.tp_rank = fd_config.parallel_config.tensor_parallel_rank
        self.routing_batch_to_request = {}
        self.routing_dtype = self.get_routing_dtype(model.moe_num_experts + model.moe_num_shared_experts)
        slots = total_block_num * fd_config.cache_config.block_size
        self._host_cache = Tensor.full([slots, self.num_moe_layers, self.moe_top_k], -1, self.routing_dtype)
        if self.tp_rank == 0:
            self._store_wrapper = StoreWrapper(fd_config=fd_config)
            self._store_wrapper.start_store_warpper()

    def get_routing_dtype(self, num_experts: int, reserved_fill_value: int = 1) -> str:
        total = num_experts + reserved_fill_value
        return "uint8" if total <= 255 else "uint16" if total <= 65_535 else "uint32"

    def compute_slot_mapping(self, positions):
        size = self.fd_config.cache_config.block_size
        return [
            [] if len(p) == 0 else self.block_table[b, p // size] * size + p % size for b, p in enumerate(positions)
        ]

    def _get_routing_from_cache(self, finished_batch_ids, seq_lens_decoder):
        lengths = seq_lens_decoder.numpy()[:, 0]
        positions = [np.arange(lengths[b]) if b in finished_batch_ids else [] for b in range(self.max_num_seqs)]
        for slots in self.compute_slot_mapping(positions):
            if len(slots):
                return self._host_cache[slots].transpose([1, 0, 2])
        raise ValueError("No cached routing found")

    def put_finished_batch(self, finished_batch_ids, seq_lens_decoder):
        for batch_id, finished in enumerate(finished_batch_ids):
            if finished:
                request_id = self._deregister_request(batch_id)
                self._put_request_to_store(batch_id=batch_id, request_id=request_id, seq_lens_decoder=seq_lens_decoder)

    def register_request(self, batch_id: int, request_id: str):
        if self.routing_batch_to_request.get(batch_id, request_id) != request_id:
            raise RuntimeError(f"batch {batch_id} is taken")
        self.routing_batch_to_request[batch_id] = request_id

    def _deregister_request(self, batch_id: int) -> str:
        return self.routing_batch_to_request.pop(batch_id)

    def _put_request_to_store(self, batch_id: int, request_id: str, seq_lens_decoder):
        if self.tp_rank == 0:
            routing = self._get_routing_from_cache(finished_batch_ids=[batch_id], seq_lens_decoder=seq_lens_decoder)
            rollout_id = self.split_request_id(request_id)
            if self.use_fused_put:
                self._store_wrapper.submit_put_task(routing_indices=routing, rollout_id=rollout_id)
            else:
                for layer_id in range(self.num_moe_layers):
                    self._store_wrapper.submit_put_task(
                        routing_indices=routing[layer_id], rollout_id=rollout_id, layer_idx=layer_id
                    )
            if self.only_last_turn:
                self._store_wrapper.submit_clear_prefix_batch_task(rollout_id=rollout_id)

    def clear_request(self, batch_id: int):
        self.routing_batch_to_request.pop(batch_id, None)

    def split_request_id(self, request_id: str):
        chat_type, rest = request_id.split("-", 1)
        assert chat_type == "chatcmpl"
        return rest[::-1].split("-", 5)[-1][::-1]
