"""Runs in an engine's process: drives a stand-in of FastDeploy as its own code does, whatever family it is.

``python drive.py METHOD CODE`` runs CODE, which finds this module's names; with METHOD ``fork`` or ``spawn`` that
happens in a child of multiprocessing, as FastDeploy starts its engines and workers.
"""

from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import os
import pickle
import sys
import time
from types import SimpleNamespace

import numpy as np

UUID = "d9f16c5c-65f6-4815-b44d-14e2c581907c"
PORT = os.environ.get("STANDIN_PORT", "")  # what the names of a test's shared buffers begin with
_ports = itertools.count(1)


def request_id(user, choice=0, *, kind="chatcmpl"):
    """Returns the id that FastDeploy's server makes of a client's ``user``."""
    return f"{kind}-{user}-{UUID}_{choice}"


def routing(seed, tokens, *, experts=64, layers=3, top_k=4):
    """Returns int64 ``[layers, tokens, top_k]`` that follows from a seed; no row has an id twice."""
    first = np.random.default_rng(seed).integers(0, experts, (layers, tokens, 1))
    return (first + np.arange(top_k)) % experts


def request(name, client, arrival, engines):
    """Returns a request as the last of several engines has it; each but the first had it from the one before.

    What the client gave, FastDeploy's server said to the first; None leaves FastDeploy's own class out.
    """
    arrival = arrival or time.time()
    if client is None:
        return SimpleNamespace(request_id=name, metrics=SimpleNamespace(arrival_time=arrival))
    import fastdeploy.engine.common_engine  # noqa: F401 - as where requests come in
    from fastdeploy.engine.request import Request

    made = Request.from_dict({**client, "request_id": name, "metrics": {"arrival_time": arrival}})
    for _ in range(engines - 1):
        made = Request.from_dict(made.to_dict())
    return pickle.loads(pickle.dumps(made))  # to the worker


def fd_config(replay, *, experts=64, layers=3, top_k=4, max_model_len=64, slots=4, blocks=64, port=None, rank=0):
    """Returns what the routing code reads of FastDeploy's configuration, with the tree's ``RoutingReplayConfig``."""
    from fastdeploy.engine.args_utils import EngineArgs

    made = EngineArgs(routing_replay_config={"enable_routing_replay": True, **replay}).create_routing_repaly_config()
    model = SimpleNamespace(
        architectures=["StandInForCausalLM"],
        num_hidden_layers=1 + layers,
        moe_layer_start_index=1,
        moe_k=top_k,
        moe_num_experts=experts,
        moe_num_shared_experts=0,
        max_model_len=max_model_len,
    )
    if hasattr(made, "postprocess"):
        made.postprocess(model)
    return SimpleNamespace(
        model_config=model,
        routing_replay_config=made,
        scheduler_config=SimpleNamespace(max_num_seqs=slots),
        cache_config=SimpleNamespace(block_size=8, num_gpu_blocks_override=None, profiled_blocks=blocks),
        parallel_config=SimpleNamespace(
            tensor_parallel_rank=rank, local_engine_worker_queue_port=port or f"{PORT}-{os.getpid()}-{next(_ports)}"
        ),
    )


