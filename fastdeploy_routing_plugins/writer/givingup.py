"""Lets nobody wait for what is lost: ``GivingUp`` aborts an attempt of which something could not be stored."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ..errors import ConflictError, RoutingError, StoreUnavailableError, SupersededError
from .operations import PutOp, SealOp, describe

if TYPE_CHECKING:
    from ..keys import RoutingKey
    from ..store.sync import SyncStore
    from .operations import Operation

_OWED = 10_000  # aborts that are kept for a store that does not answer now
_AT_ONCE = 16  # of them are done after something that worked


class GivingUp:
    """Aborts attempts; while the store does not answer they are owed. Safe to call from several threads.

    Args:
        store: The open store.
    """

    def __init__(self, store: SyncStore) -> None:
        self._store = store
        self._owed: OrderedDict[tuple[RoutingKey, int], str] = OrderedDict()
        self._lock = threading.Lock()

    def lost(self, operation: Operation, err: RoutingError) -> None:
        """Aborts the attempt that an operation belonged to, or owes that.

        An attempt that contradicts itself says so to its readers, and nobody waits for one that another has followed.
        """
        if not isinstance(operation, (PutOp, SealOp)) or isinstance(err, (ConflictError, SupersededError)):
            return
        what = operation.key, operation.attempt
        with self._lock:
            self._owed.pop(what, None)
        self._abort(what, f"{describe(operation)} failed: {err.message}")

    def catch_up(self, *, everything: bool = False) -> None:
        """Does what is owed, some or all of it, as far as the store answers; something has just worked."""
        owed = len(self._owed)
        for _ in range(owed if everything else min(_AT_ONCE, owed)):
            with self._lock:
                if not self._owed:
                    return
                what, reason = self._owed.popitem(last=False)
            if not self._abort(what, reason):
                return

    def _abort(self, what: tuple[RoutingKey, int], reason: str) -> bool:
        try:
            self._store.abort(what[0], reason, attempt=what[1])
        except StoreUnavailableError:
            with self._lock:
                self._owed[what] = reason
                while len(self._owed) > _OWED:
                    self._owed.popitem(last=False)
            return False
        except RoutingError:
            return True  # a newer attempt is there, or the store takes nothing of this rollout, marks included
        return True
