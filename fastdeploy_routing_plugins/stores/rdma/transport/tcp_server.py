"""A producer's TCP server: it sends what the producer holds straight from shared memory."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from ....arena.forks import Forgetful
from ....errors import StoreUnavailableError
from ....threads import begin
from .serving import Connection, Limits

if TYPE_CHECKING:
    from .base import Holdings

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")
_STOP: Final = 1.0  # s until everything has ended
_PAUSE: Final = 0.1  # s after a connection could not be taken
_SELDOM: Final = 10.0  # s between two warnings about that
_BACKLOG: Final = 128
_MOMENT: Final = 0.05  # s that a new reader may wait until another is done
_TURNED_AWAY: Final = 32  # how many at once are told that there are too many; more are just cut


class TcpServer(Forgetful):
    """Serves readers until ``stop``.

    Args:
        holdings: What is served.
        host: The address to listen on.
        port: The port; 0: any free one.
        secret: What readers must know; empty: nothing.
        owner: The producer's id; readers that mean another one are turned away. Empty: all are served.
        limits: What one server, and one connection, may take.

    Attributes:
        host: The address.
        port: The port.

    Raises:
        StoreUnavailableError: it cannot listen there.
    """

    def __init__(
        self,
        holdings: Holdings,
        host: str,
        port: int = 0,
        secret: str = "",
        *,
        owner: str = "",
        limits: Limits | None = None,
    ) -> None:
        self._holdings = holdings
        self._secret = secret
        self._owner = owner
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._stopping = threading.Event()
        self._warned = 0.0
        self._listener = _listen(host, port)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="fd-routing-tcp", daemon=True)
        self.remember()
        try:
            begin(self._thread)
        except BaseException:
            self._listener.close()
            raise

    @property
    def address(self) -> str:
        """``host:port``, for readers."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many readers are connected."""
        return len(self._connections)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError as err:
                if not self._stopping.is_set():
                    self._failed(err)
                continue
            try:
                self._start(peer)
            except (RuntimeError, OSError) as err:  # no thread to be had, or the peer is gone already
                peer.close()
                self._failed(err)

    def _failed(self, err: Exception) -> None:
        """Takes note that a connection could not be taken, as when there are no descriptors left."""
        now = time.monotonic()
        if now >= self._warned + _SELDOM:
            self._warned = now
            _log.warning("a reader's connection to %s cannot be served: %s", self.address, err)
        self._stopping.wait(_PAUSE)

    def _start(self, peer: socket.socket) -> None:
        excess = len(self._connections) - self._limits.connections
        if excess >= _TURNED_AWAY:
            peer.close()
            return
        full = excess >= 0 and not self._make_room()
        served = Connection(peer, self._holdings, self._secret, self._owner, self._limits, self._stopping, busy=full)
        with self._lock:
            self._connections.add(served)
        try:
            threading.Thread(target=self._serve, args=(served,), name="fd-routing-tcp-peer", daemon=True).start()
        except BaseException:
            with self._lock:
                self._connections.discard(served)
            raise

    def _serve(self, served: Connection) -> None:
        try:
            served.run()
        finally:
            with self._lock:
                self._connections.discard(served)
            served.close()

    def _make_room(self) -> bool:
        """Ends the connection that has been idle longest, which its reader will open again; False if none is."""
        end = time.monotonic() + _MOMENT
        while True:
            with self._lock:
                longest = min(self._connections, key=lambda each: each.idle_since, default=None)
                if longest is not None and time.monotonic() - longest.idle_since >= self._limits.idle:
                    self._connections.discard(longest)
                    longest.shutdown()
                    return True
            if time.monotonic() >= end:
                return False
            self._stopping.wait(0.002)

    def stop(self) -> None:
        """Ends all connections, in the middle of a reply too, and waits for it for at most a second."""
        self._stopping.set()
        end = time.monotonic() + _STOP
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing it would not wake the thread that accepts
        self._thread.join(_STOP)
        self._listener.close()
        while (left := list(self._connections)) and time.monotonic() < end:
            for each in left:
                each.shutdown()
            time.sleep(0.005)

    def forget(self) -> None:
        """In a forked child, which serves nobody: closes the descriptors, which would keep the port and the peers."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopping.set()
        self._listener.close()
        for each in self._connections:
            each.close()
        self._connections = set()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as err:
        raise StoreUnavailableError(
            f"cannot listen on {host}:{port}: {err.strerror or err}",
            hint="option bind is an address of this host, port one that is free",
        ) from err
    return listener
