"""What a worker does while its engine waits for room in the arena: it asks the store to let something go."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from ..errors import RoutingError, StoreUnavailableError
from ..spec import Capability
from ..threads import begin

if TYPE_CHECKING:
    from ..arena.view import ArenaView
    from ..store.sync import SyncStore

_AGAIN: Final = 0.02  # s until the engine has found what was given back
_NOTHING: Final = 0.25  # s between questions to a store that lets nothing go


class Relief:
    """Looks whether the engine waits, and asks in a thread of its own, since a store may take its time.

    Args:
        store: What keeps payloads in the arena.
        view: The arena.
    """

    def __init__(self, store: SyncStore, view: ArenaView) -> None:
        self._store = store
        self._view = view
        self._keeps = Capability.RETAIN in store.resolved.spec.capabilities
        self._next = 0.0
        self._asking: threading.Thread | None = None

    def look(self) -> None:
        """Asks the store if the engine waits, and it is not being asked."""
        if not self._keeps or not (wanted := self._view.wanted()) or time.monotonic() < self._next:
            return
        if self._asking is None or not self._asking.is_alive():
            asking = threading.Thread(target=self._ask, args=(wanted,), daemon=True)
            try:
                begin(asking)
                self._asking = asking
            except StoreUnavailableError:  # no thread is left
                self._next = time.monotonic() + _NOTHING

    def _ask(self, nbytes: int) -> None:
        try:
            freed = self._store.make_room(self._view.file, nbytes)
        except RoutingError:
            freed = 0
        self._next = time.monotonic() + (_AGAIN if freed else _NOTHING)
