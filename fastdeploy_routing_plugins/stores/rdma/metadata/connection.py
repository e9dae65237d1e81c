"""What the threads of a client share: the ZeroMQ context, the channels, and what the service's welcome said."""

from __future__ import annotations

import os
import threading
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import zmq

from ....errors import StoreClosedError
from .cache import Cache
from .channel import Channel
from .descriptors import need_descriptors
from .page import PageView, look_at

if TYPE_CHECKING:
    from ..place import OwnerInfo
    from . import messages as m
    from .whereabouts import Spot, Whereabouts

_left_behind: list[Any] = []  # a forked child's copies of what belongs to its parent: not even freed


class _Local(threading.local):
    channel: Channel | None = None


class Connection:
    """One process's share of a client; a forked child makes its own.

    Args:
        where: Knows where the service is.
        namespace: The encoded namespace.

    Attributes:
        epoch: The service's, as of the latest welcome; 0 before.
        restarted: Whether it was another one before.
        cache: Listings that are remembered.
        owners: What owners said about themselves.
        welcome: The latest one.
    """

    def __init__(self, where: Whereabouts, namespace: str) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.epoch = 0
        self.restarted = False
        self.cache = Cache()
        self.owners: dict[str, OwnerInfo] = {}
        self.welcome: m.Welcome | None = None
        self.page: PageView | None = None
        self._where = where
        self._namespace = namespace
        self._local = _Local()
        self._lock = threading.Lock()
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._closed = False

    def channel(self) -> Channel:
        """Returns the calling thread's channel.

        Raises:
            StoreClosedError: the connection was closed.
        """
        channel = self._local.channel
        if channel is None or channel.closed:
            channel = self.new_channel()
            self._local.channel = channel
        return channel

    def new_channel(self) -> Channel:
        """Returns a channel that the caller keeps and closes.

        Raises:
            StoreClosedError: the connection was closed.
            StoreUnavailableError: there are too few file descriptors left.
        """
        need_descriptors()
        spot = self._where.spot()
        with self._lock:  # closing waits for every channel that it knows
            if self._closed:
                raise StoreClosedError("the store was closed")
            try:
                channel = Channel(self.context, self._where, spot, self._namespace, self.welcomed)
            except zmq.ZMQError as err:
                if err.errno in (zmq.ETERM, zmq.EFAULT):
                    raise StoreClosedError("the store was closed") from None
                raise
            self._channels.add(channel)
            return channel

    def spot(self) -> Spot:
        """Returns where the service is."""
        return self._where.spot()

    def welcomed(self, epoch: int, welcome: m.Welcome) -> None:
        """Takes a welcome in: the first, a further thread's, or that of a service that was started again."""
        with self._lock:
            same = self.welcome is not None and self.epoch == epoch and self.welcome.page_key == welcome.page_key
            if same and (self.page is not None or not welcome.page):
                return
            if self.epoch not in (0, epoch):
                self.restarted = True
                self.owners = {}
                self.cache.clear()
            self.epoch = epoch
            self.welcome = welcome
            self.page = look_at(welcome.page, welcome.page_key)

    def close(self) -> None:
        """Ends calls under way in other threads, and frees everything."""
        with self._lock:
            self._closed = True
            channels = list(self._channels)
        for channel in channels:
            channel.close()
        # Wakes who waits at a socket, and returns when they have closed theirs.
        self.context.term()

    def leave_behind(self) -> None:
        """In a forked child: forgets what is its parent's, without touching it."""
        for channel in list(self._channels):
            channel.leave_behind()
        _left_behind.append(self)


class _Open:
    """The clients of this process, for its forked children."""

    def __init__(self) -> None:
        self.clients: weakref.WeakSet[Any] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self.in_child)

    def in_child(self) -> None:
        for client in list(self.clients):
            client.in_child()


@lru_cache(maxsize=1)
def open_clients() -> _Open:
    """Returns this process's clients."""
    return _Open()
