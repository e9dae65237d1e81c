import os
import pickle
import shutil
from abc import ABC, abstractmethod

from fastdeploy.tensors import Tensor


class RoutingReplayManager:
    def __init__(self, fd_config):
        model = fd_config.model_config
        self.max_num_seqs = fd_config.scheduler_config.max_num_seqs
        self.num_moe_layers = model.num_hidden_layers - model.moe_layer_start_index
        self.tp_rank = fd_config.parallel_config.tensor_parallel_rank
        self.routing_store = get_routing_store(fd_config=fd_config)
        self.routing_batch_to_request = {}
        shape = [self.max_num_seqs, self.num_moe_layers, model.max_model_len, model.moe_k]
        self.routing_replay_table = Tensor.full(shape, -1, "int32")

    def register_request(self, batch_id: int, request_id: str):
        if batch_id in self.routing_batch_to_request:
            self._put_request_to_store(batch_id, self._deregister_request(batch_id))
        self.routing_batch_to_request[batch_id] = request_id

    def _deregister_request(self, batch_id: int) -> str:
        return self.routing_batch_to_request.pop(batch_id)

    def _put_request_to_store(self, batch_id: int, request_id: str):
        if self.tp_rank == 0:
            for layer_id in range(self.num_moe_layers):
                layer = self.routing_replay_table[batch_id][layer_id]
                rollout_id = self.split_request_id(request_id)
                self.routing_store.put(routing_indices=layer, rollout_id=rollout_id, layer_idx=layer_id)
        self._clear_table_slot(batch_id)

    def put_table_to_store(self):
        for batch_id in list(self.routing_batch_to_request):
            self._put_request_to_store(batch_id, self._deregister_request(batch_id))

    def _clear_table_slot(self, batch_id: int):
        self.routing_replay_table[batch_id].fill_(-1)

    def _clear_store(self):
        self.routing_store.clear_store()

    def _clear_request_of_store(self, request_id):
        for layer_idx in range(self.num_moe_layers):
            self.routing_store.clear(rollout_id=self.split_request_id(request_id), layer_idx=layer_idx)

    def split_request_id(self, request_id: str):
        return request_id.split("-", 1)[1][::-1].split("-", 5)[-1][::-1]


class RoutingStoreBase(ABC):
    def __init__(self, fd_config) -> None:
        self.fd_config = fd_config

    @abstractmethod
    def put(self, routing_indices, rollout_id: str, layer_idx: int | None = None) -> None: ...

    @abstractmethod
    def get(self, rollout_id: str, layer_idx: int | None = None): ...

    @abstractmethod
    def clear(self, rollout_id: str, layer_idx: int | None = None) -> None: ...

    @abstractmethod
    def clear_store(self): ...


class RoutingStoreLocal(RoutingStoreBase):
    def _path(self, rollout_id, layer_idx):
        return os.path.join(self.fd_config.routing_replay_config.local_store_dir, rollout_id, f"layer_{layer_idx}")

    def put(self, routing_indices, rollout_id, layer_idx=None):
        path = self._path(rollout_id, layer_idx)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            pickle.dump(routing_indices.numpy(), file)

    def get(self, rollout_id, layer_idx=None):
        with open(self._path(rollout_id, layer_idx), "rb") as file:
            return pickle.load(file)

    def clear(self, rollout_id, layer_idx=None):
        os.remove(self._path(rollout_id, layer_idx))

    def clear_store(self):
        shutil.rmtree(self.fd_config.routing_replay_config.local_store_dir)


def get_routing_store(fd_config) -> RoutingStoreBase:
    if fd_config.routing_replay_config.routing_store_type == "local":
        return RoutingStoreLocal(fd_config=fd_config)
    raise ValueError(f"Invalid routing store type: {fd_config.routing_replay_config.routing_store_type!r}")
