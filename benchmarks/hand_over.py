"""What handing routing over costs the engine, how fast it flows, and how soon a trainer has it.

Every candidate moves the same canonical bytes, uint8 ``[45 layers, tokens, top-8]``, to another process. Candidates
take turns within each round, in an order that rotates, and medians count. Every byte is compared with the original by
the process that it arrives in, outside the clock; only ``noop`` keeps nothing to compare, and counts.

* ``blocked``: for how long one hand-over holds its caller up. A candidate hands several rollouts over in a row, as an
  engine does with those that end in one step. The first of them comes after a pause, in which the consumer comes to
  rest and the code leaves the core's caches; it is shown on its own. Beside the writer: a plain copy into warm shared
  memory, ``multiprocessing.Manager().Queue()`` (what FastDeploy uses) and ``multiprocessing.Queue``, whose thread
  pickles later, at the engine's expense. Gates, for those after the first: ``submit`` at most 1.25 x the copy + 80 us
  (from 16 MiB on 1.4 x, and for the first: later ones share the memory with the worker), ``reserve`` and ``publish``
  at most 100 us each at any size, 45 submits of one layer each at most 3 ms, ``submit(layout="token_first")`` six
  times as fast as NumPy's transposition.
* ``sustained``: megabytes per second with the arena full most of the time. Gates: to ``noop`` without validation 40 %
  of a copy through as much shared memory as the arena has (a copy that stays in the caches is printed beside it), to
  ``local`` 85 % of a bare loop of the same store's puts.
* ``readable``: from the call until another process has read every byte. Gate: half of FastDeploy's way in miniature.

Ends with 1 if a gate is missed. Needs Paddle for ``readable``.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import _blocked
import _readable
import _sustained
from _report import Claim, Measure, show

SECTIONS = ("blocked", "sustained", "readable")


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=30, help="counted rounds (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="which sections (default: all)")
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=list(_blocked.SIZES_MIB), metavar="MIB", help="sizes for blocked"
    )
    parser.add_argument(
        "--tmpfs", type=Path, default=Path("/dev/shm"), help="a folder in memory (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if "readable" in args.only and importlib.util.find_spec("paddle") is None:
        parser.error("readable needs Paddle: pip install paddlepaddle, or --only blocked sustained")
    logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.ERROR)
    sections: dict[str, Callable[[Path], Iterator[Measure | Claim]]] = {
        "blocked": lambda folder: _blocked.measure(folder, args.rounds, args.sizes),
        "sustained": lambda folder: _sustained.measure(folder, max(5, args.rounds // 5)),
        "readable": lambda folder: _readable.measure(folder, args.rounds),
    }
    measures: list[Measure] = []
    claims: list[Claim] = []
    load = os.getloadavg()[0]
    gc.disable()
    for name in [name for name in SECTIONS if name in args.only]:
        print(f"{name} ...", file=sys.stderr)
        folder = Path(tempfile.mkdtemp(prefix="fd-routing-bench-", dir=args.tmpfs))
        try:
            for line in sections[name](folder):
                (measures if isinstance(line, Measure) else claims).append(line)  # type: ignore[arg-type]
        finally:
            shutil.rmtree(folder)
    facts = {"rounds": args.rounds, "cores": os.cpu_count(), "load before": round(load, 1)}
    show(measures, claims, facts, as_json=args.json)
    return 0 if all(claim.holds or not claim.gate for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
