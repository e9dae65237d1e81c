"""Forks wait until no blocking backend is at work in another thread.

A library that a backend calls may have locks of its own (SQLite has); a child that is forked while another thread
holds one of them inherits it, held for ever.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import Final

PATIENCE: Final = 1.0  # s; a fork goes ahead after it, be the calls over or not


class AtWork:
    """The calls at work, each in a ``with`` block."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[int, int] = {}  # by thread
        os.register_at_fork(before=self._before, after_in_parent=self._changed.release, after_in_child=self._in_child)

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:  # held while a fork is under way
            self._calls[me] = self._calls.get(me, 0) + 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self._changed:
            left = self._calls.get(me, 1) - 1
            if left:
                self._calls[me] = left
            else:
                self._calls.pop(me, None)
                self._changed.notify_all()

    def _before(self) -> None:
        me = threading.get_ident()
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._calls.keys() - {me}, PATIENCE)

    def _in_child(self) -> None:
        me = threading.get_ident()
        self._calls = {me: self._calls[me]} if me in self._calls else {}
        self._changed.release()


@lru_cache(maxsize=1)
def at_work() -> AtWork:
    """Returns the one of this process."""
    return AtWork()
