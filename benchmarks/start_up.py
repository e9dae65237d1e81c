"""How long it takes to start: imports and commands, each in fresh processes, in turn.

    python benchmarks/start_up.py

Gates: a plugin's module imports in under 20 ms beyond pluggy, a process that lists the stores takes less than 200 ms.
Ends with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from _report import Claim, Samples, show

COMMAND = str(Path(sys.executable).with_name("fd-routing"))
LIST = "a process that lists the stores"
PLUGIN = "import of {}'s plugin, beyond pluggy"
_IMPORT = """
import time, pluggy
start = time.perf_counter()
import fastdeploy_routing_plugins.stores.{}.plugin
print(time.perf_counter() - start)
"""
PROCESSES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    LIST: [sys.executable, "-c", "from fastdeploy_routing_plugins import discover; discover()"],
    "fd-routing list": [COMMAND, "list", "--json"],
    "fd-routing --help": [COMMAND, "--help"],
}


def took(command: list[str]) -> float:
    """Returns the milliseconds that a process takes."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - start) * 1e3


def imported(store: str) -> float:
    """Returns the milliseconds that a plugin's import takes in a fresh process."""
    done = subprocess.run([sys.executable, "-c", _IMPORT.format(store)], capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e3


def main() -> int:
    """Measures, and shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    stores = ("local", "noop")
    samples = Samples.of((*PROCESSES, *map(PLUGIN.format, stores)))
    for _ in range(options.rounds):
        for what, command in PROCESSES.items():
            samples.add(what, [took(command)])
        for store in stores:
            samples.add(PLUGIN.format(store), [imported(store)])
    claims = [Claim(PLUGIN.format(store), samples.median(PLUGIN.format(store)), "<=", 20, "ms") for store in stores]
    claims.append(Claim(LIST, samples.median(LIST), "<=", 200, "ms"))
    measures = list(samples.measures("start-up", "ms", "python -c pass"))
    show(measures, claims, {"Python": sys.version.split()[0], "CPUs": os.cpu_count()}, as_json=options.json)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
