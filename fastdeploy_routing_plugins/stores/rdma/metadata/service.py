"""The metadata service: sockets, one loop, and what is asked carried to the ``Desk``."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import zmq

from .changes import Stream
from .counter import Counter
from .curve import Guard
from .descriptors import need_descriptors
from .desk import Desk
from .limits import Limits
from .listening import listen
from .page import make_page
from .security import Security
from .unix_server import UnixServer

if TYPE_CHECKING:
    from ..address import Address

_TICK: Final = 0.2  # s between looks at what time brings
_AWAY: Final = 1.0  # s without a look after which the silence of others proves nothing
_FORGET: Final = 500  # names forgotten at once
_AT_ONCE: Final = 200  # descriptors looked at before time has its turn

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")


class Service:
    """A metadata service, listening when it is made. Only ``stop`` may be called from another thread than ``run``.

    Args:
        address: Where to listen; ports of 0 are any free ones.
        security: Keys and secret.
        limits: What is allowed.
        page: Names the page of counters; ``host:port`` unless given.

    Attributes:
        address: Where it listens.
        epoch: Number of this start.

    Raises:
        StoreUnavailableError: the address cannot be listened at.
        ConfigError: the keys cannot be used.
    """

    def __init__(
        self, address: Address, security: Security | None = None, limits: Limits | None = None, *, page: str = ""
    ) -> None:
        security, limits = security or Security(), limits or Limits()
        self.epoch = int.from_bytes(os.urandom(7), "little") or 1
        self._stopping = False
        need_descriptors()
        self._waker, self._wakes = socket.socketpair()
        self._context: zmq.Context[Any] = zmq.Context()
        self._guard: Guard | None = None
        opened: list[zmq.Socket[bytes]] = []
        try:
            if security.keys:
                self._guard = Guard(self._context, security.keys)
            self.address, coord, sync = listen(self._context, address, self._guard, opened)
        except BaseException:
            for each in opened:
                each.close(0)
            self._free()
            raise
        # The address is ours: whoever had it before is gone, and its page must say so before anybody is answered.
        self._page = make_page(page or f"{self.address.host}:{self.address.coord}")
        self._desk = Desk(limits, self._page)
        self._stream = Stream(sync, self._desk, self.epoch)
        self._poll = select.epoll()
        # With keys, who has none is not even heard; a unix socket would hear every process of this user.
        unix = UnixServer(limits.unix, self._poll) if limits.unix and not security.keys else None
        self._unix = unix
        self._counter = Counter(coord, self._desk, self._stream, self._page, limits, security, self.epoch, unix)
        self._counter.sync_port = self.address.sync
        for each in (coord, sync, *([self._guard.socket] if self._guard else [])):
            self._poll.register(int(each.getsockopt(zmq.FD)), select.EPOLLIN)
        self._poll.register(self._wakes.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Serves until ``stop``; frees everything when it ends, however it does."""
        try:
            self._serve()
        finally:
            self.close()

    def _serve(self) -> None:
        counter, desk, stream = self._counter, self._desk, self._stream
        looked = time.monotonic()
        busy = False
        while not self._stopping:
            by_zmq = busy or counter.stale or stream.stale
            idle = 0.0 if by_zmq else max(0.0, min(_TICK, desk.waiters.next_deadline - time.monotonic()))
            for fd, event in self._poll.poll(idle, _AT_ONCE):
                by_zmq = not counter.attend(fd, event) or by_zmq
            if by_zmq:
                if self._guard is not None:
                    self._guard.answer(_log.warning)
                stream.read()
                busy = counter.read()
            now = time.monotonic()
            counter.expire(now)
            if now - looked >= _TICK:
                away = now - looked if now - looked > _AWAY else 0.0
                looked = now
                counter.look(now, away, 0 if self._guard is None else self._guard.refused)
            busy = desk.index.forget(_FORGET) or busy

    def stop(self) -> None:
        """Lets ``run`` end; from any thread, or a signal's handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._waker.send(b"x", socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Frees everything; for a service that does not run."""
        self._page.close(self._desk.living)
        self._stream.close()
        self._counter.close()
        if self._unix is not None:
            self._unix.close()
        self._poll.close()
        self._free()

    def in_child(self) -> None:
        """In a forked child, which does not serve: gives back what would outlive the parent, and nothing else."""
        self._page.forget()
        if self._unix is not None:
            self._unix.close_copies()
        self._poll.close()

    def _free(self) -> None:
        if self._guard is not None:
            self._guard.close()
        self._context.term()
        self._waker.close()
        self._wakes.close()
