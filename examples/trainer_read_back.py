"""The trainer's side: waits for rollouts and reads their routing back.

    python trainer_read_back.py --config @engine/local.json ROLLOUT-ID...

Without ``--config`` the store is the one that FD_ROUTING_STORE_CONFIG names, as in every process of the run.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

import numpy as np

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.errors import AbortedError, AbsentError, RoutingError


def read(store, rollout_id: str, timeout: float) -> None:
    record = store.get(rollout_id, timeout=timeout)  # waits; numpy [layers, tokens, top_k], digests checked
    layers, tokens, top_k = record.routing.shape
    print(
        f"{rollout_id}: {layers} MoE layers {record.layer_ids}, {tokens} tokens, top-{top_k}, {record.routing.dtype}"
    )

    # A pipeline stage needs its own layers only: positions in layer_ids, read without moving the others.
    stage = store.get(rollout_id, layers=(layers // 2, layers))
    assert np.array_equal(stage.routing, record.routing[layers // 2 :])

    # The response only: absolute token positions.
    tail = store.get(rollout_id, tokens=(tokens // 2, tokens))
    assert np.array_equal(tail.routing, record.routing[:, tokens // 2 :])

    # Indexing kernels want int64. Never uint16 in Paddle: there it means bfloat16.
    indices = record.routing.astype(np.int64)
    if importlib.util.find_spec("paddle"):
        import paddle

        indices = paddle.to_tensor(indices)
    print(f"{rollout_id}: indices for the trainer: {type(indices).__module__} {indices.dtype}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Reads routing back as a trainer does.")
    parser.add_argument("--config", help="a configuration as JSON, or @file")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for each rollout")
    parser.add_argument("ids", nargs="+", metavar="ROLLOUT-ID")
    args = parser.parse_args()
    missing = 0
    try:
        with open_store(args.config) as store:
            for rollout_id in args.ids:
                try:
                    read(store, rollout_id, args.timeout)
                except AbortedError as err:
                    print(f"{rollout_id}: given up by the engine ({err.reason}): drop the sample")
                except AbsentError as err:  # never came, or parts are missing: the message says which
                    print(f"{rollout_id}: {err}", file=sys.stderr)
                    missing += 1
    except RoutingError as err:
        print(f"{err.code}: {err}", file=sys.stderr)
        return 2
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
