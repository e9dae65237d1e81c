"""The routing of the soak: cheap to make, different for each rollout, known to whoever knows the id."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fastdeploy_routing_plugins import RoutingSchema

LAYERS, TOP_K, EXPERTS = 8, 8, 256
SCHEMA = RoutingSchema(EXPERTS, TOP_K, range(LAYERS))
_POOL = 1 << 16  # tokens that all rollouts are cut from
MAX_TOKENS = _POOL // 2


@lru_cache(maxsize=1)
def _pool() -> npt.NDArray[np.uint8]:
    first = np.random.default_rng(5).integers(0, EXPERTS, (LAYERS, _POOL, 1), dtype=np.uint8)
    return first + 29 * np.arange(TOP_K, dtype=np.uint8)  # wraps round at 256, so the ids of a row differ


def routing(key: str, tokens: int) -> npt.NDArray[np.uint8]:
    """Returns a rollout's routing, ``[layers, tokens, top_k]``."""
    start = int(key.split(":")[2]) * 7919 % MAX_TOKENS
    return _pool()[:, start : start + tokens]
