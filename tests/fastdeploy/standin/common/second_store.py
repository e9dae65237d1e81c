"""Stand-in: the store process of families D and E, as short as its faults allow."""

import asyncio
import multiprocessing
import os
import pickle
import shutil
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Process

import numpy as np


class StoreWrapper:
    def __init__(self, fd_config) -> None:
        self.fd_config = fd_config
        model = fd_config.model_config
        layers = model.num_hidden_layers - model.moe_layer_start_index
        self.queue_max_size = layers * fd_config.scheduler_config.max_num_seqs * 1000
        self.manager = multiprocessing.Manager()
        self._task_queue = self.manager.Queue(maxsize=self.queue_max_size)
        self._routing_store_process = StoreProcess(
            task_queue=self._task_queue,
            routing_replay_config=fd_config.routing_replay_config,
            max_model_len=model.max_model_len,
        )
        self._running = False

    def start_store_warpper(self):
        self._running = True
        self._routing_store_process.start()

    def shutdown(self):
        if not self._running:
            return
        self._running = False
        self._task_queue.put_nowait(None)
        self._routing_store_process.join(timeout=10.0)
        self._task_queue.join()
        self.manager.shutdown()

    def submit_put_task(self, routing_indices, rollout_id: str, layer_idx: int = None) -> None:
        key = rollout_id if layer_idx is None else f"{rollout_id}_{layer_idx}"
        data = routing_indices if isinstance(routing_indices, np.ndarray) else routing_indices.numpy()
        self._task_queue.put_nowait({"task_type": "put", "key": key, "data": data})

    def submit_clear_store_task(self) -> None:
        self._task_queue.put_nowait({"task_type": "clear_store", "key": None, "data": None})
        self._task_queue.join()

    def submit_clear_prefix_batch_task(self, rollout_id, layer_idx: int = None) -> None:
        key = self.get_needed_clear_ids(rollout_id)
        if key is not None:
            self._task_queue.put_nowait({"task_type": "clear_prefix_batch", "key": key, "data": None})

    def get_needed_clear_ids(self, rollout_id: str):
        head, turn, segment = rollout_id.rsplit(":", 2)
        turn, segment = eval(turn), eval(segment)
        return f"{head}:{turn - 1}:{segment}" if turn > 0 else None


class StoreProcess(Process):
    def __init__(self, task_queue, routing_replay_config, max_model_len: int) -> None:
        super().__init__()
        self._task_queue = task_queue
        self.routing_replay_config = routing_replay_config
        self.max_model_len = max_model_len

    def run(self):
        store = get_routing_store(routing_replay_config=self.routing_replay_config)
        self._task_queue.put_nowait({"task_type": "clear_store", "key": None, "data": None})
        with ThreadPoolExecutor(max_workers=5) as executor:
            while (task := self._task_queue.get()) is not None:
                executor.submit(self._process, store, task).add_done_callback(lambda f: self._task_queue.task_done())
            self._task_queue.task_done()

    def _process(self, store, task):
        if task["task_type"] == "put":
            asyncio.run(store.put(routing_key=task["key"], routing_indices=self.pad_routing_indices(task["data"])))
        elif task["task_type"] == "clear_store":
            asyncio.run(store.clear_store())
        else:
            asyncio.run(store.clear_prefix_batch(routing_prefix_key=task["key"]))

    def pad_routing_indices(self, routing_indices):
        shape = list(routing_indices.shape)
        shape[-2] = self.max_model_len - shape[-2]
        return np.concatenate([routing_indices, np.full(shape, -1, routing_indices.dtype)], axis=-2)


class RoutingStoreBase(ABC):
    def __init__(self, routing_replay_config) -> None:
        self.routing_replay_config = routing_replay_config

    @abstractmethod
    async def put(self, routing_key: str, routing_indices: np.ndarray) -> None: ...

    @abstractmethod
    async def clear_store(self): ...

    @abstractmethod
    async def clear_prefix_batch(self, routing_prefix_key: str): ...


class RoutingStoreLocal(RoutingStoreBase):
    async def put(self, routing_key, routing_indices):
        folder = os.path.join(self.routing_replay_config.local_store_dir, routing_key)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{routing_key}.pdtensor"), "wb") as file:
            pickle.dump(routing_indices, file)

    async def clear_store(self):
        shutil.rmtree(self.routing_replay_config.local_store_dir, ignore_errors=True)

    async def clear_prefix_batch(self, routing_prefix_key):
        raise NotImplementedError


def get_routing_store(routing_replay_config) -> RoutingStoreBase:
    if routing_replay_config.routing_store_type == "local":
        return RoutingStoreLocal(routing_replay_config=routing_replay_config)
    raise ValueError(f"Invalid routing store type: {routing_replay_config.routing_store_type!r}")
