"""Work on much memory, divided between the caller's thread and another one."""

from __future__ import annotations

import os
import time
from _thread import allocate_lock, start_new_thread
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

WORTH: Final = 8 << 20  # bytes from which on another thread is worth its start, some 0.1 ms
_LOOK: Final = 0.1  # s
_BEGINS: Final = 1.0  # s within which a thread begins


def is_worth(nbytes: int) -> bool:
    """Whether work on so many bytes is sooner done by two threads."""
    return nbytes >= WORTH and len(os.sched_getaffinity(0)) > 1


def share(tasks: Sequence[T], work: Callable[[T], None]) -> None:
    """Does the work of each task, in no order, in this thread and in another one.

    NumPy copies without the interpreter's lock, so one thread copies while the other one digests. The other thread
    has ended when this returns, or raises, whatever interrupts it: an interrupt ends both after the task at hand.

    Args:
        tasks: What to do.
        work: Does a task. Called from both threads.

    Raises:
        BaseException: What ``work`` raised in either thread; in this one if in both.
    """
    left = iter(tasks)
    helper = _Helper()

    def go() -> None:
        for task in left:
            if helper.over:
                break
            work(task)

    try:
        try:
            helper.start(go)
            go()
        finally:
            helper.over = True
    finally:
        helper.wait()
    helper.complain()


class _Helper:
    """A thread beside the caller's.

    Not a ``threading.Thread``: an interrupt while that one starts can leave its locks locked, and the thread waiting
    for them for ever.

    Attributes:
        over: Set if no further task should be begun: by this thread when it fails, by the other when it is done.
    """

    def __init__(self) -> None:
        self.over = False
        self._started = self._begun = self._ended = False
        self._running = allocate_lock()
        self._running.acquire()
        self._failed: list[BaseException] = []

    def start(self, function: Callable[[], None]) -> None:
        """Begins to call a function. Without a thread to be had, it is not called."""
        with suppress(RuntimeError):
            start_new_thread(self._run, (function,))
            self._started = True  # if an interrupt comes before, ``_begun`` tells

    def _run(self, function: Callable[[], None]) -> None:
        try:
            # In this order, and ``wait`` in the other one: either this sees that all is over, or that waits for it.
            self._begun = True
            if not self.over:
                function()
        except BaseException as err:  # noqa: BLE001 - raised again in the caller's thread
            self._failed.append(err)
            self.over = True
        finally:
            self._ended = True
            self._running.release()

    def wait(self) -> None:
        """Waits until it has ended; an interrupt meanwhile is raised after that.

        One that does not begin is not waited for: it does nothing when it does, or has died for lack of memory.
        """
        interrupts: list[BaseException] = []
        patience = time.monotonic() + _BEGINS
        while not self._ended and (self._begun or (self._started and time.monotonic() < patience)):
            try:
                self._running.acquire(timeout=_LOOK)
            except BaseException as err:  # noqa: BLE001
                interrupts.append(err)
        if interrupts:
            raise interrupts.pop()

    def complain(self) -> None:
        """Raises what the function raised."""
        if self._failed:
            raise self._failed.pop()  # not kept in a variable, whose frame the error would keep
