"""What a worker does once, before the first operation: it looks at the namespace, and at what dead runs left."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

from ..errors import RoutingError
from ..spec import Capability
from ..wording import counted
from .adoption import adopt_others
from .messages import Message, Note, short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..store.sync import SyncStore
    from .adoption import Run
    from .operations import Setup

_COUNTING = 10.0  # s that listing the namespace may hold the first operation up


def look_around(setup: Setup, store: SyncStore, own: str, run: Run, homes: list[SyncStore]) -> Iterator[Message]:
    """Yields a warning about a used namespace, and what became of dead runs' arenas.

    Args:
        setup: The run's setup.
        store: The open store.
        own: Path of the run's arena.
        run: See ``adopt``.
        homes: Takes the stores that must stay open, or what they took from dead runs is gone.
    """
    if Capability.LIST in store.resolved.spec.capabilities:
        notes: queue.SimpleQueue[Note] = queue.SimpleQueue()
        counting = threading.Thread(target=_count, args=(store, notes), daemon=True)
        counting.start()
        counting.join(_COUNTING)  # the first operation does not wait longer, nor for a store that hangs
        while not notes.empty():
            yield notes.get()
    yield from adopt_others(setup, own, run, homes.append)


def _count(store: SyncStore, notes: queue.SimpleQueue[Note]) -> None:
    where = f"namespace {store.namespace!r} of store {store.resolved.name!r}"
    began = time.monotonic()
    try:
        count = len(store.list())
    except RoutingError as err:
        notes.put(Note(logging.WARNING, short(f"{where} cannot be listed: {err}")))
        return
    if count and time.monotonic() - began < _COUNTING:  # later the list has rollouts of this run
        cure = "set FD_ROUTING_NAMESPACE to a name of its own for each run"
        notes.put(Note(logging.WARNING, f"{where} already holds {counted(count, 'rollout')}; {cure}"))
