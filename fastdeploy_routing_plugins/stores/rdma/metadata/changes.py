"""The stream of changes: who follows a trajectory is told what comes and goes in it, and of nothing else.

A message of the stream is one frame: 24 bytes of topic, u8 version, u64 epoch, and a body. A topic is a random start
for each namespace and start of the service, which only a welcome tells, and a hash of the trajectory. Changes of a
topic are numbered; ``Here`` says each second, and on subscribing, which number the last one had, so that whoever
missed one notices, and asks for the listing.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash
import zmq

from ....errors import CorruptDataError
from .framing import VERSION
from .naming import trajectory_of

if TYPE_CHECKING:
    from .desk import Desk
    from .owners import Owner

TOPIC_BYTES: Final = 24
_START_BYTES: Final = 16
_TOPICS: Final = 65_536  # followed at a time
_AT_ONCE: Final = 200  # subscriptions read before everything else has its turn
_TOLD_AT_ONCE: Final = 2000  # topics told where they are, each second
_HEAD = struct.Struct("<BQ")


class Here(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=96):
    """The last change of this topic had this number."""

    number: int


class Delta(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=97):
    """A change: names, who holds them now, and where; no owner and no place for what is gone."""

    number: int
    names: list[str]
    owners: list[str]
    places: list[bytes]


class OwnerDied(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=98):
    """An owner is gone, or is back: whoever has names of it asks for the listing. See ``common_topic``."""

    number: int
    owner: str


Told = Here | Delta | OwnerDied

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Told)


def topic_of(start: bytes, name: str) -> bytes:
    """Returns the topic of a name, or of a prefix of at least two components."""
    return start + xxhash.xxh3_64_digest(trajectory_of(name).encode())


def common_topic(start: bytes) -> bytes:
    """Returns the topic of what concerns a whole namespace."""
    return start + bytes(8)


def decode_told(raw: bytes) -> tuple[bytes, int, Any]:
    """Returns topic, epoch and body of a message of the stream.

    Raises:
        CorruptDataError: it is none, or of another version.
    """
    if len(raw) < TOPIC_BYTES + _HEAD.size:
        raise CorruptDataError(f"a message of {len(raw)} bytes")
    version, epoch = _HEAD.unpack_from(raw, TOPIC_BYTES)
    if version != VERSION:
        raise CorruptDataError(f"a message of version {version}")
    try:
        return raw[:TOPIC_BYTES], epoch, _decoder.decode(memoryview(raw)[TOPIC_BYTES + _HEAD.size :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise CorruptDataError(f"not a message of the stream: {err}") from None


def encode_told(topic: bytes, epoch: int, body: Told) -> bytes:
    """Returns a message of the stream."""
    return topic + _HEAD.pack(VERSION, epoch) + _encoder.encode(body)


class Stream:
    """The service's side.

    Args:
        socket: Of kind XPUB, manual.
        desk: Is told to note changes while somebody follows.
        epoch: The service's.
    """

    def __init__(self, socket: zmq.Socket[bytes], desk: Desk, epoch: int) -> None:
        self._socket = socket
        self._desk = desk
        self._epoch = epoch
        self._key = os.urandom(32)
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._followers: dict[bytes, int] = {}
        self._first = int.from_bytes(os.urandom(5), "little")
        self.stale = True  # see ``Counter``

    def __len__(self) -> int:
        """How many topics are followed."""
        return len(self._numbers)

    def start_of(self, namespace: str) -> bytes:
        """Returns what topics of a namespace begin with."""
        return hmac.digest(self._key, namespace.encode(), "sha256")[:_START_BYTES]

    def read(self) -> None:
        """Takes subscriptions in."""
        self.stale = False
        for _ in range(_AT_ONCE):
            try:
                raw = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            topic = raw[1:]
            if len(topic) != TOPIC_BYTES:
                continue  # nobody follows what it was not told of
            if raw[:1] == b"\x01":
                self._socket.setsockopt(zmq.SUBSCRIBE, topic)
                self._follow(topic)
            elif raw[:1] == b"\x00":
                self._socket.setsockopt(zmq.UNSUBSCRIBE, topic)
                self._leave(topic)
        self.stale = True  # there may be more

    def _follow(self, topic: bytes) -> None:
        self._followers[topic] = self._followers.get(topic, 0) + 1
        if topic not in self._numbers:
            self._first += 1 << 20
            self._numbers[topic] = self._first
            if len(self._numbers) > _TOPICS:
                oldest, _ = self._numbers.popitem(last=False)
                del self._followers[oldest]
        if self._desk.changes is None:
            self._desk.changes = []
        self._send(topic, Here(self._numbers[topic]))

    def _leave(self, topic: bytes) -> None:
        left = self._followers.get(topic, 0) - 1
        if left > 0:
            self._followers[topic] = left
        elif self._followers.pop(topic, None) is not None:
            del self._numbers[topic]
            if not self._numbers:
                self._desk.changes = None

    def tell(self) -> None:
        """Tells followers what changed since the last time."""
        changes = self._desk.changes
        if not changes:
            return
        self._desk.changes = []
        topics: dict[bytes, list[tuple[str, Owner | None, bytes]]] = {}
        for change in changes:
            topic = topic_of(self.start_of(change[0].partition("/")[0]), change[0])
            if topic in self._numbers:
                topics.setdefault(topic, []).append(change)
        for topic, those in topics.items():
            self._numbers[topic] += 1
            names, owners, places = zip(*those, strict=True)
            ids = ["" if owner is None else owner.id for owner in owners]
            self._send(topic, Delta(self._numbers[topic], list(names), ids, list(places)))

    def owner_died(self, owner: Owner) -> None:
        """Tells the followers of a namespace that names of an owner went, or came back."""
        topic = common_topic(self.start_of(owner.namespace))
        if topic in self._numbers:
            self._numbers[topic] += 1
            self._send(topic, OwnerDied(self._numbers[topic], owner.id))

    def say_where(self) -> None:
        """Tells followers which number their topic has; the next ones next time, if there are very many."""
        for topic in list(self._numbers)[:_TOLD_AT_ONCE]:
            self._send(topic, Here(self._numbers[topic]))
            self._numbers.move_to_end(topic)

    def _send(self, topic: bytes, body: Told) -> None:
        self.stale = True
        self._socket.send(encode_told(topic, self._epoch, body), zmq.NOBLOCK)  # drops what a slow follower cannot take

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close(0)
