"""A small Mixture-of-Experts language model in Paddle, for the trainer (float32) and the rollout engine (bfloat16)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "No ccache found")  # Paddle's word to those who build extensions
    import paddle

from paddle.nn import functional as F

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.reader.paddle import replay_topk


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the model."""

    vocab: int = 32
    hidden: int = 64
    heads: int = 4
    layers: int = 4
    experts: int = 16
    top_k: int = 2
    expert_hidden: int = 16
    max_tokens: int = 64

    @property
    def schema(self) -> RoutingSchema:
        """What writer and reader agree on. All layers are MoE layers here; dense ones would be left out."""
        return RoutingSchema(num_experts=self.experts, top_k=self.top_k, layer_ids=range(self.layers))


def exact(x):
    """The trainer's arithmetic: float32 stays as it is."""
    return x


def bfloat16(x):
    """The engine's arithmetic: every weight and every result is rounded to bfloat16, sums are kept in float32."""
    return x.astype("bfloat16").astype("float32")


class Block(paddle.nn.Layer):
    """Attention, then experts behind a router, both added to the residual stream."""

    def __init__(self, config: ModelConfig, weight, rounding) -> None:
        super().__init__()
        self.config, self.rounding = config, rounding
        hidden, inner = config.hidden, config.experts * config.expert_hidden
        self.qkv = weight(hidden, 3 * hidden)
        self.out = weight(hidden, hidden)
        self.router = weight(hidden, config.experts)
        self.gate = weight(hidden, inner)
        self.up = weight(hidden, inner)
        self.down = weight(inner, hidden, scale=4 * config.experts**0.5)  # few of the experts add to the sum

    def forward(self, x, past, replay):
        """Returns the new residual stream, keys and values, and what the router did."""
        rounding = self.rounding
        mixed, past = self.attend(rounding(norm(x)), past)
        x = rounding(x + mixed)
        normed = rounding(norm(x))
        weights, used, own = self.route(normed, replay)
        return rounding(x + self.mix_experts(normed, weights, used)), past, (used, own)

    def attend(self, x, past):
        """Causal attention of ``x`` ``[batch, tokens, hidden]`` over ``past`` (keys, values) and itself."""
        rounding, heads = self.rounding, self.config.heads
        batch, count, hidden = x.shape
        qkv = rounding(x @ self.qkv).reshape([batch, count, 3, heads, hidden // heads])
        query, key, value = qkv.transpose([2, 0, 3, 1, 4]).unbind(0)
        if past is not None:
            key, value = paddle.concat([past[0], key], 2), paddle.concat([past[1], value], 2)
        seen = key.shape[2]
        future = paddle.arange(seen) > paddle.arange(seen - count, seen).unsqueeze(-1)
        scores = rounding(query @ key.transpose([0, 1, 3, 2]) * (hidden // heads) ** -0.5)
        scores = rounding(F.softmax(scores + future.astype("float32") * -1e9, -1))
        mixed = rounding(scores @ value).transpose([0, 2, 1, 3]).reshape([batch, count, hidden])
        return rounding(mixed @ self.out), (key, value)

    def route(self, x, replay):
        """Chooses experts for every token; this is where routing is replayed.

        Args:
            x: ``[batch, tokens, hidden]``.
            replay: None, or the recorded experts ``[batch, tokens, top_k]`` and where they were recorded, bool
                ``[batch, tokens]``.

        Returns:
            Weights of the experts used, these experts, and the router's own choice, all ``[batch, tokens, top_k]``.
        """
        logits = x @ self.router  # not rounded, as in most engines
        own = paddle.topk(logits.detach(), self.config.top_k)[1]
        ids, mask = (own, None) if replay is None else replay
        weights, used = replay_topk(logits, ids, mask, norm="sum")  # weights and gradients of the live router
        return weights, used, own

    def mix_experts(self, x, weights, used):
        """Sums the experts' outputs by weight. So few and small experts are all computed, most with weight zero."""
        config, rounding = self.config, self.rounding
        by_expert = (F.one_hot(used, config.experts) * rounding(weights).unsqueeze(-1)).sum(-2)
        inner = rounding(F.silu(rounding(x @ self.gate)) * rounding(x @ self.up))
        inner = inner.reshape([*x.shape[:2], config.experts, config.expert_hidden]) * by_expert.unsqueeze(-1)
        return rounding(rounding(inner.flatten(2)) @ self.down)


class MoeModel(paddle.nn.Layer):
    """Embeddings, blocks and a head. Equal seeds make equal weights in every process."""

    def __init__(self, config: ModelConfig, seed: int, rounding=exact) -> None:
        super().__init__()
        self.config, self.rounding = config, rounding
        rng = np.random.default_rng(seed)

        def weight(rows: int, columns: int, scale: float = 1.0):
            values = rng.standard_normal((rows, columns), np.float32) * np.float32(scale * rows**-0.5)
            assign = paddle.nn.initializer.Assign(rounding(paddle.to_tensor(values)))
            return paddle.create_parameter([rows, columns], "float32", default_initializer=assign)

        self.tokens = weight(config.vocab, config.hidden, scale=config.vocab**0.5)
        self.positions = weight(config.max_tokens, config.hidden, scale=config.max_tokens**0.5)
        self.blocks = paddle.nn.LayerList([Block(config, weight, rounding) for _ in range(config.layers)])
        self.head = weight(config.hidden, config.vocab)

    def forward(self, tokens, cache=None, replay=None):
        """Runs tokens through the model.

        Args:
            tokens: int64 ``[batch, tokens]``.
            cache: Keys and values of the tokens before, a list that is updated in place; an empty one at first.
            replay: None, or recorded experts ``[batch, layers, tokens, top_k]`` and where they were recorded, bool
                ``[batch, tokens]``.

        Returns:
            Logits ``[batch, tokens, vocab]``; the experts used and the routers' own choices, both
            ``[batch, layers, tokens, top_k]``.
        """
        start = cache[0][0].shape[2] if cache else 0
        positions = self.positions[start : start + tokens.shape[1]]
        x = self.rounding(F.embedding(tokens, self.tokens) + positions)
        routed = []
        for index, block in enumerate(self.blocks):
            recorded = None if replay is None else (replay[0][:, index], replay[1])
            x, past, choices = block(x, cache[index] if cache else None, recorded)
            routed.append((choices, past))
        if cache is not None:
            cache[:] = [past for _, past in routed]
        used, own = (paddle.stack([choices[i] for choices, _ in routed], 1) for i in (0, 1))
        return self.rounding(self.rounding(norm(x)) @ self.head), used, own

    def weights(self) -> dict[str, np.ndarray]:
        """Returns all weights, to be sent to the engine."""
        return {name: value.numpy() for name, value in self.named_parameters()}

    def load(self, weights: dict[str, np.ndarray]) -> None:
        """Takes over weights, in this model's precision."""
        for name, value in self.named_parameters():
            value.set_value(self.rounding(paddle.to_tensor(weights[name])))


def norm(x):
    """Divides by the root mean square."""
    return x * paddle.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
