"""Whether a store keeps what it takes, asked when what it took is gone right afterwards: ``Honesty``."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ..errors import BackendError

if TYPE_CHECKING:
    from ..store.sync import SyncStore

_PROBES = 24  # a store that loses every third object passes once in 17,000 times
_TRUST = 60.0  # s


class VanishedError(BackendError):
    """A store does not have what it said it took; trying again could bring back what somebody deleted."""


class Honesty:
    """What is known of a store's honesty.

    An object that is gone when the store is listed right after the put was either read and deleted by somebody
    fast, or never stored. Marks that nobody else knows of tell the two apart, as far as anything can. A store that
    lost one is not believed again; one that kept all is, for a minute.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost_one = False
        self._trusted_until = 0.0

    def holds(self, store: SyncStore) -> bool:
        """Returns whether what is gone was deleted by somebody else.

        Raises:
            RoutingError: the store cannot be asked now.
        """
        with self._lock:
            if time.monotonic() >= self._trusted_until:
                self._lost_one = self._lost_one or not all(store.keeps() for _ in range(_PROBES))
                self._trusted_until = time.monotonic() + _TRUST
            return not self._lost_one
