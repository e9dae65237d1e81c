"""A small decoder-only Mixture-of-Experts transformer in NumPy, as an engine or a trainer runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float = NDArray[np.float32]
    Ids = NDArray[np.int64]

_ROPE_BASE = 10_000.0
_RMS_EPSILON = 1e-6
# Wide enough that sampled text is far from uniform, narrow enough that no token takes all the probability.
_HEAD_SCALE = 2.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of the model and the seed of its weights.

    Attributes:
        vocab_size: Number of tokens.
        hidden: Width of the residual stream; a multiple of ``2 * heads``.
        heads: Attention heads.
        layers: Transformer layers, dense ones included.
        dense_layers: How many of the first layers have a dense feed-forward network, as many real models do.
        experts: Experts in every Mixture-of-Experts layer.
        top_k: Experts chosen for each token in every layer.
        expert_hidden: Inner width of one expert.
        seed: Seed of the weights; equal configurations have equal weights in every process.
    """

    vocab_size: int = 256
    hidden: int = 128
    heads: int = 4
    layers: int = 9
    dense_layers: int = 1
    experts: int = 32
    top_k: int = 4
    expert_hidden: int = 64
    seed: int = 0

    @property
    def moe_layer_ids(self) -> tuple[int, ...]:
        """Ids of the Mixture-of-Experts layers, ascending."""
        return tuple(range(self.dense_layers, self.layers))


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every layer, both float32 ``[layers, rows, heads, capacity, head_dim]``."""

    keys: Float
    values: Float

    @classmethod
    def empty(cls, config: ModelConfig, rows: int, capacity: int) -> KVCache:
        """Returns a cache for ``rows`` sequences of up to ``capacity`` tokens."""
        shape = (config.layers, rows, config.heads, capacity, config.hidden // config.heads)
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def row(self, index: int) -> KVCache:
        """Returns one row as a view, so that a prompt can be prefilled into a running batch."""
        return KVCache(self.keys[:, index : index + 1], self.values[:, index : index + 1])


@dataclass(frozen=True, slots=True)
class Forward:
    """What one forward pass yields.

    Attributes:
        logits: float32 ``[batch, tokens, vocab_size]``.
        routing: The expert ids that were used, int64 ``[moe_layers, batch, tokens, top_k]``.
    """

    logits: Float
    routing: Ids


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; the feed-forward ones are ``[experts, in, out]``, a dense layer is one expert."""

    qkv: Float
    out: Float
    router: Float | None
    gate_up: Float
    down: Float


