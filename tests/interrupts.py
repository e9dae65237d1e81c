"""Signals whose handler raises in the middle of whatever a test does."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable


class Interrupted(Exception):
    """What a signal's handler raises."""


def interrupted(call: Callable[[], object], after: float, seconds: float = 1.0) -> int:
    """Makes a call again and again, and interrupts it; returns how often an interrupt reached the caller.

    Args:
        call: What is interrupted. From Python 3.12 on, what is raised at a loop's jump may miss a ``try`` around the
            loop, so the loop belongs in here.
        after: Seconds from the beginning of a call to its interrupt.
        seconds: For how long.
    """

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    reached, end = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, after)
                call()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                reached += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return reached
