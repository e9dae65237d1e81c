"""The conformance kit over an RDMA device, in a process of its own that the engine may end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .devices import Lane

# Each opening starts an engine of Mooncake; these open it dozens of times.
SLOW = ["nothing_leaks", "killed_writer", "many_processes", "random_operations"]


def test_the_kit_passes(found: Lane) -> None:
    whole = "FD_ROUTING_TEST_SOAK_SECONDS" in os.environ
    chosen = [] if whole else ["-k", " and ".join(f"not {name}" for name in SLOW)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, "tests/rdma/suite.py"]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    print(run.stdout[-300:])
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
