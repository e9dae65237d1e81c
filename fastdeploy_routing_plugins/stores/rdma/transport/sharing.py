"""Work on much memory, divided between the caller's thread and another one."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

WORTH: Final = 8 << 20  # bytes from which on another thread is worth its start, some 0.1 ms


def is_worth(nbytes: int) -> bool:
    """Whether work on so many bytes is sooner done by two threads."""
    return nbytes >= WORTH and len(os.sched_getaffinity(0)) > 1


def share(tasks: Sequence[T], work: Callable[[T], None]) -> None:
    """Does the work of each task, in no order, in this thread and in another one.

    NumPy copies without the interpreter's lock, so one thread copies while the other one digests.

    Args:
        tasks: What to do.
        work: Does a task. Called from both threads.

    Raises:
        BaseException: What ``work`` raised in either thread; the other one has ended then, too.
    """
    left = iter(tasks)
    failed: list[BaseException] = []

    def go() -> None:
        try:
            for task in left:
                if failed:
                    break
                work(task)
        except BaseException as err:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(err)

    helper = threading.Thread(target=go, name="fd-routing-copy", daemon=True)
    with suppress(RuntimeError):  # no more threads are to be had: this one does everything
        helper.start()
    try:
        go()
    finally:
        if helper.ident is not None:
            helper.join()
    if failed:
        raise failed.pop(0)  # not kept in a variable, whose frame the error would keep
