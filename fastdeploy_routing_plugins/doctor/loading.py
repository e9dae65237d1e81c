"""Loads libibverbs and Mooncake, and says in one line of JSON why that does not work.

Run as ``python -m fastdeploy_routing_plugins.doctor.loading``.
"""

from __future__ import annotations

import ctypes
import json

from fastdeploy_routing_plugins.stores.rdma.transport import rdma_env


def _verbs() -> str:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError as err:
        return str(err)
    return ""


def _mooncake() -> str:
    try:
        rdma_env.load()
    except ImportError as err:
        return str(err)
    return ""


if __name__ == "__main__":
    print(json.dumps({"verbs": _verbs(), "mooncake": _mooncake()}), flush=True)