class EngineE:
    """An engine of family E, and a worker that fills its buffer."""

    def __init__(self, replay, **model):
        from fastdeploy.cache_manager.routing_cache_manager import RoutingHostBufferView
        from fastdeploy.engine.common_engine import EngineService

        self.config = fd_config(replay, **model)
        self.service = EngineService(self.config)
        blocks = self.config.cache_config.profiled_blocks
        self.service._init_routing_cache_manager(blocks)
        self.manager = self.service.routing_cache_manager
        host = self.manager.host_buffer
        self.view = RoutingHostBufferView(host.shape, host.dtype.name, host.shm_name)
        self.free = np.random.default_rng(0).permutation(blocks)

    @property
    def sink(self):
        return self.manager._store_wrapper.sink

    @property
    def wrapper(self):
        return self.manager._store_wrapper

    def finish(self, name, rows, *, arrival=None, unfilled=0, client=None, engines=1):
        """Lets a request end; ``unfilled`` rows at its end were never computed."""
        from fastdeploy.tensors import to_bits

        tokens = rows.shape[1] + unfilled
        size = self.config.cache_config.block_size
        blocks, self.free = np.split(self.free, [-(-tokens // size)])
        where = np.arange(rows.shape[1])
        slots = blocks[where // size] * size + where % size if len(blocks) else where
        form = to_bits(rows) if self.view.dtype == np.uint16 else rows.astype(self.view.dtype)
        self.view.scatter(slots, form.transpose(1, 0, 2))
        task = request(name, client, arrival, engines)
        task.prompt_token_ids_len, task.eos_token_ids = 0, [2]
        task.output_token_ids, task.block_tables = [7] * tokens + [2], blocks.tolist()
        result = SimpleNamespace(finished=True, error_code=200, routing_data=None)
        self.service.token_processor._finalize_routing(name, task, result)
        self.free = np.concatenate([self.free, blocks])
        return result.routing_data

    def close(self):
        self.view.close()
        self.manager.close()


class EngineD:
    """A worker of family D."""

    def __init__(self, replay, **model):
        from fastdeploy.model_executor.layers.moe.routing_indices_cache import RoutingReplayManager
        from fastdeploy.worker.gpu_model_runner import GPUModelRunner

        self.config = fd_config(replay, **model)
        slots, blocks = self.config.scheduler_config.max_num_seqs, self.config.cache_config.profiled_blocks
        self.table = np.random.default_rng(0).permutation(blocks).reshape(slots, -1)
        self.runner = GPUModelRunner(self.config)
        self.manager = RoutingReplayManager(fd_config=self.config, block_table=self.table, total_block_num=blocks)
        self.runner.routing_replay_manager = self.manager
        self.slot = itertools.cycle(range(slots))

    @property
    def wrapper(self):
        return self.manager._store_wrapper

    @property
    def sink(self):
        return self.wrapper.sink

    def finish(self, name, rows, *, arrival=None, unfilled=0, client=None, engines=1):
        """Lets a request end; ``unfilled`` rows at its end were never computed."""
        from fastdeploy.tensors import Tensor

        slot, slots, size = next(self.slot), len(self.table), self.config.cache_config.block_size
        task = request(name, client, arrival, engines)
        task.idx = slot
        self.runner.insert_tasks_v1([task], 1)
        where = np.arange(rows.shape[1])
        self.manager._host_cache[self.table[slot, where // size] * size + where % size] = rows.transpose(1, 0, 2)
        lengths = np.zeros((slots, 1), np.int32)
        lengths[slot] = rows.shape[1] + unfilled
        finished = [index == slot for index in range(slots)]
        self.manager.put_finished_batch(finished, Tensor(lengths, "int32"))

    def close(self):
        self.wrapper.shutdown()


class EngineA:
    """A worker of family A."""

    def __init__(self, replay, **model):
        from fastdeploy.model_executor.layers.moe.routing_indices_cache import RoutingReplayManager
        from fastdeploy.worker.gpu_model_runner import GPUModelRunner

        self.config = fd_config(replay, **model)
        self.runner = GPUModelRunner(self.config)
        self.manager = self.runner.routing_replay_manager = RoutingReplayManager(fd_config=self.config)
        self.slot = itertools.cycle(range(self.config.scheduler_config.max_num_seqs))

    @property
    def sink(self):
        return self.manager.routing_store.sink

    def finish(self, name, rows, *, arrival=None, unfilled=0, client=None, engines=1):
        """Lets a request end; rows that were never computed are what this family's table is full of anyway."""
        task = request(name, client, arrival, engines)
        slot = task.idx = next(self.slot)
        self.runner.insert_tasks_v1([task], 1)
        self.manager.routing_replay_table[slot, :, : rows.shape[1]] = rows
        self.manager.put_table_to_store()

    def close(self):
        self.sink.close()


def Engine(replay, **model):
    """Makes an engine of whatever family is on the path."""
    return {"a": EngineA, "d": EngineD, "e": EngineE}[os.environ["STANDIN_FAMILY"]](replay, **model)


REPLAY = json.loads(os.environ.get("STANDIN_REPLAY", "{}"))


def execute(code):
    """Runs a test's code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    import fastdeploy  # loads the plugins, as every process of FastDeploy does

    exec(compile(code, "<test>", "exec"), {**globals(), "fastdeploy": fastdeploy})


def main():
    method, code = sys.argv[1:]
    if method == "plain":
        execute(code)
        return 0
    import fastdeploy  # noqa: F401 - the parent has it too: a forked child starts with what the parent hooked

    child = multiprocessing.get_context(method).Process(target=execute, args=(code,))
    child.start()
    child.join()
    return child.exitcode


if __name__ == "__main__":
    sys.exit(main())
