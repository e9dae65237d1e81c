"""What a get over an RDMA device costs, beside TCP over the same network and a bare read by Mooncake's engine.

A producer at one device (or the same one), this process at the other. All candidates take turns in each round; every
byte is compared outside the clock. *reader* and *producer* are the processor time of the two processes in a second of
it, Mooncake's threads included; *all*, the share of all processors that was busy, from ``/proc/stat``, with the kernel
at work for a device in software. Gates nothing: a device in software says nothing of a card.

    python benchmarks/rdma_device.py                                  # the devices that are up
    FD_ROUTING_RDMA_DEVICE=rxe0,rxe1 python benchmarks/rdma_device.py # the producer's, the reader's
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from _peer import LAYERS, SCHEMA, TOP_K, Array, Peer, routing, shared_memory, tokens_of
from _rdma_network import service
from _report import Measure, show

sys.path.insert(0, str(Path(__file__).parents[1]))
from fastdeploy_routing_plugins import SyncStore, open_store
from fastdeploy_routing_plugins.stores.rdma.transport import rdma_env
from tests.rdma.devices import Lane, Side, lane

SIZES = {"1 MiB": 1.0, "8 MiB": 8.0}
RDMA, TCP, BARE = "rdma", "tcp", "bare read by Mooncake"
BURST = 3
_MOST = 8 * 1.01  # MiB
_PATIENCE = 60.0  # s


def config(server: str, folder: Path, side: Side, transport: str) -> dict[str, Any]:
    """Returns the configuration of a store at one end."""
    own = {"server": server, "arena_dir": str(folder), "capacity": 96 << 20, "timeout": 30.0, "namespace": transport}
    return {"routing_store_type": "rdma", "routing_store_config": {**own, **side.options, "transport": transport}}


def engine(side: Side, memory: Array) -> Any:
    """Returns a bare engine at one end that has some memory registered."""
    made = rdma_env.start(side.address, rdma_env.RDMA, side.device)
    if made.batch_register_memory([memory.ctypes.data], [memory.nbytes]) != 0:
        raise SystemExit("Mooncake's engine does not register memory")
    return made


class Producer:
    """The other end."""

    def __init__(self, server: str, folder: Path, side: Side) -> None:
        logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.ERROR)
        self._stores = {name: open_store(config(server, folder, side, name), schema=SCHEMA) for name in (RDMA, TCP)}
        self._memory = shared_memory(folder / "plain", int(_MOST * (1 << 20)))
        self._engine = engine(side, self._memory)
        self._side = side

    def bare(self) -> tuple[str, int]:
        return f"{self._side.address}:{self._engine.get_rpc_port()}", self._memory.ctypes.data

    def put(self, keys: list[str], tokens: int) -> None:
        for store in self._stores.values():
            for index, key in enumerate(keys):
                store.put(key, routing(tokens, index % 2))
        flat = routing(tokens, 0).reshape(-1)
        self._memory[: flat.size] = flat

    def spent(self) -> float:
        """Returns this process's processor seconds."""
        return time.process_time()

    def delete(self, keys: list[str]) -> None:
        for store in self._stores.values():
            store.delete(*keys)


def busy_ticks() -> tuple[int, int]:
    """Returns the ticks that processors were busy, and all ticks."""
    numbers = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def run(there: Lane, rounds: int) -> list[Measure]:
    """Returns microseconds and busy shares of all candidates."""
    measures: list[Measure] = []
    with ExitStack() as stack:
        server = stack.enter_context(service())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        producer = Peer(Producer, server, folder, there.producer)
        stack.callback(producer.close)

        def ask(verb: str, *args: Any) -> Any:
            producer.tell(verb, *args)
            return producer.answer()

        stores: dict[str, SyncStore] = {
            name: stack.enter_context(open_store(config(server, folder, there.reader, name), schema=SCHEMA))
            for name in (RDMA, TCP)
        }
        segment, address = ask("bare")
        memory = np.ones(int(_MOST * (1 << 20)), np.uint8)
        bare = engine(there.reader, memory)

        def read(nbytes: int) -> Array:
            batch = bare.batch_transfer_async_read(segment, [memory.ctypes.data], [address], [nbytes])
            while (state := bare.transfer_check_status(batch)) not in (1, -1):
                time.sleep(40e-6)
            if not batch or state != 1:
                raise SystemExit("Mooncake's read failed")
            return memory[:nbytes]

        for label, mib in SIZES.items():
            tokens = tokens_of(mib)
            nbytes = LAYERS * tokens * TOP_K
            calls: dict[str, Callable[[str], Any]] = {
                RDMA: lambda key: stores[RDMA].get(key, verify=False).routing,
                TCP: lambda key: stores[TCP].get(key, verify=False).routing,
                BARE: lambda key, nbytes=nbytes: read(nbytes),
            }
            times: dict[str, list[float]] = {name: [] for name in calls}
            ticks = {name: [0, 0] for name in calls}
            spent = {name: [0.0, 0.0, 0.0] for name in calls}  # seconds of the reader, of the producer, and of all
            for number in range(-1, rounds):
                keys = [f"{label}:{number}:{index}" for index in range(BURST)]
                ask("put", keys, tokens)
                for store in stores.values():
                    for key in keys:
                        store.wait(key, timeout=_PATIENCE)
                for name, call in calls.items():
                    before = busy_ticks()
                    used = time.process_time(), ask("spent"), time.perf_counter()
                    for index, key in enumerate(keys):
                        start = time.perf_counter()
                        found = call(key)
                        took = (time.perf_counter() - start) * 1e6
                        expected = routing(tokens, 0 if name == BARE else index % 2)
                        if not np.array_equal(found.reshape(-1), expected.reshape(-1)):
                            raise SystemExit(f"{name}: bytes were changed on the way: the measurement is void")
                        del found
                        if number >= 0:
                            times[name].append(took)
                    after = busy_ticks()
                    now = time.process_time(), ask("spent"), time.perf_counter()
                    if number >= 0:
                        spent[name] = [
                            sum(each) for each in zip(spent[name], now, [-one for one in used], strict=True)
                        ]
                        ticks[name][0] += after[0] - before[0]
                        ticks[name][1] += after[1] - before[1]
                ask("delete", keys)
            for name in calls:
                mine, theirs = (spent[name][index] / spent[name][2] for index in (0, 1))
                share = ticks[name][0] / max(1, ticks[name][1])
                took = times[name]
                better = statistics.median(times[BARE]) / statistics.median(took)
                measures.append(
                    Measure(
                        label,
                        f"{name}: reader {mine:.0%}, producer {theirs:.0%}, all {share:.0%}",
                        "us",
                        statistics.median(took),
                        min(took),
                        better,
                    )
                )
    return measures


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    there = lane()
    if isinstance(there, str):
        print(there, file=sys.stderr)
        return 1
    before = there.producer.sent()
    measures = run(there, args.rounds)
    facts = {
        "devices": f"{there.producer.device} to {there.reader.device}",
        "sent by the device": f"at most {(there.producer.sent() - before) >> 20} MiB",
        "cores": os.cpu_count(),
    }
    show(measures, [], facts, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
