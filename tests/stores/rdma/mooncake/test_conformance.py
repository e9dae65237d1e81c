"""The conformance kit over Mooncake's TCP mode, in a network of its own: Mooncake listens on every interface."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from . import stage

HERE = Path(__file__).parent
# Each opening starts an engine of Mooncake, which takes half a second to end: these open it dozens of times. `make
# test-long` has them, too.
SLOW = ["nothing_leaks", "killed_writer", "many_processes", "random_operations"]
_RUN = """
import sys
sys.path.append(sys.argv.pop(1))
from stores.rdma.mooncake.stage import leave_network
try:
    leave_network()
except OSError as err:
    print(err)
    sys.exit(77)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.skipif(find_spec("mooncake") is None, reason="Mooncake's Transfer Engine is not installed")
def test_the_kit_passes() -> None:
    chosen = [] if "FD_ROUTING_TEST_SOAK_SECONDS" in os.environ else ["-k", " and ".join(f"not {n}" for n in SLOW)]
    command = [sys.executable, "-c", _RUN, str(stage.TESTS), "-q", "-p", "no:cacheprovider", "-n", "4"]
    run = subprocess.run(
        [*command, *chosen, str(HERE / "suite_of_mooncake.py")], capture_output=True, text=True, check=False
    )
    if run.returncode == 77:
        pytest.skip(f"Mooncake listens on every interface, and a network of its own is not allowed: {run.stdout}")
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
