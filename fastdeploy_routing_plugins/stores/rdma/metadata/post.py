"""Answers on their way out, by ZeroMQ or by the unix socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from .unix_server import Caller

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from .asked import Identity
    from .unix_server import UnixServer


class Post:
    """Sends frames to connections.

    Args:
        coord: The ROUTER.
        unix: The unix socket, if there is one.
        refused: Counts what could not be sent.
        gone: Called with a connection that was cut because it does not read.

    Attributes:
        stale: Whether ZeroMQ may have taken note of questions, while it sent, without its descriptor saying so still.
    """

    def __init__(
        self,
        coord: zmq.Socket[bytes],
        unix: UnixServer | None,
        refused: Counter[str],
        gone: Callable[[Identity], None],
    ) -> None:
        self.stale = True
        self._coord = coord
        self._unix = unix
        self._refused = refused
        self._gone = gone

    def put(self, identity: Identity, frame: bytes) -> None:
        """Sends a frame to a connection; drops it if that went, or does not read what it is sent."""
        if isinstance(identity, Caller):
            self._put_unix(identity, frame)
            return
        self.stale = True
        try:
            self._coord.send(identity, zmq.SNDMORE | zmq.NOBLOCK)
            self._coord.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self._refused["unread"] += 1
        except zmq.ZMQError as err:
            if err.errno != zmq.EHOSTUNREACH:
                raise
            self._refused["left"] += 1

    def _put_unix(self, caller: Caller, frame: bytes) -> None:
        if not caller.alive:
            self._refused["left"] += 1
        elif not caller.send(frame):
            self._refused["unread"] += 1
            assert self._unix is not None
            self._unix.drop(caller)
            self._gone(caller)
