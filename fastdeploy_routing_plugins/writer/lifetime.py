"""What happens to open writers when their process forks or ends."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import RoutingError

if TYPE_CHECKING:
    from ..arena.arena import Arena
    from .gate import Gate
    from .routing_writer import RoutingWriter
    from .supervisor import Supervisor

_log = logging.getLogger("fastdeploy_routing_plugins.writer")


class _Open:
    """The writers of this process."""

    def __init__(self) -> None:
        self.writers: weakref.WeakSet[RoutingWriter] = weakref.WeakSet()
        atexit.register(self.at_exit)
        os.register_at_fork(after_in_child=self.in_child)

    def at_exit(self) -> None:
        """What is pending when the interpreter ends gets a moment; then the worker goes on alone."""
        for writer in list(self.writers):
            try:
                writer.close(writer.limits.exit_wait)
            except RoutingError as err:
                _log.error("closing at exit: %s", err)

    def in_child(self) -> None:
        """A forked child is no owner, and must not keep the worker from noticing the engine's end."""
        for writer in list(self.writers):
            writer.forget()
        self.writers.clear()


@lru_cache(maxsize=1)
def _open() -> _Open:
    return _Open()


def opened(writer: RoutingWriter) -> None:
    """Takes note of an open writer."""
    _open().writers.add(writer)


def closed(writer: RoutingWriter) -> None:
    """Takes note that it was closed."""
    _open().writers.discard(writer)


def leave(supervisor: Supervisor, gate: Gate, arena: Arena) -> None:
    """Lets a worker go on alone with what is pending."""
    lives = supervisor.pid is not None
    supervisor.leave()
    gate.ledger.abandon("the writer was closed before this ended; its worker goes on with it alone")
    arena.close(remove=False)
    if not lives:
        _log.error("no store worker lives; the next writer, or `fd-routing clean`, stores what is left")


def dropped(supervisor: Supervisor, gate: Gate, arena: Arena) -> None:
    """Ends a writer that nobody closed. In a thread: the garbage collector calls this, whoever holds which lock."""

    def body() -> None:
        _log.warning("a routing writer was dropped without close(); its worker goes on with what is pending alone")
        leave(supervisor, gate, arena)

    threading.Thread(target=body, name="fd-routing-dropped", daemon=True).start()
