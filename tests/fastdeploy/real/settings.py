"""What an engine is started with, and the routing that it is to hand over; known to both sides."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Settings:
    """A model and an engine.

    Attributes:
        replay: What ``--routing-replay-config`` holds.
        experts: Routed experts of the model.
        layers: Its MoE layers.
        dense: Dense layers before them.
        top_k: Experts a token.
        max_model_len: The longest sequence the engine is configured for.
        port: ``engine_worker_queue_port`` of this rank.
        rank: Data-parallel rank.
        blocks: Blocks of the KV cache.
        block_size: Tokens a block.
        max_num_seqs: Sequences at a time.
    """

    replay: dict[str, Any] = field(default_factory=dict)
    experts: int = 64
    layers: int = 4
    dense: int = 1
    top_k: int = 4
    max_model_len: int = 256
    port: int = 0
    rank: int = 0
    blocks: int = 64
    block_size: int = 16
    max_num_seqs: int = 4

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON's form."""
        return asdict(self)

    def routing(self, seed: int, tokens: int) -> np.ndarray:
        """Returns int64 ``[tokens, layers, top_k]`` that follows from a seed; no row has an id twice."""
        first = np.random.default_rng(seed).integers(0, self.experts, (tokens, self.layers, 1))
        return (first + np.arange(self.top_k)) % self.experts


def buffer_form(routing: np.ndarray, dtype: str) -> np.ndarray:
    """Returns routing as FastDeploy's buffers hold it: "uint16" is Paddle's bfloat16, rounded as a kernel rounds."""
    if dtype != "uint16":
        return routing.astype(dtype)
    bits = routing.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def request_id(user: str, choice: int = 0, kind: str = "chatcmpl") -> str:
    """Returns the id that FastDeploy's server makes of a client's ``user``; the identifier is the same every time."""
    return f"{kind}-{user}-d9f16c5c-65f6-4815-b44d-14e2c581907c_{choice}"
