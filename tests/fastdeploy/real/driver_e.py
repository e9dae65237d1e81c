"""Drives the real classes of family E (2.6) as its engine does.

The engine makes its ``RoutingCacheManager``, a worker scatters ids into the shared host buffer, and the token
processor finalises a request. All three are FastDeploy's code; what stands around them (model, scheduler, device) is
left out.
"""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from settings import Settings, buffer_form

EOS = 2


def fd_config(settings: Settings) -> SimpleNamespace:
    """Returns what the routing code reads of an ``FDConfig``, with FastDeploy's own ``RoutingReplayConfig``."""
    from fastdeploy.config import RoutingReplayConfig

    model = SimpleNamespace(
        architectures=["Ernie4_5_MoeForCausalLM"],
        num_hidden_layers=settings.dense + settings.layers,
        moe_layer_start_index=settings.dense,
        moe_k=settings.top_k,
        num_experts_per_tok=settings.top_k,
        moe_num_experts=settings.experts,
        moe_num_shared_experts=0,
        max_model_len=settings.max_model_len,
        model="a-model",
    )
    replay = RoutingReplayConfig({"enable_routing_replay": True, **settings.replay})
    if hasattr(replay, "postprocess"):
        replay.postprocess(model)
    return SimpleNamespace(
        model_config=model,
        routing_replay_config=replay,
        scheduler_config=SimpleNamespace(
            max_num_seqs=settings.max_num_seqs, splitwise_role="mixed", enable_overlap_schedule=False, name="local"
        ),
        cache_config=SimpleNamespace(
            block_size=settings.block_size,
            total_block_num=settings.blocks,
            num_gpu_blocks_override=None,
            enable_prefix_caching=False,
            reset=lambda blocks: None,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_rank=0,
            tensor_parallel_size=1,
            data_parallel_rank=settings.rank,
            data_parallel_size=2 if settings.rank else 1,
            local_data_parallel_id=settings.rank,
            local_engine_worker_queue_port=settings.port,
            engine_worker_queue_port=[settings.port - settings.rank, settings.port],
        ),
    )


class Engine:
    """One rank's engine.

    Args:
        settings: See there.
    """

    def __init__(self, settings: Settings) -> None:
        from fastdeploy.engine.common_engine import EngineService
        from fastdeploy.output.token_processor import TokenProcessor

        self._settings = settings
        self._cfg = fd_config(settings)
        self._processor = TokenProcessor.__new__(TokenProcessor)
        self._processor.cfg = self._cfg
        self._processor.routing_host_view = None
        self._processor._routing_host_view_init_attempted = False
        self._processor.routing_cache_manager = None
        self._service = EngineService.__new__(EngineService)
        self._service.cfg = self._cfg
        self._service.token_processor = self._processor
        self._service.routing_cache_manager = None
        if settings.rank == 0:
            self._service._init_routing_cache_manager(settings.blocks)
        else:
            self._start_rank()
        self._free = np.random.default_rng(settings.port).permutation(settings.blocks)
        self._worker: Any = None

    def _start_rank(self) -> None:
        """Does what a data-parallel rank from 1 on does once the number of blocks is known."""
        from fastdeploy.engine.expert_service import ExpertService

        rank = ExpertService.__new__(ExpertService)
        rank.cfg = self._cfg
        rank.engine = self._service
        rank.get_profile_block_num_signal = SimpleNamespace(value=[self._settings.blocks])
        self._service.resource_manager = SimpleNamespace(reset_cache_config=lambda config: None)
        rank.reset_kvcache_blocks()
        del self._service.resource_manager

    @property
    def manager(self) -> Any:
        """The routing cache manager, or None: there is none for ranks from 1 on."""
        return self._processor.routing_cache_manager

    def _scatter(self, blocks: np.ndarray, routing: np.ndarray) -> None:
        """Writes into the host buffer as a worker does, through a view of its own."""
        from fastdeploy.cache_manager.routing_cache_manager import RoutingHostBufferView

        s = self._settings
        dtype = self._cfg.routing_replay_config.routing_dtype
        if self._worker is None:
            shape = (s.blocks * s.block_size, s.layers, s.top_k)
            self._worker = RoutingHostBufferView(shape, dtype, f"routing_host_buffer.{s.port}")
        positions = np.arange(len(routing))
        slots = blocks[positions // s.block_size] * s.block_size + positions % s.block_size
        self._worker.scatter(slots, buffer_form(routing, dtype))

    def finish(self, request_id: str, routing: np.ndarray, arrival: float) -> tuple[int, np.ndarray | None]:
        """Lets a request end.

        Returns:
            Nanoseconds that the engine's thread was held up, and what was attached to the reply.
        """
        from fastdeploy.engine.request import Request, RequestMetrics

        tokens = len(routing)
        needed = math.ceil(tokens / self._settings.block_size)
        blocks, rest = self._free[:needed], self._free[needed:]
        if needed:
            self._scatter(blocks, routing)
        prompt = tokens // 2
        task = Request(
            request_id=request_id,
            prompt_token_ids=[5] * prompt,
            prompt_token_ids_len=prompt,
            eos_token_ids=[EOS],
            metrics=RequestMetrics(arrival_time=arrival),
        )
        task.output_token_ids = [7] * (tokens - prompt) + [EOS]
        task.block_tables = blocks.tolist()
        result = SimpleNamespace(finished=True, error_code=200, routing_data=None)
        before = time.perf_counter_ns()
        self._processor._finalize_routing(request_id, task, result)
        took = time.perf_counter_ns() - before
        if needed:  # the blocks go to other requests at once
            self._worker.buffer[blocks[0] * self._settings.block_size] = 1
        self._free = np.concatenate([rest, blocks])
        return took, result.routing_data

    def fill(self, routing: np.ndarray) -> np.ndarray:
        """Writes a request's rows into the host buffer; returns its blocks, which lie anywhere."""
        blocks = self._free[: math.ceil(len(routing) / self._settings.block_size)]
        self._scatter(blocks, routing)
        return blocks

    def finish_filled(self, request_id: str, blocks: np.ndarray, tokens: int) -> int:
        """Lets a request end whose rows are there; returns the nanoseconds that the engine's thread was held up."""
        from fastdeploy.engine.request import Request, RequestMetrics

        task = Request(
            request_id=request_id,
            prompt_token_ids=[],
            prompt_token_ids_len=tokens - 1,
            eos_token_ids=[EOS],
            metrics=RequestMetrics(arrival_time=time.time()),
        )
        task.output_token_ids = [7, EOS]
        task.block_tables = blocks.tolist()
        result = SimpleNamespace(finished=True, error_code=200, routing_data=None)
        before = time.perf_counter_ns()
        self._processor._finalize_routing(request_id, task, result)
        return time.perf_counter_ns() - before

    def close(self) -> None:
        """Does what the engine does when it is told to end."""
        if self._worker is not None:
            self._worker.close()
        if self.manager is not None:
            self.manager.close()
