"""What a dead store worker kept, until its successor takes it over: nobody else who opens the store does."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import open_store, open_writer
from fastdeploy_routing_plugins.errors import AbortedError, AbsentError

from .test_through_writer import PATIENCE, SCHEMA, Place, clean, kill_both, place, read, routing

__all__ = ["place"]  # the fixture

LARGE = 50_000  # tokens; 1.1 MiB, of which the arena has no room for all
MANY = 10
OPTIONS = {"capacity": 16 << 20, "linger": 0}
ENGINE = """
import json, sys
from fastdeploy_routing_plugins import open_writer
from tests.stores.rdma.test_heirs import LARGE, MANY
from tests.stores.rdma.test_through_writer import SCHEMA, routing
writer = open_writer(json.loads(sys.argv[1]), schema=SCHEMA, limits=json.loads(sys.argv[2]))
writer.submit("whole", routing(1))
writer.submit("pieces", routing(7)[:, :30], tokens=(0, 30))
writer.submit("pieces", routing(7)[:, 30:], tokens=(30, 50))
writer.seal("pieces", 50)
writer.submit("gone", routing(7)[:, :30], tokens=(0, 30))
writer.abort("gone", "because")
for number in range(MANY):
    writer.submit(f"large:{number}", routing(number, LARGE))
writer.flush().check()
print(writer.stats().worker_pid, flush=True)
sys.stdin.readline()
"""


def limits(place: Place, spill: Path) -> dict[str, Any]:
    return {**place.limits, "on_full_wait": 0.1, "spill_dir": str(spill)}


def leave_behind(place: Place, spill: Path, **options: Any) -> None:
    """Hands much over, and kills engine and worker."""
    config = json.dumps(place.config(**OPTIONS, **options))
    command = [sys.executable, "-c", ENGINE, config, json.dumps(limits(place, spill))]
    kill_both(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


def look(place: Place) -> None:
    """Opens the store as the producer that is dead, and only reads."""
    with open_store(place.config(producer="engine"), schema=SCHEMA) as store:
        store.list()
        with pytest.raises(AbsentError):
            store.get("never")


def try_clean(place: Place) -> None:
    """Shows what would be done, and tries to do it, twice."""
    shown = clean(place, "--dry-run")
    assert (shown.returncode, "stays: an engine with its configuration takes it over" in shown.stdout) == (0, True)
    for _ in range(2):
        done = clean(place)
        assert (done.returncode, "takes it over; --discard removes it" in done.stderr) == (1, True)


@pytest.mark.parametrize("place", ["shm"], indirect=True)
@pytest.mark.parametrize("between", [look, try_clean])
@pytest.mark.parametrize("options", [{}, {"producer": "engine"}], ids=["anonymous", "named"])
def test_the_next_engine_finds_everything(
    place: Place,
    between: Callable[[Place], None],
    options: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = place.config(**OPTIONS, **options)
    with open_store(place.config(), schema=SCHEMA) as store:
        leave_behind(place, tmp_path, **options)
        between(place)
        with open_writer(config, schema=SCHEMA, limits=limits(place, tmp_path)) as writer:
            writer.submit("new", routing(3))
            writer.flush(PATIENCE).check()
            for key, expected in {"whole": routing(1), "pieces": routing(7), "new": routing(3)}.items():
                assert np.array_equal(read(store, key), expected)
            for number in range(MANY):
                assert np.array_equal(read(store, f"large:{number}"), routing(number, LARGE))
            with pytest.raises(AbortedError, match="because"):
                store.get("gone")
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []
