"""The bytes of the TCP transport; ``docs/tcp-protocol.md`` describes the protocol, ``tests`` pin them.

Everything is little-endian. A connection begins with ``Hello`` from the reader and ``Challenge`` from the producer,
and, with a secret, a proof and a verdict. Then requests go one way and replies the other, in the same order; a reply
is a head, the object's header, and the wanted bytes of its payload.
"""

from __future__ import annotations

import hmac
import itertools
import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec

from ....arena.layout import MAX_META
from ....errors import CorruptDataError
from ..card import MAX_NAME

MAGIC: Final = b"FDROUTE\n"
VERSION: Final = 1
NONCE: Final = 32
PROOF: Final = 32
MAX_RANGES: Final = 65_536
MAX_HEADER: Final = MAX_META  # a card does not hold more
WHOLE: Final = 0xFFFFFFFF  # in place of a number of ranges: the whole payload

_HELLO = struct.Struct("<8sHHI16s32s")  # magic, version, flags, 0, owner, nonce
_CHALLENGE = struct.Struct("<8sHHI32s")  # magic, version, answer, 0, nonce
_VERDICT = struct.Struct("<HHI32s")  # answer, 0, 0, proof
_REQUEST = struct.Struct("<HHIQQII")  # kind, bytes of the name, number, card, generation, ranges, 0
_REPLY = struct.Struct("<HHIIIQ")  # kind, status, number, bytes of the header, 0, bytes of the payload
_KIND_REQUEST, _KIND_REPLY = 1, 2
_HAS_SECRET = 1
_OWNER = re.compile(r"[0-9a-f]{32}", re.ASCII)

HELLO_BYTES: Final = _HELLO.size
CHALLENGE_BYTES: Final = _CHALLENGE.size
VERDICT_BYTES: Final = _VERDICT.size
REQUEST_BYTES: Final = _REQUEST.size
REPLY_BYTES: Final = _REPLY.size
MAX_REQUEST: Final = REQUEST_BYTES + MAX_NAME + MAX_RANGES * 16


class Answer(IntEnum):
    """What a producer says to a reader that connects."""

    WELCOME = 0  # requests may come
    PROVE = 1  # show that you know the secret
    OTHER_VERSION = 2
    NEEDS_SECRET = 3
    HAS_NO_SECRET = 4
    WRONG_SECRET = 5
    OTHER_OWNER = 6
    BUSY = 7


class Status(IntEnum):
    """What a reply is."""

    OBJECT = 0
    ERROR = 1  # the header's place has an error instead


_OBJECT = int(Status.OBJECT)


@dataclass(frozen=True, slots=True)
class Hello:
    """How a reader begins.

    Attributes:
        owner: Whom it means to speak to, 32 hexadecimal digits; empty: whoever listens.
        secret: Whether it has a secret.
        nonce: Random bytes.
        version: Of the protocol.
    """

    owner: str
    secret: bool
    nonce: bytes
    version: int = VERSION

    def encode(self) -> bytes:
        """Returns it as bytes."""
        owner = bytes.fromhex(self.owner) if _OWNER.fullmatch(self.owner) else b""
        return _HELLO.pack(MAGIC, self.version, _HAS_SECRET if self.secret else 0, 0, owner, self.nonce)


def decode_hello(raw: bytes) -> Hello:
    """Returns what ``Hello.encode`` made.

    Raises:
        CorruptDataError: it is no such thing.
    """
    magic, version, flags, _, owner, nonce = _HELLO.unpack(raw)
    if magic != MAGIC:
        raise CorruptDataError("this is no reader of routing")
    return Hello("" if not any(owner) else owner.hex(), bool(flags & _HAS_SECRET), nonce, version)


@dataclass(frozen=True, slots=True)
class Challenge:
    """How a producer answers.

    Attributes:
        answer: What it says.
        nonce: Random bytes.
        version: Of its protocol.
    """

    answer: int
    nonce: bytes
    version: int = VERSION

    def encode(self) -> bytes:
        """Returns it as bytes."""
        return _CHALLENGE.pack(MAGIC, self.version, self.answer, 0, self.nonce)


def decode_challenge(raw: bytes) -> Challenge:
    """Returns what ``Challenge.encode`` made.

    Raises:
        CorruptDataError: it is no such thing.
    """
    magic, version, answer, _, nonce = _CHALLENGE.unpack(raw)
    if magic != MAGIC:
        raise CorruptDataError("this is no producer of routing")
    return Challenge(answer, nonce, version)


def prove(secret: str, side: bytes, hello: bytes, challenge: bytes) -> bytes:
    """Returns what only one who knows the secret can say on this connection.

    Args:
        secret: The shared secret.
        side: Who says it, ``b"reader"`` or ``b"producer"``.
        hello: The bytes of the ``Hello``.
        challenge: Those of the ``Challenge``.
    """
    return hmac.digest(secret.encode(), b"fd-routing tcp " + side + hello + challenge, "sha256")


def encode_verdict(answer: Answer, proof: bytes = bytes(PROOF)) -> bytes:
    """Returns what follows a reader's proof: an answer, and the producer's own proof."""
    return _VERDICT.pack(answer, 0, 0, proof)


def decode_verdict(raw: bytes) -> tuple[int, bytes]:
    """Returns ``(answer, proof)``."""
    answer, _, _, proof = _VERDICT.unpack(raw)
    return answer, proof


# --- requests -----------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, gc=False):
    """What a reader asks for.

    Attributes:
        number: Comes back with the reply.
        name: The object's name.
        card: Page of its card.
        generation: That block's generation.
        ranges: Byte ranges of the payload; None: all of it.
    """

    number: int
    name: str
    card: int
    generation: int
    ranges: tuple[tuple[int, int], ...] | None

    def encode(self) -> bytes:
        """Returns it as bytes."""
        return encode_request(self.number, self.name, self.card, self.generation, self.ranges)


def encode_request(
    number: int, name: str, card: int, generation: int, ranges: tuple[tuple[int, int], ...] | None
) -> bytes:
    """Returns a request as bytes; see ``Request``."""
    raw = name.encode()
    count = WHOLE if ranges is None else len(ranges)
    head = _REQUEST.pack(_KIND_REQUEST, len(raw), number, card, generation, count, 0)
    if not ranges:
        return head + raw
    return head + raw + struct.pack(f"<{2 * count}Q", *[edge for each in ranges for edge in each])


def request_size(head: bytes | memoryview) -> int:
    """Returns how many bytes a request has whose first ``REQUEST_BYTES`` are these.

    Raises:
        CorruptDataError: it is none, or has more than is allowed.
    """
    kind, name_bytes, _, _, _, count, _ = _REQUEST.unpack(head)
    if kind != _KIND_REQUEST or not 0 < name_bytes <= MAX_NAME or MAX_RANGES < count != WHOLE:
        raise CorruptDataError("this is no request")
    return REQUEST_BYTES + int(name_bytes) + (0 if count == WHOLE else 16 * int(count))


def decode_request(raw: bytes | memoryview) -> Request:
    """Returns the request in bytes of the right number, see ``request_size``.

    Raises:
        CorruptDataError: its name is none, or its ranges are none.
    """
    _, name_bytes, number, card, generation, count, _ = _REQUEST.unpack_from(raw)
    end = REQUEST_BYTES + name_bytes
    try:
        name = str(raw[REQUEST_BYTES:end], "ascii")
    except UnicodeDecodeError:
        raise CorruptDataError("the name in a request is none") from None
    if count == WHOLE:
        return Request(number, name, card, generation, None)
    numbers = struct.unpack_from(f"<{2 * count}Q", raw, end)
    if any(one > other for one, other in itertools.pairwise(numbers)):
        raise CorruptDataError("the ranges in a request are not in order")
    return Request(number, name, card, generation, tuple(zip(numbers[::2], numbers[1::2], strict=True)))


# --- replies ------------------------------------------------------------------------------------------------------


class ReplyHead(msgspec.Struct, frozen=True, gc=False):
    """How a reply begins.

    Attributes:
        status: What it is.
        number: The request's.
        header_bytes: Size of the object's header, or of the error.
        payload_bytes: Size of all that follows.
    """

    status: int
    number: int
    header_bytes: int
    payload_bytes: int

    def encode(self) -> bytes:
        """Returns it as bytes."""
        return _REPLY.pack(_KIND_REPLY, self.status, self.number, self.header_bytes, 0, self.payload_bytes)


def decode_reply(raw: bytes | bytearray | memoryview) -> ReplyHead:
    """Returns what ``ReplyHead.encode`` made.

    Raises:
        CorruptDataError: it is no such thing.
    """
    kind, status, number, header_bytes, _, payload_bytes = _REPLY.unpack(raw)
    if kind != _KIND_REPLY:
        raise CorruptDataError("this is no reply")
    return ReplyHead(status, number, header_bytes, payload_bytes)


def begins_object(raw: memoryview, number: int, header_bytes: int, payload_bytes: int) -> bool:
    """Whether bytes begin with the head of the reply that has this object; False: ``decode_reply`` tells."""
    return raw[:REPLY_BYTES] == _REPLY.pack(_KIND_REPLY, _OBJECT, number, header_bytes, 0, payload_bytes)
