"""Ending on a signal without leaving anything behind."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Stop:
    """What told the process to end, if anything did.

    A signal's handler raises, but Python drops what is raised inside a destructor; ``check`` raises it afterwards.
    """

    def __init__(self) -> None:
        self._number = 0

    def check(self) -> None:
        """Raises KeyboardInterrupt or SystemExit if a signal has come. Long loops call it in each round."""
        if self._number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._number:
            raise SystemExit(128 + self._number)

    def leave(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        self._number = number
        while frame is not None:
            if frame.f_code.co_name == "__del__":
                return
            frame = frame.f_back
        self.check()


@contextmanager
def cleaning_up() -> Iterator[Stop]:
    """Lets the clean-up of a ``with`` block run when the process is told to end, or its terminal goes away."""
    # What is ignored, as under nohup, stays ignored.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) in usual}
    stop = Stop()
    # An interrupt between making a coroutine and running it is no fault that people should read about.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    for number in before:
        signal.signal(number, stop.leave)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
