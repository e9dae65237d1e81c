"""What a rank reads from a producer in another process, over TCP, beside a plain stream of the same bytes."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _rdma_network import service
from _report import Claim, Measure
from _shares import LAYERS, SCHEMA, STAGES, TOP_K, check, routing, take_turns

from fastdeploy_routing_plugins import ParallelLayout, open_reader, open_store

WHOLE, STAGE, STREAM = "all layers", f"1/{STAGES} of the layers", "plain stream of the same bytes"
BATCH, BATCH_STREAM = "get_batch", "plain stream of the same bytes, batch"
_BIG = 64 << 20  # bytes that a stream can be asked for
_NETWORK = Path("/proc/net/dev")  # of this process's own network, which /sys need not show


def _config(address: str) -> dict[str, Any]:
    own = {"server": address, "transport": "tcp", "capacity": 128 << 20, "namespace": "reader-benchmark"}
    return {"routing_store_type": "rdma", "routing_store_config": own}


def _produce(address: str, arrays: dict[str, np.ndarray[Any, Any]], pipe: Any) -> None:
    """The other process: puts everything, then streams as many bytes as it is asked for, until it is told to end."""
    with open_store(_config(address), schema=SCHEMA) as store, socket.create_server(("127.0.0.1", 0)) as server:
        for key, array in arrays.items():
            store.put(key, array)
        pipe.send(server.getsockname()[1])
        data = memoryview(bytearray(np.random.default_rng(0).bytes(_BIG)))
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request := connection.recv(8):
                connection.sendall(data[: int.from_bytes(request, "little")])
        pipe.recv()


def _received() -> int:
    """Returns how many bytes the loopback interface has received."""
    (line,) = [line for line in _NETWORK.read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[0])


@contextmanager
def _producer(arrays: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[str, Callable[[int], None]]]:
    """Yields the service's address, and what receives so many bytes over a plain stream into warm memory."""
    context = multiprocessing.get_context("spawn")
    with service() as address:
        mine, other = context.Pipe()
        process = context.Process(target=_produce, args=(address, arrays, other))
        process.start()
        try:
            with socket.create_connection(("127.0.0.1", mine.recv())) as stream:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                memory = memoryview(bytearray(_BIG))

                def receive(nbytes: int) -> None:
                    stream.sendall(nbytes.to_bytes(8, "little"))
                    done = 0
                    while done < nbytes:
                        done += stream.recv_into(memory[done:nbytes])

                yield address, receive
            mine.send(None)
        finally:
            process.join(10)
            process.kill()


def measure(folder: Path, rounds: int) -> Iterator[Measure | Claim]:
    """Yields what a stage's share of 30 MiB, and a batch of 64 rollouts of 64 KiB, cost over TCP."""
    big = routing(round(30 * (1 << 20) / LAYERS / TOP_K))
    small = {f"batch:{number}:0:0": routing(round((64 << 10) / LAYERS / TOP_K), number) for number in range(64)}
    layout = ParallelLayout(STAGES, pp=STAGES, stages=[LAYERS // STAGES + 1, *[LAYERS // STAGES] * (STAGES - 1)])
    with _producer({"big": big, **small}) as (address, receive):
        config, total = _config(address), sum(array.nbytes for array in small.values())
        with open_reader(config, schema=SCHEMA) as whole, open_reader(
            config, schema=SCHEMA, layout=layout.rank(3)
        ) as stage:  # fmt: skip
            rows = [SCHEMA.position(layer) for layer in stage.layer_ids]
            check(np.array_equal(whole.get("big").routing, big))
            before = _received()
            check(np.array_equal(stage.get("big").routing, big[rows]))
            moved = _received() - before
            check(moved * STAGES >= big.nbytes)
            batch = whole.get_batch(list(small))
            check(all(np.array_equal(batch.routing[at], array) for at, array in enumerate(small.values())))
            del batch
            samples = take_turns(
                {
                    WHOLE: lambda: whole.get("big"),
                    STAGE: lambda: stage.get("big"),
                    STREAM: lambda: receive(big.nbytes),
                    BATCH: lambda: whole.get_batch(list(small)),
                    BATCH_STREAM: lambda: receive(total),
                },
                rounds,
            )
    yield from samples.measures("30 MiB, and 64 x 64 KiB, over tcp", "us", WHOLE)
    share = big.nbytes / STAGES
    what = f"bytes over the wire for 1/{STAGES} of the layers: its share + 2 %, packets' heads included"
    yield Claim(what, moved, "<=", share * 1.02, "bytes")
    limit = samples.median(WHOLE) / STAGES + 300
    yield Claim(f"1/{STAGES} of the layers: its share of the time + 300 us", samples.median(STAGE), "<=", limit, "us")
    limit = 1.4 * samples.median(BATCH_STREAM) + 1000
    yield Claim("a batch: 1.4 x the plain stream + 1 ms", samples.median(BATCH), "<=", limit, "us")
