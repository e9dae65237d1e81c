"""Forks wait until no blocking backend is at work in another thread.

A library that a backend calls may have locks of its own (SQLite has); a child that is forked while another thread
holds one of them inherits it, held for ever.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE: Final = 1.0  # s; a fork goes ahead after it, be the calls over or not
_LOOK: Final = 0.0001  # s between looks


class AtWork:
    """The calls at work. No lock guards them: a thread writes its own entry only, and looks for a fork after that."""

    def __init__(self) -> None:
        self.threads: dict[int, None] = {}
        self._forking: dict[int, None] = {}
        os.register_at_fork(before=self._before, after_in_parent=self._over, after_in_child=self._in_child)

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function; no fork comes between, unless it takes too long."""
        me = get_ident()
        if me in self.threads:  # a call within a call
            return function(*args)
        self.threads[me] = None
        try:
            while self._forking and me not in self._forking:
                self.threads.pop(me, None)
                time.sleep(_LOOK)
                self.threads[me] = None
            return function(*args)
        finally:
            self.threads.pop(me, None)

    def _before(self) -> None:
        me, end = get_ident(), time.monotonic() + PATIENCE
        self._forking[me] = None
        while self.threads.keys() - {me} and time.monotonic() < end:
            time.sleep(_LOOK)

    def _over(self) -> None:
        self._forking.pop(get_ident(), None)

    def _in_child(self) -> None:
        self._forking = {}
        me = get_ident()
        self.threads = {me: None} if me in self.threads else {}


@lru_cache(maxsize=1)
def at_work() -> AtWork:
    """Returns the one of this process."""
    return AtWork()
