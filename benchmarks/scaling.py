"""How costs grow: with names, with who waits, with records of a producer, with bytes; and what a large job asks for.

    python benchmarks/scaling.py [--engines 1000 --ranks 10000] [--names 1000 10000 ...] [--quick] [--json]

The metadata service is a real one in a process of its own. What it costs is its own processor time as the system
counts it, so that a busy machine changes little of it. The simulation opens a connection for every engine and every
rank, asks what they ask, and multiplies by how often they do. Nothing is gated; docs/scaling.md explains.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from _scaling_job import Cost, Job, costs, job
from metadata import PLACE, holding, lookups, name, service, took
from rich.console import Console
from rich.table import Table

from fastdeploy_routing_plugins import RoutingSchema, open_store
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
from fastdeploy_routing_plugins.stores.rdma.metadata.naming import rollout_of

SCHEMA = RoutingSchema(256, 8, range(4))
_CLOSING = 120.0  # s; closing lets go of every rollout
BATCH = 26  # rollouts of a rank in a step, see ``Load``


@dataclass(frozen=True, slots=True)
class Load:
    """What a job asks its metadata service, in a training step.

    Attributes:
        engines: Producers.
        ranks: Trainer processes that read.
        rollouts: Of a step.
        shared: Ranks that read the same rollout: those of one data-parallel group.
        step: Seconds of a step.
    """

    engines: int
    ranks: int
    rollouts: int = 16_384
    shared: int = 16
    step: float = 300.0

    @property
    def batch(self) -> int:
        """Rollouts that a rank reads in a step."""
        return max(1, round(self.rollouts * self.shared / self.ranks))

    def lines(self, costs: dict[str, Cost]) -> Iterator[tuple[str, float, float]]:
        """Yields what is asked, how often in a step, and the service's processor seconds for that."""
        signs, published = costs["engine's sign of life"].each, costs["rollout is published"].each
        listing = next(each.each for what, each in costs.items() if what.startswith("rank asks where"))
        wait, owner = costs["wait for a rollout, told when it comes"].each, costs["rank asks for an engine's address"]
        reads = self.rollouts * self.shared
        yield "signs of life", 2 * self.engines * self.step, 2 * self.engines * self.step * signs / 1e6
        yield "rollouts published", self.rollouts, self.rollouts * published / 1e6
        yield "batches looked up", self.ranks, self.ranks * listing / 1e6
        yield "rollouts waited for, by each rank that reads them", reads, reads * wait / 1e6
        yield "engines' addresses, in the first step", reads, reads * owner.each / 1e6


