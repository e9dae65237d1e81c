"""Records for tests of batches: distinct ids in every row, different in every layer and token."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fastdeploy_routing_plugins import Part, RoutingKey, RoutingRecord, RoutingSchema

SCHEMA = RoutingSchema(16, 3, [2, 3, 5, 6])


def ids(layers: int, tokens: int, schema: RoutingSchema = SCHEMA, seed: int = 0) -> np.ndarray:
    """Returns ``[layers, tokens, top_k]`` random ids, distinct in each row, in the stored dtype."""
    return _ids(layers, tokens, schema, seed).copy()


@lru_cache(maxsize=1024)
def _ids(layers: int, tokens: int, schema: RoutingSchema, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, layers, tokens])
    scores = rng.random((layers, tokens, min(schema.num_experts, 512)))
    return np.argsort(scores, axis=-1)[..., : schema.top_k].astype(schema.dtype)


def record(
    name: str = "a",
    tokens: int = 5,
    *,
    schema: RoutingSchema = SCHEMA,
    start: int = 0,
    total: int | str | None = "all",
    layers: tuple[int, int] | None = None,
    **fields: Any,
) -> RoutingRecord:
    """Returns a record of rows ``start`` to ``start + tokens``, read-only as a store's."""
    layers = layers or (0, schema.num_layers)
    routing = ids(layers[1] - layers[0], tokens, schema, seed=sum(name.encode()))
    routing.flags.writeable = False
    return RoutingRecord(
        routing=routing,
        key=RoutingKey(name),
        schema=schema,
        part=Part((start, start + tokens), layers),
        total_tokens=start + tokens if total == "all" else total,  # type: ignore[arg-type]
        attempt=fields.pop("attempt", 0),
        **fields,
    )
