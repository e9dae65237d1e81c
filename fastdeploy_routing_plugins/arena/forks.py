"""What lets go of locks and sockets in a forked child, whose threads are gone and whose sockets are its parent's."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from functools import lru_cache


class Forgetful(ABC):
    """Something that a forked child must not go on using as it is."""

    @abstractmethod
    def forget(self) -> None:
        """Called in a forked child, before anything else happens there."""

    def remember(self) -> None:
        """Sees to it that ``forget`` is called; once, at the end of the constructor."""
        _alive().add(self)


@lru_cache(maxsize=1)
def _alive() -> weakref.WeakSet[Forgetful]:
    alive: weakref.WeakSet[Forgetful] = weakref.WeakSet()

    def forget() -> None:
        for each in list(alive):
            each.forget()

    os.register_at_fork(after_in_child=forget)
    return alive
