"""What the ``local`` store costs beside what the machine must do anyway, and beside Paddle's own files.

Every candidate moves the same canonical bytes, uint8 ``[45 layers, tokens, top-8]``. Candidates take turns within each
round, in an order that rotates. Each works through a few new files in a row, as an engine and a trainer do, and their
median counts, so that nobody pays for the caches that the one before has emptied. Every byte is compared with the
original outside the clock; file names are never used twice. Gates are physical bounds measured in the same run, with
slack:

* put: at most 1.3 x (write of the bytes to a new file, rename, XXH3 over the bytes) + 250 us;
* get, every digest checked: at most 1.3 x (XXH3 over a fresh mapping of the bytes) + 200 us;
* get(verify=False), a view: at most 250 us at any size.

Beside them stands what is expected against Paddle: put never slower than paddle.save, get twice as fast as its load.
Where even the bare hash of a fresh mapping takes more than half of paddle.load, as it does for a few MiB in memory, no
store that checks every byte can be twice as fast; such rows say so, and no gate fails for them.

"put" and "get" are those of the public store: validation, digests, listing and all. Releasing what was read is on the
clock, for all candidates. Ends with 1 if a gate is missed, and shows where the time went.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import itertools
import json
import mmap
import os
import pstats
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from fastdeploy_routing_plugins import RoutingSchema, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins import SyncStore

LAYERS, TOP_K = 45, 8
SIZES_MIB = (1.0, 2.8, 30.0)
WARM_UP = 3  # rounds
BURST = 5  # calls in a row
SCHEMA = RoutingSchema(num_experts=256, top_k=TOP_K, layer_ids=range(1, LAYERS + 1))


@dataclass(frozen=True)
class Row:
    """One comparison; times are medians in microseconds.

    Attributes:
        medium: Where the files are.
        mib: Size of the payload.
        what: What was measured.
        ours: The store.
        bound: What the machine needs for the same bytes, or None.
        allowed: What the gate allows.
        paddle: Paddle's counterpart, or None if Paddle is not installed.
        factor: Paddle's time over ours must be at least this.
        within: Whether ``ours`` is within ``allowed``.
        faster: Whether ``factor`` is reached.
    """

    medium: str
    mib: float
    what: str
    ours: float
    bound: float | None
    allowed: float
    paddle: float | None
    factor: float
    within: bool
    faster: bool

    @property
    def verdict(self) -> str:
        """What the table says."""
        if not self.within:
            return "**missed**"
        if self.faster or self.paddle is None:
            return "ok"
        beyond = self.bound is not None and self.bound > self.paddle / self.factor
        return "ok; Paddle's share is below the bare bound" if beyond else "ok; expected more against Paddle"


def routing(mib: float) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns ids like a router's: eight different experts to a token."""
    tokens = round(mib * (1 << 20) / LAYERS / TOP_K)
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, (LAYERS, tokens, 1), dtype=np.uint8)
    step = rng.integers(0, 128, (LAYERS, tokens, 1), dtype=np.uint8) * 2 + 1
    return first + step * np.arange(TOP_K, dtype=np.uint8)


def load_paddle() -> Any:
    """Returns the module, or None if it is not installed."""
    try:
        import paddle
    except ImportError:
        return None
    paddle.set_device("cpu")
    return paddle


def timed(call: Callable[[Any], Any], item: Any) -> float:
    """Microseconds of a call, its result released."""
    start = time.perf_counter_ns()
    call(item)
    return (time.perf_counter_ns() - start) / 1e3


