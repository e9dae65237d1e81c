"""Writes the golden store of the installed version: ``python tests/golden/write_store.py FOLDER``.

Run it once for each new version of the stored format, never again for an old one: the folders prove that stores of
earlier releases stay readable.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fastdeploy_routing_plugins import RoutingKey, RoutingSchema, SyncStore, WeightSpan, open_store

SMALL = RoutingSchema(8, 2, (1, 2, 4))
WIDE = RoutingSchema(300, 3, range(2))
LONG_ID = "long:" + "ü" * 200


def routing(schema: RoutingSchema, tokens: int) -> Any:
    """Routing that anybody can compute again: ``[layers, tokens, top_k]`` int64."""
    layers = np.arange(schema.num_layers)[:, None, None] * 5
    return (layers + np.arange(tokens)[None, :, None] * 7 + np.arange(schema.top_k)) % schema.num_experts


def write(store: SyncStore) -> None:
    """Puts one rollout of each kind."""
    store.put(
        "whole:0:0:0", routing(SMALL, 11), schema=SMALL, weight_versions=[WeightSpan(0, 4, 1), WeightSpan(4, 11, "b")]
    )
    store.put(RoutingKey("whole:0:0:0", 2), routing(WIDE, 5000), schema=WIDE, attempt=1_700_000_000_000_000_000)
    for layer in range(3):
        store.put("layers/../é", routing(SMALL, 6)[layer], schema=SMALL, layers=layer)
    store.put("turns:1:0:0", routing(SMALL, 9)[:, :4], schema=SMALL, tokens=(0, 4))
    store.put("turns:1:0:0", routing(SMALL, 9)[:, 4:], schema=SMALL, tokens=(4, 9))
    store.seal("turns:1:0:0", 9)
    store.put("open:2:0:0", routing(SMALL, 3), schema=SMALL, tokens=(0, 3))
    store.put("Empty", routing(SMALL, 0), schema=SMALL)
    store.put(LONG_ID, routing(SMALL, 2), schema=SMALL)
    store.abort("aborted:3:0:0", "client went away")


if __name__ == "__main__":
    config = {
        "routing_store_type": "local",
        "local_store_dir": sys.argv[1],
        "routing_store_config": {"producer": "golden"},
    }
    with open_store(config) as opened:
        write(opened)
