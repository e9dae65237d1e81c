"""Routing of many sizes that follows from its number alone."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from fastdeploy_routing_plugins import RoutingSchema

LAYERS, TOP_K, EXPERTS = 16, 8, 256
SCHEMA = RoutingSchema(EXPERTS, TOP_K, range(LAYERS))
SMALLEST, LARGEST = 64 << 10, 8 << 20  # bytes
_POOL: list[npt.NDArray[np.uint8]] = []


def key_of(number: int) -> str:
    """Returns what a record is called."""
    return f"record:{number}:0"


def tokens_of(number: int) -> int:
    """Returns how long a record is: sizes are spread evenly over their logarithms."""
    share = random.Random(number).random()
    return int(SMALLEST * (LARGEST / SMALLEST) ** share) // (LAYERS * TOP_K)


def array_of(number: int, attempt: int = 0) -> npt.NDArray[np.uint8]:
    """Returns a record's routing."""
    if not _POOL:
        rng = np.random.default_rng(7)
        most = LARGEST // (LAYERS * TOP_K)
        first = rng.integers(0, EXPERTS, (LAYERS, 2 * most, 1), dtype=np.uint8)
        _POOL.append(first + 29 * np.arange(TOP_K, dtype=np.uint8))
    start = (number * 7919 + attempt * 104_729) % 60_000
    return _POOL[0][:, start : start + tokens_of(number)]
