"""What a process put into p2pstore, and p2pstore's client, which serves it: one for all stores opened alike."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config import RdmaConfig
    from .client import P2pClient
    from .index import Place


class Held:
    """What this process put and is to serve, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._headers: dict[str, tuple[bytes, Place]] = {}
        self._names: dict[str, str] = {}  # by key

    def add(self, name: str, header: bytes, place: Place) -> None:
        """Remembers an object."""
        with self._lock:
            self._headers[name] = (header, place)
            if place.key:
                self._names[place.key] = name

    def get(self, name: str) -> tuple[bytes, Place] | None:
        """Returns an object's header and place."""
        return self._headers.get(name)

    def under(self, key: str) -> str:
        """Returns whose value is under a key, or nothing."""
        return self._names.get(key, "")

    def pop(self, name: str) -> tuple[bytes, Place] | None:
        """Forgets an object."""
        with self._lock:
            known = self._headers.pop(name, None)
            if known is not None and self._names.get(known[1].key) == name:
                del self._names[known[1].key]
            return known

    def items(self) -> list[tuple[str, Place]]:
        """Returns all names and places."""
        with self._lock:
            return [(name, place) for name, (_, place) in self._headers.items()]

    def __len__(self) -> int:
        return len(self._headers)


@dataclass(slots=True)
class _Clients:
    """The clients of one process, and how many stores use each."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    used: dict[RdmaConfig, tuple[P2pClient, int]] = field(default_factory=dict)


_clients = _Clients()


def _here() -> _Clients:
    """A forked child begins anew: threads and sockets of its parent's clients are not its own."""
    global _clients
    if _clients.pid != os.getpid():
        _clients = _Clients()
    return _clients


def acquire(config: RdmaConfig, make: Callable[[], P2pClient]) -> P2pClient:
    """Returns the process' client for a configuration; makes it if there is none."""
    here = _here()
    with here.lock:
        client, users = here.used.get(config, (None, 0))
        if client is None:
            client = make()
        here.used[config] = (client, users + 1)
        return client


def release(config: RdmaConfig) -> bool:
    """Gives a client back; returns whether that was its last user, who then has to close it."""
    here = _here()
    with here.lock:
        client, users = here.used.pop(config)
        if users > 1:
            here.used[config] = (client, users - 1)
        return users == 1
