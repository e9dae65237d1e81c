"""The processes of these tests: ``children ROLE CONFIG``. Each has its own engine of Mooncake."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.errors import RoutingError

from ..stores.rdma.faulty_children import obey
from .records import SCHEMA, array_of, key_of


def producer(config: dict[str, Any]) -> None:
    """Puts records."""
    with open_store(config, schema=SCHEMA) as store:

        def put(first: int, count: int, attempt: int = 0) -> int:
            return sum(
                store.put(key_of(number), array_of(number, attempt), attempt=attempt).nbytes
                for number in range(first, first + count)
            )

        def delete(first: int, count: int) -> int:
            return store.delete(*[key_of(number) for number in range(first, first + count)])

        obey({"put": put, "delete": delete})


def reader(config: dict[str, Any]) -> None:
    """Reads records, and compares every byte."""
    with open_store(config, schema=SCHEMA) as store:

        def fetch(first: int, count: int, timeout: float = 10.0) -> dict[str, Any]:
            wrong, errors, nbytes, slowest = [], [], 0, 0.0
            for number in range(first, first + count):
                began = time.monotonic()
                try:
                    record = store.get(key_of(number), timeout=timeout)
                    nbytes += record.routing.nbytes
                    if not np.array_equal(record.routing, array_of(number, record.attempt)):
                        wrong.append(number)
                except RoutingError as err:
                    errors.append(err.code)
                slowest = max(slowest, time.monotonic() - began)
            return {"wrong": wrong, "errors": errors, "nbytes": nbytes, "slowest": slowest}

        obey({"fetch": fetch})


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    {"producer": producer, "reader": reader}[role](*map(json.loads, given))
