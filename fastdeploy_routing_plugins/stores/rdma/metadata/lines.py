"""A client's connections to the service: by ZeroMQ from anywhere, by a unix socket from the same host and user."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import zmq

from .curve import arm_client
from .framing import MAX_MESSAGE
from .unix_server import CREDENTIALS, SIZE

if TYPE_CHECKING:
    from .whereabouts import Spot

_GRAIN: Final = 50  # ms of timeouts: setting one costs more than asking
_RECONNECT, _RECONNECT_MAX = 50, 200  # ms between tries to connect
_CHUNK: Final = 64 << 10  # bytes read at once
_CONNECT: Final = 1.0  # s


class Line(Protocol):
    """A connection that carries frames."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def send(self, frame: bytes, end: float) -> bool:
        """Sends a frame; returns False if that is not possible in time. Raises OSError if the connection broke."""
        ...

    def receive(self, end: float) -> bytes | None:
        """Returns the next frame; None if none comes in time. Raises OSError if the connection broke."""
        ...

    def wake(self) -> None:
        """Ends a wait in another thread, which then fails."""

    def close(self) -> None:
        """Closes it."""

    def leave_behind(self) -> None:
        """In a forked child: closes what may be closed there without harm to the parent."""


class ZmqLine:
    """A DEALER, which connects by itself, again and again.

    Args:
        context: Where the socket belongs; ending it wakes who waits.
        spot: Where the service is.
    """

    def __init__(self, context: zmq.Context[Any], spot: Spot) -> None:
        self._limit = 0  # the socket's timeout in ms
        sock: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        try:
            sock.linger = 0
            sock.setsockopt(zmq.RECONNECT_IVL, _RECONNECT)
            sock.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX)
            sock.setsockopt(zmq.CONNECT_TIMEOUT, 2000)
            sock.setsockopt(zmq.RCVHWM, 0)  # and no heartbeats: see listening.py
            sock.setsockopt(zmq.MAXMSGSIZE, 4 * MAX_MESSAGE)
            if "[" in spot.coord:
                sock.setsockopt(zmq.IPV6, 1)
            arm_client(sock, spot.keys)
            sock.connect(spot.coord)
        except BaseException:
            sock.close(0)
            raise
        self._socket = sock

    @property
    def closed(self) -> bool:
        """See ``Line``."""
        return bool(self._socket.closed)

    def send(self, frame: bytes, end: float) -> bool:
        """See ``Line``."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, end: float) -> bytes | None:
        """See ``Line``. What consists of several frames is passed over."""
        while True:
            left = int((end - time.monotonic()) * 1000) + 1
            if left <= 0:
                return None
            left = left if left < _GRAIN else -(-left // _GRAIN) * _GRAIN
            if left != self._limit:
                self._limit = left
                self._socket.setsockopt(zmq.RCVTIMEO, left)
            try:
                frame = self._socket.recv()
            except zmq.Again:
                return None
            if not self._socket.getsockopt(zmq.RCVMORE):
                return frame
            while self._socket.getsockopt(zmq.RCVMORE):
                self._socket.recv()

    def wake(self) -> None:
        """See ``Line``; the context's end does that."""

    def close(self) -> None:
        """See ``Line``."""
        self._socket.close(0)

    def leave_behind(self) -> None:
        """See ``Line``; nothing may."""


class UnixLine:
    """A connection to a service's unix socket.

    Args:
        name: The socket's abstract name.

    Raises:
        OSError: nobody of this user listens there.
    """

    def __init__(self, name: str) -> None:
        self._inbox = b""
        self._torn = False  # whether something was broken off in the middle, by an exception of a signal's handler
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(_CONNECT)
            peer.connect(f"\0{name}")
            _, user, _ = CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
            if user != os.geteuid():
                raise PermissionError("another user listens there")
        except BaseException:
            peer.close()
            raise
        self._peer = peer

    @property
    def closed(self) -> bool:
        """See ``Line``."""
        return self._peer.fileno() < 0

    def send(self, frame: bytes, end: float) -> bool:
        """See ``Line``."""
        self._begin()
        self._peer.settimeout(max(0.001, end - time.monotonic()))
        self._peer.sendall(SIZE.pack(len(frame)) + frame, socket.MSG_NOSIGNAL)
        self._torn = False
        return True

    def _begin(self) -> None:
        if self._torn:
            raise ConnectionAbortedError("this connection is out of step")
        self._torn = True

    def receive(self, end: float) -> bytes | None:
        """See ``Line``."""
        data = self._inbox
        while True:
            if len(data) >= SIZE.size:
                stop = SIZE.size + SIZE.unpack_from(data)[0]
                if stop > 4 * MAX_MESSAGE:
                    raise ConnectionAbortedError("a frame is larger than it may be")
                if len(data) >= stop:
                    self._inbox = data[stop:]
                    return data[SIZE.size : stop]
            left = end - time.monotonic()
            if left <= 0:
                return None
            self._begin()
            self._peer.settimeout(left)
            try:
                more = self._peer.recv(_CHUNK)
            except TimeoutError:
                self._torn = False
                return None
            if not more:
                raise ConnectionResetError("the service closed the connection")
            data = self._inbox = data + more
            self._torn = False

    def wake(self) -> None:
        """See ``Line``."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See ``Line``."""
        self.wake()  # copies of the descriptor in forked children would keep the connection open
        self._peer.close()

    def leave_behind(self) -> None:
        """See ``Line``."""
        self._peer.close()
