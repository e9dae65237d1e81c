"""The usual reads of plain code, without coroutines: whole rollouts that are there, in a blocking backend.

What is not like that, and whatever goes wrong, is left to ``fetching``, which tells why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend import BlockingBackend
from ..envelope import Identity
from ..errors import StoreUnavailableError
from ..keys import MAX_ATTEMPT, as_key, check_int
from . import reading
from .assemble import Attempts
from .fetching import Clock, sole_record
from .forks import at_work
from .objects import READABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backend import Choose, Deliver
    from ..keys import RoutingKey
    from ..record import RoutingRecord
    from .routing_store import RoutingStore


class Direct:
    """Gets from one store.

    Args:
        store: The store.
        blocking: Its backend.
    """

    def __init__(self, store: RoutingStore, blocking: BlockingBackend) -> None:
        self._store = store
        self._objects = store._objects
        self._look = blocking._look
        self._gives_along = type(blocking)._look is not BlockingBackend._look
        self._collect = blocking._collect
        self._run = at_work().run

    def get(
        self, key: str | RoutingKey, choice: int, timeout: float, min_attempt: int, verify: bool, view: bool
    ) -> RoutingRecord | None:
        """Returns a whole rollout; None if it has to be looked for in the general way. See ``RoutingStore.get``.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        if not self._gives_along:
            return None
        store = self._store
        self._objects.need(READABLE)
        key = as_key(key, choice)
        Clock(timeout)
        lowest = check_int("min_attempt", min_attempt, MAX_ATTEMPT)
        prefix = key.prefix(store.namespace)
        try:
            names, blob = self._objects.looked(prefix, self._run(self._look, prefix, view))
        except StoreUnavailableError:
            raise  # that took its time, which nobody has twice
        except Exception:  # noqa: BLE001 - the general way meets it again
            return None
        sole = Attempts.sole(prefix, names)
        if blob is None or sole is None or sole[0] < lowest:
            return None
        known = Identity(store.namespace, key, *sole)
        piece = reading.Piece(names[0], sole[1], sole[1].part, sole[1].part, known)
        return sole_record(store.schema, key, sole[0], piece, *reading.decode_piece(piece, blob, verify=verify))

    def collect(
        self,
        prefixes: Sequence[str],
        choose: Choose,
        deliver: Deliver,
    ) -> None:
        """Hands over what is there of several rollouts; see ``BlockingBackend._collect``. What fails is left out.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        self._objects.need(READABLE)
        try:
            self._run(self._collect, prefixes, choose, deliver)
        except StoreUnavailableError:
            raise  # that took its time, which nobody has twice
        except Exception:  # noqa: BLE001, S110 - the general way meets it again
            pass