def of_names(counts: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yields rows: with so many names in the service, what one more question takes."""
    for count in counts:
        with service() as address:
            client = MetadataClient(address, "run-7", timeout=60)
            client.open()
            empty = client.status()["memory"]
            start = time.perf_counter()
            with holding(client, count) as owner:
                rate = count / (time.perf_counter() - start)
                memory = (client.status()["memory"] - empty) / count
                asked = statistics.median(lookups(client, count))
                fresh = [name(10**7 + index) for index in range(300)]
                publish = statistics.median(took(client.publish, owner, [(each, PLACE)]) for each in fresh)
                listing = statistics.median(
                    took(client.listing, [rollout_of(name(index * 7919 % count))]) for index in range(300)
                )
                start = time.perf_counter()
                gone = client.delete_prefix("run-7/step=3a00000=3a")
                deleted = (time.perf_counter() - start) * 1e3
            client.close()
        yield (
            f"{count:,}", f"{asked:.0f} us", f"{listing:.0f} us", f"{publish:.0f} us", f"{rate:,.0f}/s",
            f"{deleted:.1f} ms ({gone:,})", f"{memory:.0f} bytes",
        )  # fmt: skip


def of_waiting(connected: Job, counts: Sequence[int]) -> Iterator[tuple[Cost, tuple[str, ...]]]:
    """Yields, for ranks that wait for the same rollout, when the last one knows of it."""
    for number, count in enumerate(each for each in counts if each <= connected.ranks):
        cost, last = connected.awaited(count, name(10**8 + number * 1000), number % len(connected.engines))
        yield cost, (f"{cost.count:,}", f"{last * 1e3:.1f} ms", f"{cost.each:.0f} us")


def of_records(counts: Sequence[int], shm: str) -> Iterator[tuple[str, ...]]:
    """Yields rows: with so many rollouts in a producer's memory, what one more put and get take."""
    array = np.zeros((4, 32, 8), np.uint8) + np.arange(8, dtype=np.uint8)
    for count in counts:
        with service() as address, tempfile.TemporaryDirectory(dir=shm) as folder:
            options = {"server": str(address), "arena_dir": folder, "capacity": 64 * 2**20 + count * 16_384}
            config = {"routing_store_type": "rdma", "routing_store_config": options}
            store = open_store(config, schema=SCHEMA)
            try:
                with open_store(config) as reader:
                    for index in range(count):
                        store.put(f"old:{index}:0:0", array)
                    keys = [f"new:{index}:0:0" for index in range(200)]
                    put = statistics.median(took(store.put, key, array) for key in keys)
                    got = statistics.median(took(reader.get, key) for key in keys)
                    deleted = statistics.median(took(store.delete, key) for key in keys)
            finally:
                start = time.perf_counter()
                store.close(_CLOSING)
                closed = time.perf_counter() - start
        yield f"{count:,}", f"{put:.0f} us", f"{got:.0f} us", f"{deleted:.0f} us", f"{closed:.2f} s"


def of_bytes(sizes: Sequence[int], shm: str) -> Iterator[tuple[str, ...]]:
    """Yields rows: of rollouts of so many bytes, what a put and a get take."""
    rng = np.random.default_rng(0)
    for size in sizes:
        tokens = max(1, size // 32)
        first = rng.integers(0, 256, (4, tokens, 1), dtype=np.uint8)
        array = first + np.arange(8, dtype=np.uint8)
        with service() as address, tempfile.TemporaryDirectory(dir=shm) as folder:
            options = {"server": str(address), "arena_dir": folder, "capacity": 64 * 2**20 + 8 * array.nbytes}
            config: dict[str, Any] = {"routing_store_type": "rdma", "routing_store_config": options}
            by_tcp = {**config, "routing_store_config": {**options, "transport": "tcp"}}
            times: dict[str, list[float]] = {"put": [], "shm": [], "tcp": []}
            with open_store(config, schema=SCHEMA) as store, open_store(config) as shared, open_store(by_tcp) as tcp:
                for index in range(12):
                    key = f"x:{index}:0:0"
                    times["put"].append(took(store.put, key, array))
                    for what, reader in (("shm", shared), ("tcp", tcp)):
                        times[what].append(took(reader.get, key))
                        assert np.array_equal(reader.get(key).routing, array)
                    store.delete(key)
        middle = {what: statistics.median(values[2:]) for what, values in times.items()}
        yield (
            f"{array.nbytes:,}",
            *(f"{each:,.0f} us ({array.nbytes / each / 1e3:.2f} GB/s)" for each in middle.values()),
        )


def simulate(options: argparse.Namespace, load: Load) -> tuple[list[Cost], list[tuple[str, ...]]]:
    """Connects the job and asks everything that it asks once; returns what it cost."""
    found: list[Cost] = []
    rows: list[tuple[str, ...]] = []
    with job(options.engines, options.ranks) as connected:
        found += costs(connected, 2 if options.quick else 5, load.batch)
        for cost, row in of_waiting(connected, (1, 10, 100, 1000, 10_000)):
            rows.append(row)
            last = cost
        found.append(last)
    return found, rows


def main() -> int:
    """Measures, and shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--names", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--records", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--bytes", type=int, nargs="*", default=[1_024, 32_768, 1 << 20, 32 << 20])
    parser.add_argument("--shm", default="/dev/shm", help="a tmpfs")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = Load(options.engines, options.ranks)
    sections: list[tuple[str, tuple[str, ...], Callable[[], Iterator[tuple[str, ...]]]]] = [
        (
            "names in the service",
            ("names", "lookup", "listing", "publish", "publish, by 1,000", "delete 1,000", "memory a name"),
            lambda: of_names(options.names),
        ),
        (
            "rollouts in a producer",
            ("rollouts", "put", "get", "delete", "close"),
            lambda: of_records(options.records, options.shm),
        ),
        ("bytes of a rollout", ("bytes", "put", "get, shm", "get, tcp"), lambda: of_bytes(options.bytes, options.shm)),
    ]
    document: dict[str, Any] = {}
    console = Console(width=None if Console().is_terminal else 130)
    for title, headers, rows in sections:
        found = list(rows())
        if not found:
            continue
        document[title] = [dict(zip(headers, row, strict=True)) for row in found]
        _show(console, title, headers, found, options.json)
    measured, waiting = simulate(options, load)
    headers = ("what", "asked", "service's time for one", "all answered within")
    title = f"{options.engines:,} engines and {options.ranks:,} ranks, each with its connection"
    cells = [(each.what, f"{each.count:,}", f"{each.each:.0f} us", f"{each.wall:.2f} s") for each in measured]
    _show(console, title, headers, cells, options.json)
    headers = ("ranks that wait for one rollout", "the last one knows after", "service's time for one")
    _show(console, "who waits", headers, waiting, options.json)
    lines = list(load.lines({each.what: each for each in measured}))
    headers = ("in a step", "questions", "service's time", "share of a core")
    cells = [
        (what, f"{count:,.0f}", f"{cpu:.1f} s", f"{cpu / load.step:.1%}") for what, count, cpu in lines
    ]  # fmt: skip
    _show(console, f"a step of {load.rollouts:,} rollouts in {load.step:.0f} s", headers, cells, options.json)
    document |= {"job": asdict(load), "costs": [asdict(each) for each in measured], "waiting": waiting, "step": lines}
    if options.json:
        print(json.dumps(document, indent=1))
    return 0


def _show(console: Console, title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], quiet: bool) -> None:
    if quiet:
        return
    table = Table(title=title, title_justify="left")
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
