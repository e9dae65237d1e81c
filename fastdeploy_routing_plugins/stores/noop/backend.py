"""The backend of ``noop``: counts what it is given and keeps nothing."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...backend import BlockingBackend, Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("fastdeploy_routing_plugins.noop")


@dataclass(frozen=True, slots=True)
class NoopStats:
    """What was dropped.

    Attributes:
        puts: Number of objects.
        nbytes: Their payload bytes.
    """

    puts: int = 0
    nbytes: int = 0


class NoopBackend(BlockingBackend):
    """Takes everything, keeps nothing, and says so when it is opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = NoopStats()

    def stats(self) -> NoopStats:
        """Returns what was dropped so far."""
        return self._stats

    def _open(self) -> None:
        _log.warning("store 'noop' keeps nothing: routing is checked and dropped, and no trainer can read it")

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        with self._lock:
            self._stats = NoopStats(self._stats.puts + 1, self._stats.nbytes + payload.nbytes)

    def _delete(self, names: Sequence[str]) -> int:
        return 0
