"""What a rank of a pipeline moves and waits for, and what many rollouts at once cost."""

from __future__ import annotations

import gc
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from _report import Claim, Measure, Samples

from fastdeploy_routing_plugins import ParallelLayout, RoutingReader, RoutingSchema, open_store, resolve
from fastdeploy_routing_plugins.backend import Blob, Ranges
from fastdeploy_routing_plugins.stores.local.backend import LocalBackend

LAYERS, TOP_K = 48, 8
SCHEMA = RoutingSchema(256, TOP_K, range(1, LAYERS + 1))
STAGES = 8
BURST = 5  # calls of one candidate in a row
_WARM_UP = 2  # rounds

WHOLE, STAGE, VIEW = "get of everything", f"get of 1/{STAGES} of the layers", f"view of 1/{STAGES} of the layers"
BATCH, GETS, BARE = "get_batch", "a loop of get, then the batch", "bare: map, digest and copy each file"


class Counted(LocalBackend):
    """The store ``local``, counting the payload bytes that it hands out."""

    moved = 0

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        blob = super()._get(name, ranges)
        Counted.moved += sum(len(piece) for piece in blob.payload)
        return blob


class Resolved:
    """A resolved store whose backends count."""

    def __init__(self, folder: Path) -> None:
        self._resolved = resolve(config(folder))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resolved, name)

    def create_backend(self) -> Counted:
        return Counted(self._resolved.config)


def config(folder: Path) -> dict[str, Any]:
    """Returns the configuration of a store in a folder."""
    return {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder / "store")}}


def routing(tokens: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns ids like a router's: eight different experts to a token."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 256, (LAYERS, tokens, 1), dtype=np.uint8)
    step = rng.integers(0, 128, (LAYERS, tokens, 1), dtype=np.uint8) * 2 + 1
    return first + step * np.arange(TOP_K, dtype=np.uint8)


def timed(call: Callable[[], Any]) -> float:
    """Microseconds of a call, its result released."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def take_turns(candidates: dict[str, Callable[[], Any]], rounds: int) -> Samples:
    """Times candidates in turn, in an order that rotates."""
    names = list(candidates)
    samples = Samples.of(names)
    for number in range(rounds + _WARM_UP):
        gc.collect()
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            values = [timed(candidates[name]) for _ in range(BURST)]
            if number >= _WARM_UP:
                samples.add(name, [statistics.median(values)])
    return samples


def check(same: bool) -> None:
    """Ends the benchmark if something was changed on the way."""
    if not same:
        raise SystemExit("bytes were changed on the way: the measurement is void")


def measure_stages(folder: Path, rounds: int, mib: float) -> Iterator[Measure | Claim]:
    """Yields what a stage with some of the layers moves and takes."""
    array = routing(round(mib * (1 << 20) / LAYERS / TOP_K))
    layout = ParallelLayout(STAGES, pp=STAGES, stages=[LAYERS // STAGES + 1, *[LAYERS // STAGES] * (STAGES - 1)])
    resolved: Any = Resolved(folder)
    with open_store(config(folder), schema=SCHEMA) as store:
        store.put("big", array)
    with RoutingReader(resolved, SCHEMA) as whole, RoutingReader(resolved, SCHEMA, layout.rank(3)) as stage:
        rows = [SCHEMA.position(layer) for layer in stage.layer_ids]
        Counted.moved = 0
        check(np.array_equal(stage.get("big").routing, array[rows]))
        moved = Counted.moved
        check(np.array_equal(whole.get("big").routing, array))
        samples = take_turns(
            {WHOLE: lambda: whole.get("big"), STAGE: lambda: stage.get("big"), VIEW: lambda: stage.view("big")}, rounds
        )
    yield from samples.measures(f"{mib:g} MiB in local, one rank", "us", WHOLE)
    share = array.nbytes / STAGES
    yield Claim(f"bytes that 1/{STAGES} of the layers moves: its share + 2 %", moved, "<=", share * 1.02, "bytes")
    limit = samples.median(WHOLE) / STAGES + 300
    what = f"1/{STAGES} of the layers: its share of the time + 300 us"
    yield Claim(
        what, samples.median(STAGE), "<=", limit, "us", gate=False
    )  # files: the caches decide as much as we do


def measure_batch(folder: Path, rounds: int, count: int, kib: float) -> Iterator[Measure | Claim]:
    """Yields what a batch of rollouts that are there costs."""
    tokens = round(kib * (1 << 10) / LAYERS / TOP_K)
    ids = [f"batch:{number}:0:0" for number in range(count)]
    arrays = [routing(tokens, seed) for seed in range(count)]
    with open_store(config(folder), schema=SCHEMA) as store:
        for key, array in zip(ids, arrays, strict=True):
            store.put(key, array)
    files = [folder / f"bare{number}" for number in range(count)]
    for file, array in zip(files, arrays, strict=True):
        file.write_bytes(array.tobytes())

    def bare() -> Any:
        batch = np.empty((count, LAYERS, tokens, TOP_K), np.uint8)
        for index, file in enumerate(files):
            fd = os.open(file, os.O_RDONLY)
            mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            os.close(fd)
            xxhash.xxh3_64_intdigest(mapped)
            batch[index] = np.frombuffer(mapped, np.uint8).reshape(batch.shape[1:])
        return batch

    from fastdeploy_routing_plugins import RoutingBatch

    resolved: Any = Resolved(folder)
    with RoutingReader(resolved, SCHEMA) as reader:
        candidates: dict[str, Callable[[], Any]] = {
            BARE: bare,
            BATCH: lambda: reader.get_batch(ids),
            GETS: lambda: RoutingBatch.build([reader.get(key) for key in ids], ids, schema=SCHEMA),  # type: ignore[misc]
        }
        check(all(np.array_equal(bare(), batch.routing) for batch in (candidates[BATCH](), candidates[GETS]())))
        samples = take_turns(candidates, rounds)
    yield from samples.measures(f"{count} x {kib:g} KiB in local, one batch", "us", BARE)
    limit = 1.4 * samples.median(GETS) + 1000
    yield Claim("a batch: 1.4 x a loop of get, + 1 ms", samples.median(BATCH), "<=", limit, "us", gate=False)
