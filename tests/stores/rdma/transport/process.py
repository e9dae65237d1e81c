"""A producer in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastdeploy_routing_plugins.stores.rdma import place as places
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place

PATIENCE = 30.0
"""Seconds that a test waits for what must happen; far more than it takes."""


def start(role: str, *args: object) -> subprocess.Popen[str]:
    """Starts one of ``children.py``'s roles."""
    command = [sys.executable, str(Path(__file__).with_name("children.py")), role, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(role: str, *args: object) -> Any:
    """Runs a role to its end and returns what it says."""
    with start(role, *args) as process:
        return answer(process)


def answer(process: subprocess.Popen[str]) -> Any:
    """Returns the next thing that a process says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the process ended with {process.wait()}"
    return json.loads(line)


def tell(process: subprocess.Popen[str], what: Any = None) -> None:
    """Sends a process a line."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


class Process:
    """Runs ``children.serve``; killed at the end of the block, if it has not ended."""

    def __init__(self, folder: str | Path, secret: str = "", stall: float = 30.0) -> None:
        self._process = start("serve", folder, secret, stall)
        self.info = places.decode(bytes.fromhex(answer(self._process)), OwnerInfo)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def ask(self, verb: str, *args: Any) -> Any:
        """Tells the producer to do something and returns its answer."""
        tell(self._process, [verb, *args])
        return answer(self._process)

    def put(self, name: str, size: int = 100_000, *, lent: bool = False) -> Place:
        """Puts an object whose content follows from its name."""
        return places.decode(bytes.fromhex(self.ask("put", name, size, lent)), Place)

    def kill(self) -> None:
        """Ends the producer with SIGKILL."""
        self._process.kill()

    def freeze(self) -> None:
        """Stops the producer, and waits until all of it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        until(lambda: set(_states(self.pid)) == {"T"})

    def thaw(self) -> None:
        """Lets it go on."""
        self._process.send_signal(signal.SIGCONT)


def _states(pid: int) -> list[str]:
    """Returns what each thread of a process does."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]


def until(what: Callable[[], Any]) -> Any:
    """Waits until something is true and returns it; fails the test if it does not become so."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, f"not within {PATIENCE} s"
        time.sleep(0.005)
    return found


def soon(seconds: float = PATIENCE) -> float:
    """Returns a deadline."""
    return time.monotonic() + seconds
