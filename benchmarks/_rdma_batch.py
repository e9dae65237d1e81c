"""A batch from the store ``rdma``: 64 rollouts of 1 MiB at once, every digest checked."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _peer import SCHEMA, Array
from _rdma_gates import MIB, of_batch
from _rdma_producer import COPY, array_of, config
from _rdma_reader import STREAM, WARM_UP, Reader, clock
from _report import Claim, Measure, Samples

from fastdeploy_routing_plugins import RoutingReader, resolve

COUNT = 64
SHM, TCP = "shm, get_batch", "tcp, get_batch"
VIEWS, COPIES, STREAMED = "shm, a loop of views", "shm, a loop of copies", "tcp, as_completed"
_VOID = "bytes were changed on the way: the measurement is void"


def measure(reader: Reader, server: str, folder: Path, tokens: int, rounds: int) -> Iterator[Measure | Claim]:
    """Yields rates of our ways and of the bounds."""
    bounds = reader.bounds
    bounds.size = array_of(tokens, 0).size
    with ExitStack() as stack:
        readers = {
            name: stack.enter_context(RoutingReader(resolve(config(server, folder, transport)), SCHEMA))
            for name, transport in ((SHM, "shm"), (VIEWS, "shm"), (COPIES, "shm"), (TCP, "tcp"), (STREAMED, "tcp"))
        }
        calls: dict[str, Callable[[list[str]], Any]] = {
            COPY: lambda keys: bounds.copy(0, COUNT).reshape(COUNT, -1),
            STREAM: lambda keys: bounds.stream(0, COUNT).reshape(COUNT, -1),
            SHM: lambda keys: readers[SHM].get_batch(keys).routing,
            VIEWS: lambda keys: [readers[VIEWS].view(key, verify=True).routing for key in keys],  # type: ignore[union-attr]
            COPIES: lambda keys: [readers[COPIES].get(key).routing for key in keys],  # type: ignore[union-attr]
            TCP: lambda keys: readers[TCP].get_batch(keys).routing,
            STREAMED: lambda keys: _in_order(keys, readers[STREAMED].as_completed(keys)),
        }
        names, rates = list(calls), Samples.of(calls)
        for number in range(-WARM_UP, rounds):
            keys = [f"batch:{number + WARM_UP}:{index}" for index in range(COUNT)]
            reader.ask("put_ours", keys, tokens)
            gc.collect()
            turn = (number + WARM_UP) % len(names)
            for name in names[turn:] + names[:turn]:
                (took,) = clock([partial(calls[name], keys)], lambda _, found: _check(found, tokens))
                if number >= 0:
                    rates.add(name, [COUNT * bounds.size / took])
            reader.ask("delete_ours", keys)
    label = f"{COUNT} x {bounds.size / MIB:.2g} MiB"
    yield from rates.measures(label, "MB/s", COPY, rate=True)
    yield from of_batch(label, rates, {SHM: (COPY, 0.55), TCP: (STREAM, 0.85)})


def _in_order(keys: list[str], found: Iterator[tuple[Any, Any]]) -> list[Array]:
    by_key = dict(found)
    return [by_key[key].routing for key in keys]


def _check(found: Any, tokens: int) -> None:
    for index, each in enumerate(found):
        expected: Array = array_of(tokens, index)
        if not np.array_equal(each.reshape(-1), expected.reshape(-1)):
            raise SystemExit(_VOID)
