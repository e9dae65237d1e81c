"""Signals whose handler raises in the middle of whatever a test does."""

from __future__ import annotations

import contextlib
import gc
import signal
import time
from collections.abc import Callable, Iterator


class Interrupted(Exception):
    """What a signal's handler raises."""


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """SIGALRM raises :class:`Interrupted` in here.

    Nothing is collected meanwhile: what is raised in the middle of a collection (hypothesis measures each of them) is
    not raised in the test, but reported as an error that nobody could catch.
    """

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    collects, before = gc.isenabled(), signal.signal(signal.SIGALRM, interrupt)
    gc.disable()
    try:
        yield
    finally:
        stop_alarm()
        signal.signal(signal.SIGALRM, before)
        if collects:
            gc.enable()


def stop_alarm() -> None:
    """No alarm comes any more, not even one that was on its way."""
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        except Interrupted:
            continue


def interrupted(call: Callable[[], object], after: float, seconds: float = 1.0) -> int:
    """Makes a call again and again, and interrupts it; returns how often an interrupt reached the caller.

    Args:
        call: What is interrupted. From Python 3.12 on, what is raised at a loop's jump may miss a ``try`` around the
            loop, so the loop belongs in here.
        after: Seconds from the beginning of a call to its interrupt.
        seconds: For how long.
    """
    reached, end = 0, time.monotonic() + seconds
    with alarms():
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, after)
                call()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                reached += 1
    return reached
