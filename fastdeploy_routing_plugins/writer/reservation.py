"""``Reservation``: shared memory that an engine gathers into, before it is handed over."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from ..errors import StoreClosedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..arena.arena import Block
    from .gate import Gate
    from .operations import PutOp
    from .stats import Window
    from .tickets import Ticket

_log = logging.getLogger("fastdeploy_routing_plugins.writer")


class Reservation:
    """A place in the arena for one part; ``RoutingWriter.reserve`` makes it.

    Attributes:
        view: Writable ``[layers, tokens, top_k]``, C order; its first content is undefined.
    """

    __slots__ = ("_block", "_gate", "_operation", "_seconds", "_times", "view")

    def __init__(
        self, gate: Gate, operation: PutOp, block: Block, view: npt.NDArray[Any], times: Window, seconds: float
    ) -> None:
        self.view = view
        self._gate = gate
        self._operation = operation
        self._block: Block | None = block
        self._times = times
        self._seconds = seconds

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: object, err: BaseException | None, trace: object) -> None:
        if err is not None:
            self.cancel()
        elif self._block is not None:
            self.publish()

    def publish(self) -> Ticket:
        """Hands over what was gathered into ``view``, which becomes read-only.

        Raises:
            StoreClosedError: It was published or cancelled before, or the writer is closed.
            ArenaFullError: The worker is too far behind.
        """
        block, self._block = self._block, None
        if block is None:
            raise StoreClosedError("this reservation was published or cancelled before")
        began = time.monotonic()
        self.view.setflags(write=False)
        ticket = self._gate.publish(self._operation, block, began)
        self._times.add(self._seconds + time.monotonic() - began)
        return ticket

    def cancel(self) -> None:
        """Gives the memory back; harmless when that is done already."""
        block, self._block = self._block, None
        if block is not None:
            self._gate.arena.release(block)  # which does nothing once the arena is closed

    def __del__(self) -> None:
        if getattr(self, "_block", None) is not None and not self._gate.closed:  # a forked child's is closed
            _log.warning("a reservation for %s was dropped, neither published nor cancelled", self._operation.key)
            self.cancel()
