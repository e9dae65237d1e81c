"""What becomes of a store that nobody closed: its threads, descriptors and shared memory go with it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .producing import Producer

_log = logging.getLogger(__name__)


class Closes(Protocol):
    """Something that is closed."""

    def close(self) -> None:
        """Closes it."""


class Unclosed:
    """Closes what a store has when it is dropped, or the interpreter ends, before the store is closed.

    Args:
        store: The store's backend, to which nothing that lives on may refer.
        others: What the store closes, in order.

    Attributes:
        producer: The store's producer, which ends before that; None: it has none.
    """

    def __init__(self, store: object, others: Sequence[Closes]) -> None:
        self.producer: Producer | None = None
        self._pid = os.getpid()
        self._others = others
        self._finalizer = weakref.finalize(store, self._dropped)
        self._finalizer.atexit = False
        atexit.register(self._at_exit)

    def closed(self) -> None:
        """Takes note that the store was closed."""
        self._finalizer.detach()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if self._finalizer.detach() is not None and os.getpid() == self._pid:
            self._close()

    def _dropped(self) -> None:
        """Closes everything. In a thread: the garbage collector calls this, whoever holds which lock."""
        atexit.unregister(self._at_exit)
        if os.getpid() != self._pid:
            if self.producer is not None:
                self.producer.forget()
            return
        with contextlib.suppress(RuntimeError):  # no thread can be started when the interpreter ends
            threading.Thread(target=self._end, name="fd-routing-dropped", daemon=True).start()

    def _end(self) -> None:
        if self.producer is not None:
            _log.warning("a store rdma that had put something was dropped without close(): what it held goes with it")
        self._close()

    def _close(self) -> None:
        if self.producer is not None:
            self.producer.stop()
        for each in self._others:
            each.close()
