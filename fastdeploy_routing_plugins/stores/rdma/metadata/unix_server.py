"""The service's way in for clients of the same host and user: a unix socket, over which a question takes a fraction.

ZeroMQ has a thread on either side between the socket and who asks, and waking threads is what a question costs. Frames
are those of ZeroMQ's sockets (``framing``), each behind its size (u32, little-endian). The socket's name is abstract,
random for each start of the service, and stands in its welcome: nothing is left when the service is killed.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Final

from .framing import MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE: Final = struct.Struct("<I")
CREDENTIALS: Final = struct.Struct("3i")  # process, user and group of the other side
_CHUNK: Final = 64 << 10  # bytes read at once
_UNSENT: Final = 4 << 20  # bytes of answers that wait for one client to read them
_BACKLOG: Final = 128


class Caller:
    """A client's connection. It stands wherever a ZeroMQ connection's identity would.

    Attributes:
        alive: Whether it was not closed.
    """

    __slots__ = ("_inbox", "_outbox", "_peer", "_poll", "alive")

    def __init__(self, peer: socket.socket, poll: select.epoll) -> None:
        self._peer = peer
        self._poll = poll
        self._inbox = b""
        self._outbox = b""
        self.alive = True
        poll.register(peer.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Its descriptor."""
        return self._peer.fileno()

    def read(self) -> list[bytes] | None:
        """Returns the frames that came; None if the client went, or speaks something else."""
        try:
            data = self._inbox + self._peer.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if len(data) == len(self._inbox):
            return None
        frames, at = [], 0
        while len(data) - at >= SIZE.size:
            (size,) = SIZE.unpack_from(data, at)
            if size > MAX_MESSAGE:
                return None
            stop = at + SIZE.size + size
            if stop > len(data):
                break
            frames.append(data[at + SIZE.size : stop])
            at = stop
        self._inbox = data[at:]
        return frames

    def send(self, frame: bytes) -> bool:
        """Sends an answer; returns False if the client does not read its answers, or went."""
        data = SIZE.pack(len(frame)) + frame
        if self._outbox:
            self._outbox += data
        else:
            sent = self._try(data)
            if sent < 0:
                return False
            if sent < len(data):
                self._outbox = data[sent:]
                self._poll.modify(self._peer.fileno(), select.EPOLLOUT)
        return len(self._outbox) <= _UNSENT

    def flush(self) -> bool:
        """Sends what could not be sent before; returns False if the client went."""
        sent = self._try(self._outbox)
        if sent < 0:
            return False
        self._outbox = self._outbox[sent:]
        if not self._outbox:
            self._poll.modify(self._peer.fileno(), select.EPOLLIN)
        return True

    def _try(self, data: bytes) -> int:
        try:
            return self._peer.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def close(self) -> None:
        """Closes the connection."""
        self.alive = False
        # Closing takes it out of the poll only if no forked child has a copy.
        self._poll.unregister(self._peer.fileno())
        self._peer.close()

    def close_copy(self) -> None:
        """In a forked child: closes its copy of the descriptor."""
        self.alive = False
        self._peer.close()


class UnixServer:
    """The socket and its connections. Used by one thread.

    Args:
        limit: How many connections there may be; further ones are closed at once, and use ZeroMQ.
        poll: Where descriptors are looked at.

    Attributes:
        name: The socket's abstract name, without the zero byte.
    """

    def __init__(self, limit: int, poll: select.epoll) -> None:
        self._limit = limit
        self.name = f"fd-routing-{os.urandom(16).hex()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._poll = poll
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._callers: dict[int, Caller] = {}
        self._resting = False

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._callers)

    def attend(
        self, fd: int, event: int, take: Callable[[Caller, bytes], None], gone: Callable[[Caller], None]
    ) -> bool:
        """Does what a descriptor is ready for; returns False if it is none of these.

        Args:
            fd: The descriptor.
            event: What it is ready for.
            take: Called with each frame that came.
            gone: Called with a connection that ended.
        """
        caller = self._callers.get(fd)
        if caller is None:
            if fd != self._listener.fileno():
                return False
            self._accept()
            return True
        if event & select.EPOLLOUT:
            if not caller.flush():
                self.drop(caller)
        else:
            frames = caller.read()
            if frames is None:
                self.drop(caller)
            else:
                for frame in frames:
                    take(caller, frame)
        if not caller.alive:
            gone(caller)
        return True

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is left: the listener would be ready for ever
            self._poll.unregister(self._listener.fileno())
            self._resting = True
            return
        _, user, _ = CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if user != os.geteuid() or len(self._callers) >= self._limit:
            peer.close()
            return
        peer.setblocking(False)
        self._callers[peer.fileno()] = Caller(peer, self._poll)

    def try_again(self) -> None:
        """Accepts connections again after that was not possible for a moment."""
        if self._resting:
            self._poll.register(self._listener.fileno(), select.EPOLLIN)
            self._resting = False

    def drop(self, caller: Caller) -> None:
        """Ends a connection."""
        if caller.alive:
            del self._callers[caller.fileno()]
            caller.close()

    def close(self) -> None:
        """Closes everything."""
        for caller in list(self._callers.values()):
            self.drop(caller)
        if not self._resting:
            self._poll.unregister(self._listener.fileno())
        self._listener.close()

    def close_copies(self) -> None:
        """In a forked child: closes its copies, which would keep connections open after the parent's death."""
        for caller in self._callers.values():
            caller.close_copy()
        self._callers = {}
        self._listener.close()
