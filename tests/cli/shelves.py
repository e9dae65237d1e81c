"""Producers of ``rdma`` that hold objects on a shelf, and what they leave when they are killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRODUCER = """
import sys
from fastdeploy_routing_plugins.backend import Buffer
from fastdeploy_routing_plugins.stores.rdma.place import ArenaInfo
from fastdeploy_routing_plugins.stores.rdma.shelf import Shelf, ShelfText

folder, producer, namespace, objects = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
text = ShelfText(1, "a" * 32, producer, namespace, "")
shelf = Shelf(folder, 2 << 20, text, lambda file: ArenaInfo(file.path, file.nbytes, file.head.key))
for number in range(objects):
    shelf.hold(f"default/r{number}/0", b"header", Buffer(memoryview(bytes(1000))))
print(shelf.arenas.infos[0].path, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def producer(
    folder: Path, *, name: str = "someone", namespace: str = "default", objects: int = 2
) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that holds objects on a shelf; its ``args`` end with the shelf's path."""
    command = [sys.executable, "-c", PRODUCER, str(folder), name, namespace, str(objects)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip()
            yield process
        finally:
            process.kill()


def leave_shelf(folder: Path, *, age: float = 3600.0, **how: object) -> str:
    """Leaves the shelf of a producer that was killed, as if it was made ``age`` seconds ago; returns its path."""
    before = set(os.listdir(folder))
    with producer(folder, **how):  # type: ignore[arg-type]
        pass
    (name,) = (each for each in set(os.listdir(folder)) - before if each.endswith(".shelf"))
    path = str(folder / name)
    made = time.time() - age
    os.utime(path, (made, made))
    return path
