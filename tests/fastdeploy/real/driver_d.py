"""Drives the real classes of family D (2.4, 2.5, develop) as a worker does, with Paddle's CPU tensors.

The model runner makes a ``RoutingReplayManager`` and registers requests; after each step the post-processing copies
the step's rows from the device table to the host cache and puts finished requests. The kernel that fills the device
table needs a GPU; here the rows are written into the table directly.
"""

from __future__ import annotations

import inspect
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from driver_e import fd_config
from settings import Settings


class Engine:
    """One worker, rank 0 of its tensor-parallel group.

    Args:
        settings: See there.
    """

    def __init__(self, settings: Settings) -> None:
        from fastdeploy.model_executor.layers.moe import routing_indices_cache as module

        self._settings = settings
        self._cfg = fd_config(settings)
        each = math.ceil(settings.max_model_len / settings.block_size)
        total = settings.max_num_seqs * each
        order = np.random.default_rng(settings.port).permutation(total).astype("int32")
        blocks = paddle.to_tensor(order.reshape(settings.max_num_seqs, each))
        source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
        self._column = "seq_lens_decoder.numpy()[:, 0]" in source  # 2.4 and 2.5; develop has flat lengths
        self.manager: Any = module.RoutingReplayManager(fd_config=self._cfg, block_table=blocks, total_block_num=total)
        self._slot = 0

    def finish(self, request_id: str, routing: np.ndarray, arrival: float) -> tuple[int, None]:
        """Lets a request run in one step and end.

        Returns:
            Nanoseconds that the worker's step was held up by handing over.
        """
        manager, slot = self.manager, self._slot
        self._slot = (slot + 1) % self._settings.max_num_seqs
        tokens = len(routing)
        lengths = np.zeros(self._settings.max_num_seqs, "int32")
        before_step = self._tensor(lengths)
        lengths[slot] = tokens
        this_time = self._tensor(lengths)

        manager.register_request(batch_id=slot, request_id=request_id)
        table = manager.get_routing_table()
        if tokens:
            table[slot, :tokens] = paddle.to_tensor(routing).cast(table.dtype)
            manager.pending_update_positions = manager.get_token_positions(
                seq_lens_decoder=before_step, seq_lens_this_time=this_time
            )
            mapping = manager.compute_slot_mapping(positions=manager.pending_update_positions)
            manager.update_host_cache(positions=manager.pending_update_positions, slot_mapping=mapping)
        finished = np.zeros(self._settings.max_num_seqs, bool)
        finished[slot] = True
        ended = paddle.to_tensor(finished)
        before = time.perf_counter_ns()
        manager.put_finished_batch(finished_batch_ids=ended, seq_lens_decoder=this_time)
        return time.perf_counter_ns() - before, None

    def _tensor(self, lengths: np.ndarray) -> Any:
        return paddle.to_tensor(lengths[:, None] if self._column else lengths.copy())

    def close(self) -> None:
        """A worker is ended by the interpreter's exit; nothing is closed by hand."""
