"""A trajectory of many turns: what it takes to store it turn by turn, and to read the last turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _report import Claim, Measure
from _shares import LAYERS, SCHEMA, TOP_K, check, config, routing, take_turns

from fastdeploy_routing_plugins import RoutingReader, Trajectory, open_store, resolve

TURNS, TOKENS = 200, 100_000
SMALL = 1024  # bytes

CHAIN, COPY, SMALLS = (
    "the last turn, as a chain of parts",
    "one copying read of the same",
    "reads of 1 KiB, all of them",
)


def measure(folder: Path, rounds: int) -> Iterator[Measure | Claim]:
    """Yields what a trajectory takes on the disk, and how long reading it takes."""
    array = routing(TOKENS)
    ends = [round(TOKENS * (turn + 1) / TURNS) for turn in range(TURNS)]
    smalls = [f"small:{number}:0:0" for number in range(TURNS)]
    small = routing(SMALL // LAYERS // TOP_K)
    with open_store(config(folder), schema=SCHEMA) as store:
        before = disk(folder)
        trajectory = Trajectory(store, "turns")
        for end in ends:
            trajectory.append(array[:, trajectory.tokens : end], weight_versions=1)
        trajectory.seal()
        stored = disk(folder) - before
        store.put("whole", array, weight_versions=())
        for key in smalls:
            store.put(key, small)
    with RoutingReader(resolve(config(folder)), SCHEMA) as reader:
        check(reader.turns("turns") == tuple(ends))
        check(np.array_equal(reader.get_turn("turns", TURNS - 1).routing, array))
        samples = take_turns(
            {
                CHAIN: lambda: reader.get_turn("turns", TURNS - 1),
                COPY: lambda: reader.get("whole").routing.copy(),  # type: ignore[union-attr]
                SMALLS: lambda: [reader.get(key) for key in smalls],
            },
            rounds,
        )
    yield from samples.measures(f"{TURNS} turns, {TOKENS:,} tokens, {array.nbytes >> 20} MiB in local", "us", CHAIN)
    yield Claim("bytes stored turn by turn: 1.1 x the array", stored, "<=", 1.1 * array.nbytes, "bytes")
    limit = 1.5 * (samples.median(COPY) + samples.median(SMALLS))
    yield Claim(
        f"reading the last turn: 1.5 x (one copying read + {TURNS} of 1 KiB)", samples.median(CHAIN), "<=", limit, "us"
    )


def disk(folder: Path) -> int:
    """Bytes of all files below a folder, as the file system says."""
    return sum(os.stat(file).st_size for file in folder.rglob("*") if file.is_file())
