"""Ending on a signal without leaving anything behind."""

from __future__ import annotations

import contextlib
import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Lets the clean-up of a ``with`` block run when the process is told to end, or its terminal goes away."""
    # What is ignored, as under nohup, stays ignored.
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def no_orphans() -> Iterator[None]:
    """Ends this process's children if the block is interrupted.

    An interrupt may come after a child was started and before the block knows of it; such a child would go on writing
    to what is cleaned up next.
    """
    try:
        yield
    except BaseException:
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        raise


def _children() -> list[int]:
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in path.read_text().split()]
    return found


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