class MoeTransformer:
    """Embedding, pre-norm attention with rotary positions, SwiGLU experts behind a softmax top-k router, output head.

    With ``half`` every weight and every activation is rounded to float16 and products accumulate in float32, as
    tensor cores do it; without, all is float32. The values are kept in float32 arrays either way, since NumPy's own
    float16 arithmetic is slow and accumulates in float16.
    """

    def __init__(self, config: ModelConfig, *, half: bool) -> None:
        self.config = config
        self._half = half
        rng = np.random.default_rng(config.seed)

        def weight(*shape: int, scale: float = 1.0) -> Float:
            values = rng.standard_normal(shape, np.float32)
            values *= np.float32(scale / np.sqrt(shape[-2]))
            return self._round(values)

        self._embedding = self._round(rng.standard_normal((config.vocab_size, config.hidden), np.float32))
        self._layers: list[_Layer] = []
        for index in range(config.layers):
            dense = index < config.dense_layers
            # A dense layer gets the width that a token meets in a Mixture-of-Experts layer.
            experts, width = (
                (1, config.top_k * config.expert_hidden) if dense else (config.experts, config.expert_hidden)
            )
            self._layers.append(
                _Layer(
                    qkv=weight(config.hidden, 3 * config.hidden),
                    out=weight(config.hidden, config.hidden),
                    router=None if dense else weight(config.hidden, config.experts),
                    gate_up=weight(experts, config.hidden, 2 * width),
                    # Averaging top_k experts and the gate both shrink the output; this brings it back to about one.
                    down=weight(experts, width, config.hidden, scale=4.0),
                )
            )
        self._head = weight(config.hidden, config.vocab_size, scale=_HEAD_SCALE)

    def forward(self, tokens: Ids, start: Ids, cache: KVCache, *, replay: NDArray[Any] | None = None) -> Forward:
        """Runs ``tokens`` through the model and appends their keys and values to the cache.

        Args:
            tokens: int64 ``[batch, tokens]``.
            start: Position of the first token of each row, int64 ``[batch]``; what the cache holds before it is read.
            cache: Cache with ``batch`` rows, updated in place.
            replay: Expert ids to use instead of the router's own selection, integer
                ``[moe_layers, batch, tokens, top_k]``. Their weights still come from this model's router scores.

        Returns:
            Logits of every token and the expert ids that were used.
        """
        batch, count = tokens.shape
        positions = start[:, None] + np.arange(count)
        x = self._embedding[tokens]
        used: list[Ids] = []
        for index, layer in enumerate(self._layers):
            x = self._round(x + self._attend(layer, _rms_norm(x), positions, cache.keys[index], cache.values[index]))
            flat = self._round(_rms_norm(x)).reshape(batch * count, -1)
            if layer.router is None:
                ids = np.zeros((len(flat), 1), np.int64)
                weights = np.ones((len(flat), 1), np.float32)
            else:
                forced = None if replay is None else replay[len(used)].reshape(batch * count, -1).astype(np.int64)
                ids, weights = self._route(layer.router, flat, forced)
                used.append(ids.reshape(batch, count, -1))
            x = self._round(x + self._experts(layer, flat, ids, weights).reshape(x.shape))
        return Forward(self._round(self._round(_rms_norm(x)) @ self._head), np.stack(used))

    def _round(self, values: Float) -> Float:
        return values.astype(np.float16).astype(np.float32) if self._half else values

    def _attend(self, layer: _Layer, normed: Float, positions: Ids, keys: Float, values: Float) -> Float:
        """Returns the attention output ``[batch, tokens, hidden]`` and writes keys and values of these tokens."""
        batch, count, hidden = normed.shape
        heads = self.config.heads
        qkv = self._round(self._round(normed) @ layer.qkv).reshape(batch, count, 3, heads, hidden // heads)
        rows = np.arange(batch)[:, None]
        keys[rows, :, positions] = self._round(_rotate(qkv[:, :, 1], positions))
        values[rows, :, positions] = qkv[:, :, 2]
        query = self._round(_rotate(qkv[:, :, 0], positions)).transpose(0, 2, 1, 3)

        seen = int(positions.max()) + 1
        scale = np.float32(1 / np.sqrt(hidden // heads))
        scores = self._round(query @ keys[:, :, :seen].transpose(0, 1, 3, 2) * scale)
        future = np.arange(seen) > positions[:, :, None]
        scores = np.where(future[:, None], np.float32(-np.inf), scores)
        mixed = self._round(_softmax(scores)) @ values[:, :, :seen]
        return self._round(self._round(mixed).transpose(0, 2, 1, 3).reshape(batch, count, hidden) @ layer.out)

    def _route(self, router: Float, x: Float, forced: Ids | None) -> tuple[Ids, Float]:
        """Returns expert ids and their weights, both ``[tokens, top_k]``, best first unless ids are forced."""
        scores = _softmax(self._round(x @ router))
        ids = forced if forced is not None else np.argsort(-scores, axis=-1, kind="stable")[:, : self.config.top_k]
        chosen = np.take_along_axis(scores, ids, axis=-1)
        return ids, self._round(chosen / chosen.sum(axis=-1, keepdims=True))

    def _experts(self, layer: _Layer, x: Float, ids: Ids, weights: Float) -> Float:
        """Returns the weighted sum of the chosen experts' outputs, ``[tokens, hidden]``."""
        top_k = ids.shape[1]
        order = np.argsort(ids, axis=None, kind="stable")
        bounds = np.concatenate(([0], np.cumsum(np.bincount(ids.ravel(), minlength=len(layer.gate_up)))))
        busy = np.flatnonzero(np.diff(bounds))
        gathered = x[order // top_k]
        inner = np.empty((len(order), layer.gate_up.shape[2]), np.float32)
        for expert in busy:
            span = slice(bounds[expert], bounds[expert + 1])
            np.matmul(gathered[span], layer.gate_up[expert], out=inner[span])
        gate, up = np.split(self._round(inner), 2, axis=1)
        inner = self._round(self._round(_silu(gate)) * up)
        outer = np.empty((len(order), x.shape[1]), np.float32)
        for expert in busy:
            span = slice(bounds[expert], bounds[expert + 1])
            np.matmul(inner[span], layer.down[expert], out=outer[span])
        unsorted = np.empty_like(outer)
        unsorted[order] = self._round(outer)
        return self._round((unsorted.reshape(len(x), top_k, -1) * weights[:, :, None]).sum(axis=1))


def log_softmax(logits: Float) -> Float:
    """Returns natural log-probabilities over the last axis, same shape and dtype as ``logits``."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Float = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _softmax(scores: Float) -> Float:
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: Float = exps / exps.sum(axis=-1, keepdims=True)
    return result


def _silu(x: Float) -> Float:
    # By tanh, since exp(-x) overflows for very negative x.
    half = np.float32(0.5)
    result: Float = x * (half + half * np.tanh(half * x))
    return result


def _rms_norm(x: Float) -> Float:
    result: Float = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(_RMS_EPSILON))
    return result


def _rotate(x: Float, positions: Ids) -> Float:
    """Turns the pairs of ``x`` ``[batch, tokens, heads, head_dim]`` by their position (rotary embedding)."""
    half = x.shape[-1] // 2
    frequencies = _ROPE_BASE ** (-np.arange(half) / half)
    angles = (positions[:, :, None, None] * frequencies).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
