"""A worker that finds no room for what it is about to hold: it waits for some, as for a store that is away."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOUNT = 'mount -t tmpfs -o size=40m tmpfs "$1" && exec "$2" -c "$3" "$1"'
SCRIPT = """
import os, sys, threading, time
from pathlib import Path
from fastdeploy_routing_plugins import WriterLimits, open_writer
from fastdeploy_routing_plugins.errors import ArenaRoomError
from tests.stores.rdma.test_through_writer import SCHEMA, routing

def fill(folder):
    free = os.statvfs(folder)
    (folder / "full").write_bytes(bytes(free.f_bavail * free.f_frsize))

def main(folder):
    own = {"arena_dir": str(folder), "capacity": 8 << 20, "linger": 0}
    config = {"routing_store_type": "rdma", "routing_store_config": own}
    for patience, freed in ((60.0, True), (0.5, False)):
        limits = WriterLimits(arena_bytes=8 << 20, retry_for=patience)
        with open_writer(config, schema=SCHEMA, limits=limits) as writer:
            fill(folder)
            ticket = writer.submit("a", routing(1))
            time.sleep(1)
            if freed:
                assert not ticket.done()
                (folder / "full").unlink()
            try:
                ticket.result(30)
                print("stored")
            except ArenaRoomError:
                print("arena_room")
        (folder / "full").unlink(missing_ok=True)

main(Path(sys.argv[1]))
"""


@lru_cache(maxsize=1)
def unshared() -> list[str]:
    """Returns the command that makes a namespace of mounts."""
    for command in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        if not subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode:
            return command
    pytest.skip("no namespace of mounts is allowed here")


def test_a_part_waits_until_others_give_memory_back(tmp_path: Path) -> None:
    command = [*unshared(), "sh", "-c", MOUNT, "sh", str(tmp_path), sys.executable, SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout.split() == ["stored", "arena_room"], done.stderr
    assert done.stderr.count("the store takes nothing at the moment, each part is tried again for up to 60 s") == 1
