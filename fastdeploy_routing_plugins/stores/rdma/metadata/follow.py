"""Following one trajectory: its names arrive as they come and go, and nothing else does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import zmq

from ....errors import CorruptDataError, StoreClosedError
from ....keys import encode_component
from . import changes
from .curve import arm_client
from .descriptors import need_descriptors
from .framing import MAX_MESSAGE
from .naming import COLON, trajectory_of
from .values import Entry, Listing

if TYPE_CHECKING:
    from .client import MetadataClient
    from .connection import Connection

_SILENT: Final = 2.5  # s without a word of the stream, which speaks each second
_GRAIN: Final = 0.5  # s of one look


class Follower:
    """Keeps the listing of a trajectory, as the service's stream tells it. For one thread.

    The listing is that of a moment ago; it costs no question while nothing is missed. What was missed is asked for.

    Args:
        client: An open client.
        rollout_id: Id of a rollout of the trajectory: its turns and segments do not matter.
    """

    def __init__(self, client: MetadataClient, rollout_id: str) -> None:
        self._client = client
        self._trajectory = trajectory_of(f"{client.namespace}/{encode_component(rollout_id)}/")
        need_descriptors()
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._start = b""
        self._epoch = 0
        self._numbers: dict[bytes, int] = {}  # of the last change of each topic that is in the listing
        self._entries: dict[str, Entry] = {}
        self._heard = 0.0

    def open(self) -> None:
        """Begins to follow.

        Raises:
            StoreUnavailableError: the service does not answer.
        """
        try:
            self._subscribe()
            self._refresh()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Frees everything."""
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None
        self._context.term()

    @property
    def listing(self) -> Listing:
        """What there is in the trajectory."""
        names = sorted(self._entries)
        return Listing(names, [self._entries[name] for name in names])

    def update(self, deadline: float) -> bool:
        """Waits for a change.

        Args:
            deadline: In seconds of ``time.monotonic()``; what came is taken in even if it has passed.

        Returns:
            Whether the listing changed.

        Raises:
            StoreUnavailableError: the service does not answer.
        """
        changed = False
        while True:
            sock = self._socket
            if sock is None:
                raise StoreClosedError("this does not follow (any more)")
            left = 0.0 if changed else min(_GRAIN, deadline - time.monotonic())
            if sock.poll(max(0, int(left * 1000))):
                self._heard = time.monotonic()
                changed = self._take(sock.recv()) or changed
            elif time.monotonic() - self._heard > _SILENT:
                changed = self._look_again() or changed
            elif changed or time.monotonic() >= deadline:
                return changed

    # --- the stream ---------------------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        self._client.greet()
        return self._client.connection()

    def _subscribe(self) -> None:
        """Connects to the stream of the service that answers now."""
        connection = self._connected()
        welcome, spot = connection.welcome, connection.spot()
        assert welcome is not None
        if self._socket is not None:
            self._socket.close(0)
        sock: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self._socket = sock
        sock.linger = 0
        sock.setsockopt(zmq.MAXMSGSIZE, 4 * MAX_MESSAGE)
        sock.setsockopt(zmq.RECONNECT_IVL, 50)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        if "[" in spot.sync:
            sock.setsockopt(zmq.IPV6, 1)
        arm_client(sock, spot.keys)
        self._start, self._epoch = welcome.topic, connection.epoch
        for topic in (changes.topic_of(self._start, f"{self._trajectory}/"), changes.common_topic(self._start)):
            sock.setsockopt(zmq.SUBSCRIBE, topic)
        sock.connect(spot.sync)
        self._heard = time.monotonic()
        self._numbers = {}

    def _take(self, raw: bytes) -> bool:
        """Takes a message in; returns whether the listing changed."""
        try:
            topic, epoch, told = changes.decode_told(raw)
        except CorruptDataError:
            return self._refresh()
        if topic[: len(self._start)] != self._start:
            return False
        if epoch != self._epoch:
            return self._look_again()
        before, number = self._numbers.get(topic, -1), told.number
        if number <= before:
            return False
        self._numbers[topic] = number
        if number == before + 1 and isinstance(told, changes.Delta):
            return self._apply(told)
        return self._refresh()  # something was missed, or is not told in full

    def _apply(self, delta: changes.Delta) -> bool:
        for name, owner, place in zip(delta.names, delta.owners, delta.places, strict=True):
            if trajectory_of(name) != self._trajectory:
                continue  # another trajectory with the same hash
            if owner:
                self._entries[name] = Entry(name, owner, place)
            else:
                self._entries.pop(name, None)
        return True

    def _refresh(self) -> bool:
        """Asks for the listing; returns whether it is another one."""
        before = self._entries
        found = self._client.listing([f"{self._trajectory}/", f"{self._trajectory}{COLON}"])
        entries = [entry for listing in found for entry in listing.entries]
        self._entries = {entry.name: entry for entry in entries if trajectory_of(entry.name) == self._trajectory}
        return self._entries != before

    def _look_again(self) -> bool:
        """Asks for the listing, and follows the service that answered: the one before is silent, or not any more."""
        changed = self._refresh()
        self._heard = time.monotonic()
        self._subscribe()
        return changed
