"""A benchmark in sections: the options that such benchmarks share, a folder for each section, and the exit code."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from _report import Claim, Measure, show


def options(doc: str | None, sections: Sequence[str], rounds: int) -> argparse.ArgumentParser:
    """Returns a parser that knows what all of them take.

    Args:
        doc: What the benchmark is about.
        sections: Names of its sections.
        rounds: How many rounds count unless another number is given.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=rounds, help="counted rounds (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections, help="which sections (default: all)")
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm"), help="a folder in memory (default: %(default)s)"
    )
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the command line's options; ends the process if they make no sense."""
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def run(sections: Mapping[str, Callable[[Path], Iterator[Measure | Claim]]], args: argparse.Namespace) -> int:
    """Runs the sections asked for, in their order, and shows what they found; returns the exit code."""
    logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.ERROR)
    measures: list[Measure] = []
    claims: list[Claim] = []
    load = os.getloadavg()[0]
    gc.disable()
    for name in [name for name in sections if name in args.only]:
        print(f"{name} ...", file=sys.stderr)
        folder = Path(tempfile.mkdtemp(prefix="fd-routing-bench-", dir=args.folder))
        try:
            for line in sections[name](folder):
                (measures if isinstance(line, Measure) else claims).append(line)  # type: ignore[arg-type]
        finally:
            shutil.rmtree(folder)
    facts = {"rounds": args.rounds, "cores": os.cpu_count(), "load before": round(load, 1)}
    show(measures, claims, facts, as_json=args.json)
    return 0 if all(claim.holds or not claim.gate for claim in claims) else 1
