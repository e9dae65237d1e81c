"""What reading costs a trainer.

Every candidate reads the same canonical bytes, uint8 ``[48 layers, tokens, top-8]``, from a store ``local``.
Candidates take turns within each round, in an order that rotates, and medians count. Everything is compared with the
original outside the clock.

* ``stages``: a rank of a pipeline of eight stages reads its layers of a 30 MiB rollout. Gate: it moves at most its
  share of the bytes + 2 %. Expected: it takes at most its share of the time for everything + 300 us.
* ``batch``: 64 rollouts of 64 KiB at once, beside a loop of single reads and beside what any checked read must do.
* ``turns``: a trajectory of 200 turns and 100,000 tokens that was appended turn by turn. Gates: it takes at most 1.1 x
  the bytes of the final array, and reading its last turn at most 1.5 x (one copying read of the same from one piece,
  and 200 reads of 1 KiB).

Ends with 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import _shares
import _turns
from _report import Claim, Measure, show

SECTIONS: dict[str, Callable[[Path, int], Iterator[Measure | Claim]]] = {
    "stages": lambda folder, rounds: _shares.measure_stages(folder, rounds, 30),
    "batch": lambda folder, rounds: _shares.measure_batch(folder, rounds, 64, 64),
    "turns": _turns.measure,
}


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=15, help="counted rounds (default: %(default)s)")
    parser.add_argument(
        "--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="which sections (default: all)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm"), help="where stores are (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.ERROR)
    measures: list[Measure] = []
    claims: list[Claim] = []
    load = os.getloadavg()[0]
    gc.disable()
    for name in args.only:
        print(f"{name} ...", file=sys.stderr)
        folder = Path(tempfile.mkdtemp(prefix="fd-routing-bench-", dir=args.folder))
        try:
            for line in SECTIONS[name](folder, args.rounds):
                (measures if isinstance(line, Measure) else claims).append(line)  # type: ignore[arg-type]
        finally:
            shutil.rmtree(folder)
    facts = {"rounds": args.rounds, "cores": os.cpu_count(), "load before": round(load, 1)}
    show(measures, claims, facts, as_json=args.json)
    return 0 if all(claim.holds or not claim.gate for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
