"""What the arena's tests share: memory that looks like an arena, and processes to kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings

from fastdeploy_routing_plugins.arena.arena import Arena, Block
from fastdeploy_routing_plugins.arena.layout import PAGE

SIZE = 1 << 20
"""Bytes of a test's arena: 221 pages of heap."""
TEXT = b'{"for": "adopters"}'
PATIENCE = 60.0
"""Seconds that a test waits for what must happen; far more than it takes."""
FEWER = settings(max_examples=max(20, settings.get_profile("routing").max_examples // 4))
"""For properties whose examples take long, or that several layouts share."""


class Memory:
    """Pages as ``read_block`` and ``write_block`` see them."""

    def __init__(self, pages: int) -> None:
        self.data = memoryview(bytearray(pages * PAGE))
        self.words = self.data.cast("Q")


class Child:
    """A process in one of the roles of ``children.py``; killed at the end of the block, if not before."""

    def __init__(self, role: str, *args: object, pass_fds: tuple[int, ...] = ()) -> None:
        command = [sys.executable, str(Path(__file__).with_name("children.py")), role, *map(str, args)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=pass_fds
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def line(self) -> str:
        """Returns the next line that the child prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the child ended with {self._process.wait()}"
        return line.rstrip("\n")

    def tell(self, text: str = "go") -> None:
        """Sends the child a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Ends the child with SIGKILL, and waits until the kernel has taken its files back."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def finish(self) -> int:
        """Waits for the child's own end and returns its exit status."""
        return self._process.wait(PATIENCE)


def until(what: Callable[[], Any]) -> Any:
    """Waits until something is true and returns it; fails the test if it does not become so."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, f"not within {PATIENCE} s"
        time.sleep(0.005)
    return found


def kill(pid: int) -> None:
    """Kills a process that is nobody's child any more, and waits until it is gone."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pid))


def running(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent's notice does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def allocated(arena: Arena, meta: bytes = b"meta", payload: bytes = b"") -> Block:
    """Returns a block, filled."""
    block = arena.allocate(meta, len(payload))
    assert block is not None
    arena.file.data[block.payload_at : block.payload_at + len(payload)] = payload
    return block


def published(arena: Arena, meta: bytes = b"meta", payload: bytes = b"") -> Block:
    """Returns a block, filled and published."""
    block = allocated(arena, meta, payload)
    assert arena.publish(block) is not None
    return block
