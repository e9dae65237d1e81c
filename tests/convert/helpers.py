"""Routing as the engines themselves would hand it over, made without the converters; and damage."""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_routing_plugins import RoutingSchema

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

SCHEMA = RoutingSchema(num_experts=64, top_k=4, layer_ids=range(1, 7))
SPREAD = RoutingSchema(num_experts=64, top_k=4, layer_ids=[1, 3, 4, 7])
WIDE = RoutingSchema(num_experts=1000, top_k=4, layer_ids=range(1, 7))
HIDDEN = 8


def routing(tokens: int, seed: int = 0, schema: RoutingSchema = SCHEMA) -> np.ndarray[Any, Any]:
    """Returns what a router might choose, int64 ``[tokens, MoE layers, top_k]``."""
    scores = np.random.default_rng(seed).random((tokens, schema.num_layers, schema.num_experts))
    return np.argsort(scores, axis=-1)[..., : schema.top_k]


def hidden(ids: np.ndarray[Any, Any], schema: RoutingSchema = SCHEMA, layers: int = HIDDEN) -> np.ndarray[Any, Any]:
    """Returns the same among all hidden layers; dense ones stay zero, as in the engines' buffers."""
    full = np.zeros((len(ids), layers, schema.top_k), ids.dtype)
    full[:, list(schema.layer_ids)] = ids
    return full


def flat64(ids: np.ndarray[Any, Any], dtype: str = "<i4") -> str:
    """What SGLang's detokenizer and FastDeploy's servers do: base64 of the array's bytes."""
    return base64.b64encode(ids.astype(dtype).tobytes()).decode("utf-8")


def npy64(ids: np.ndarray[Any, Any], dtype: str = "|u1") -> str:
    """What vLLM's servers do: base64 of ``numpy.save``."""
    file = io.BytesIO()
    np.save(file, ids.astype(dtype))
    return base64.b64encode(file.getvalue()).decode("ascii")


def sglang_answer(text: str, prompt: int, completion: int, **meta: Any) -> dict[str, Any]:
    """An answer of SGLang's ``/generate``."""
    info = {"id": "abc", "finish_reason": {"type": "stop"}, "prompt_tokens": prompt, "completion_tokens": completion}
    return {"text": "...", "meta_info": {**info, "routed_experts": text, **meta}}


def as_json(reply: Any) -> bytes:
    return json.dumps(reply).encode()


def mutants(data: bytes, count: int, random: random.Random) -> Iterator[bytes]:
    """Yields damaged copies: cut off, with bytes changed, pieces doubled, moved or left out."""
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(random.randint(1, 4)):
            at, to = sorted(random.randrange(len(damaged) + 1) for _ in range(2))
            kind = random.randrange(6)
            if kind == 0:
                del damaged[to:]
            elif kind == 1 and at < len(damaged):
                damaged[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
            elif kind == 2:
                del damaged[at : min(to, at + random.randrange(1, 9))]
            elif kind == 3:
                damaged[at:at] = damaged[at : min(to, at + 16)]
            elif kind == 4:
                damaged[at:at] = random.randbytes(random.randrange(1, 9))
            else:
                damaged[at : at + 8] = random.choice((b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"9" * 12))
        yield bytes(damaged)
