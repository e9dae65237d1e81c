"""A lock that is taken if it is free, and never waited for: ``TryLock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class TryLock:
    """A lock that no interrupt leaves locked.

    After ``if lock.acquire(blocking=False):`` a signal's handler may raise before the ``try`` that follows begins, and
    nobody gives the lock back. Here it is known whose it is, in whatever order things happen.
    """

    def __init__(self) -> None:
        self._owner: dict[None, object] = {}  # ``setdefault`` takes and tells in one step

    def run(self, call: Callable[[], Any]) -> bool:
        """Makes a call unless another one is under way; returns whether it was made."""
        me = object()
        try:
            if self._owner.setdefault(None, me) is not me:
                return False
            call()
            return True
        finally:
            if self._owner.get(None) is me:
                del self._owner[None]