class Bench:
    """The candidates for one array in one folder."""

    def __init__(self, store: SyncStore, folder: Path, array: np.ndarray[Any, Any], paddle: Any) -> None:
        self.store = store
        self.folder = folder
        self.array = array
        self.data = array.data.cast("B")
        self.paddle = paddle
        self.tensor = paddle.to_tensor(array) if paddle else None
        self.numbers = itertools.count()

    def round(self) -> dict[str, float]:
        """Puts and gets with every candidate, ``BURST`` times in a row each; leaves nothing behind."""
        number = next(self.numbers)
        files = [self.folder / f"bench{number}_{index}" for index in range(BURST)]
        keys = [f"bench:{number}:{index}" for index in range(BURST)]
        saved = [str(file.with_suffix(".pdparams")) for file in files]
        puts: list[tuple[str, Callable[[Any], Any], list[Any]]] = [
            ("put", lambda key: self.store.put(key, self.array), keys),
            ("bare put", self.bare_put, files),
        ]
        gets: list[tuple[str, Callable[[Any], Any], list[Any]]] = [
            ("get", lambda key: self.store.get(key), keys),
            ("bare get", self.bare_get, files),
        ]
        if self.paddle:
            puts.append(("paddle.save", lambda path: self.paddle.save(self.tensor, path), saved))
            gets.append(("paddle.load", self.paddle.load, saved))
        times = {}
        for candidates in (puts, gets):
            turn = number % len(candidates)
            for name, call, names in candidates[turn:] + candidates[:turn]:
                times[name] = statistics.median([timed(call, item) for item in names])
        for key, file, path in zip(keys, files, saved, strict=True):
            self.compare(key, file, path)
            file.unlink()
            Path(path).unlink(missing_ok=True)
        self.store.delete(*keys)
        return times

    def bare_put(self, path: Path) -> None:
        """What any store must do: digest the bytes, write them to a new file, give it its name."""
        xxhash.xxh3_64_intdigest(self.data)
        fd = os.open(f"{path}.tmp", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        written = 0
        while written < len(self.data):
            written += os.write(fd, self.data[written:])
        os.close(fd)
        os.rename(f"{path}.tmp", path)

    def bare_get(self, path: Path) -> None:
        """What any checked read must do: map the file, digest the bytes."""
        fd = os.open(path, os.O_RDONLY)
        mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        os.close(fd)
        xxhash.xxh3_64_intdigest(mapped)
        mapped.close()

    def compare(self, key: str, bare: Path, saved: str) -> None:
        """Compares every byte that any candidate stored with the original."""
        stored = [self.store.get(key).routing, np.fromfile(bare, np.uint8).reshape(self.array.shape)]
        if self.paddle:
            stored.append(self.paddle.load(saved).numpy())
        if not all(np.array_equal(self.array, other) and other.dtype == np.uint8 for other in stored):
            raise SystemExit("bytes were changed on the way: the measurement is void")

    def views(self, rounds: int) -> list[float]:
        """Microseconds of unchecked gets, of three records in turn."""
        keys = [f"view:{number}" for number in range(3)]
        for key in keys:
            self.store.put(key, self.array)
        times = [timed(lambda key: self.store.get(key, verify=False), key) for key in keys * (rounds + WARM_UP)]
        if not all(np.array_equal(self.store.get(key, verify=False).routing, self.array) for key in keys):
            raise SystemExit("bytes were changed on the way: the measurement is void")
        self.store.delete(*keys)
        return times[len(keys) * WARM_UP :]

    def explain(self, what: str, count: int = 20) -> str:
        """Returns a profile of ``count`` calls."""
        key = "explain:0"
        self.store.put(key, self.array)
        keys = [f"explain:{number}" for number in range(1, count + 1)]
        calls: dict[str, Callable[[], Any]] = {
            "put": lambda: [self.store.put(key, self.array) for key in keys],
            "get": lambda: [self.store.get(key) for _ in keys],
            "view": lambda: [self.store.get(key, verify=False) for _ in keys],
        }
        profile = cProfile.Profile()
        profile.runcall(calls[what])
        self.store.delete(key, *keys)
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(12)
        return text.getvalue()


def measure(medium: str, folder: Path, mib: float, rounds: int, paddle: Any) -> Iterator[tuple[Row, str]]:
    """Yields rows of one size in one folder, each with a profile if its gate is missed."""
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder / "store")}}
    with open_store(config, schema=SCHEMA) as store:
        bench = Bench(store, folder, routing(mib), paddle)
        samples: dict[str, list[float]] = {}
        for number in range(rounds + WARM_UP):
            gc.collect()
            for name, value in bench.round().items():
                if number >= WARM_UP:
                    samples.setdefault(name, []).append(value)
        samples["view"] = bench.views(rounds)
        middle = {name: statistics.median(values) for name, values in samples.items()}
        for what, bare, slack, peer, factor in (
            ("put", "bare put", 250.0, "paddle.save", 1.0),
            ("get", "bare get", 200.0, "paddle.load", 2.0),
            ("view", None, 250.0, None, 0.0),
        ):
            bound, other = middle.get(bare or ""), middle.get(peer or "")
            allowed = slack if bound is None else 1.3 * bound + slack
            within, faster = middle[what] <= allowed, other is None or other >= factor * middle[what]
            row = Row(medium, mib, what, middle[what], bound, allowed, other, factor, within, faster)
            yield row, "" if within else bench.explain(what)


def show(rows: list[Row]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [
        "| medium | MiB | what | ours µs | bound µs | ours/bound | allowed µs | Paddle µs | Paddle/ours | wanted | |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        bound = f"{row.bound:,.0f} | {row.ours / row.bound:.2f}" if row.bound else "- | -"
        peer = f"{row.paddle:,.0f} | {row.paddle / row.ours:.2f} | ≥ {row.factor:g}" if row.paddle else "- | - | -"
        lines.append(
            f"| {row.medium} | {row.mib:g} | {row.what} | {row.ours:,.0f} | {bound} | {row.allowed:,.0f} | {peer} "
            f"| {row.verdict} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=40, help="counted rounds, at least 30 (default: %(default)s)")
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES_MIB, metavar="MIB", help="payload sizes")
    parser.add_argument("--disk", type=Path, default=Path.cwd(), help="a folder on a disk (default: this one)")
    parser.add_argument(
        "--tmpfs", type=Path, default=Path("/dev/shm"), help="a folder in memory (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.rounds < 30:
        parser.error("--rounds must be at least 30")
    paddle = load_paddle()
    gc.disable()
    rows, profiles = [], []
    for medium, place in (("disk", args.disk), ("tmpfs", args.tmpfs)):
        for mib in args.sizes:
            folder = Path(tempfile.mkdtemp(prefix="fd-routing-bench-", dir=place))
            try:
                for row, profile in measure(medium, folder, mib, args.rounds, paddle):
                    rows.append(row)
                    profiles += [f"{row.what} of {mib:g} MiB on {medium}:\n{profile}"] if profile else []
            finally:
                shutil.rmtree(folder)
    if args.json:
        print(json.dumps({"rounds": args.rounds, "rows": [asdict(row) for row in rows]}))
    else:
        print(show(rows))
        print("" if paddle else "\nPaddle is not installed: its columns are missing.")
    if profiles:
        print("\n".join(["", "Gates were missed; where the time went:", *profiles]), file=sys.stderr)
    return 1 if profiles else 0


if __name__ == "__main__":
    sys.exit(main())
