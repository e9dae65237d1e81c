"""The made-up routing that both processes know, so that each byte can be compared where it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fastdeploy_routing_plugins.bench.presets import EXPERTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastdeploy_routing_plugins.bench.presets import Work

Array: TypeAlias = "npt.NDArray[Any]"

_DISTINCT = 9  # arrays; the files of a round share them


class Arrays:
    """The arrays of a benchmark. What a place held in one round is never what is expected there in the next."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._pool = [ids_like_a_routers(work.layers, work.tokens, work.top_k, seed) for seed in range(_DISTINCT)]
        self._rollouts: list[Array] = []
        self._tables: list[Array] = []

    def files(self, turn: int) -> list[Array]:
        """Returns the arrays that are put one by one in a round."""
        return [self._pool[(index + turn) % _DISTINCT] for index in range(self._work.files)]

    def rollout(self, turn: int) -> Array:
        """Returns the rollout that is moved end to end: ``[layers, tokens, top_k]``, uint8."""
        work = self._work
        if not self._rollouts:
            size = work.rollout_layers, work.rollout_tokens, work.top_k
            self._rollouts = [ids_like_a_routers(*size, seed) for seed in (100, 101)]
        return self._rollouts[turn % 2]

    def table(self, turn: int) -> Array:
        """Returns the same as FastDeploy's engine has it: padded with -1, in the engine's dtype."""
        work = self._work
        if not self._tables:
            shape = work.rollout_layers, work.max_model_len, work.top_k
            for number in range(2):
                table = np.full(shape, -1 if work.table_dtype.startswith("int") else 255, work.table_dtype)
                table[:, : work.rollout_tokens] = self.rollout(number)
                self._tables.append(table)
        return self._tables[turn % 2]


def ids_like_a_routers(layers: int, tokens: int, top_k: int, seed: int) -> Array:
    """Returns ``[layers, tokens, top_k]`` of uint8, in which the experts of a token differ."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, EXPERTS, (layers, tokens, 1), dtype=np.uint8)
    step = rng.integers(0, EXPERTS // 2, (layers, tokens, 1), dtype=np.uint8) * 2 + 1
    return first + step * np.arange(top_k, dtype=np.uint8)


def flat(found: Any) -> npt.NDArray[np.uint8]:
    """Returns the bytes of whatever arrived: an array, a tensor, bytes, or a list of those."""
    if isinstance(found, (list, tuple)):
        return np.concatenate([flat(each) for each in found])
    if isinstance(found, (bytes, bytearray, memoryview)):
        return np.frombuffer(found, np.uint8)
    array = found if isinstance(found, np.ndarray) else found.numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
