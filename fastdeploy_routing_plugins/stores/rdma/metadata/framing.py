"""The frames of the protocol between the metadata service and its clients; docs/metadata-protocol.md describes it.

A message is one ZeroMQ frame: a head of fixed size, its integers little-endian, and a body (see ``messages``)::

    question  u8 version, u8 flags, u64 id, u32 patience in milliseconds
    answer    u8 version, u8 flags, u64 id, u64 epoch                      id 0: unasked

The first byte is the version, in every version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Final

import msgspec

from ....errors import CorruptDataError
from .messages import Answer, Question

VERSION: Final = 1
MAX_MESSAGE: Final = 1 << 20  # bytes
_QUESTION = struct.Struct("<BBQI")
_ANSWER = struct.Struct("<BBQQ")
QUESTION_HEAD: Final = _QUESTION.size
ANSWER_HEAD: Final = _ANSWER.size
MAX_PATIENCE: Final = 2**32 - 1


class Flag(IntFlag):
    """Flags of heads."""

    PATIENT = 1
    """Of a question: while the service settles, it had better wait than say that something is not there."""
    SETTLING = 1
    """Of an answer: the service was just started, and producers may not have told it everything yet."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head taken apart.

    Attributes:
        flags: See ``Flag``.
        id: Which question this is, or answers.
        rest: A question's patience in milliseconds, or the epoch of who answers.
    """

    flags: int
    id: int
    rest: int


_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Answer)


class VersionError(CorruptDataError):
    """A message of another version of the protocol. Fact: ``version``."""


def encode_question(body: Any, number: int, patience: int, flags: int = 0) -> bytes:
    """Returns a question as bytes."""
    return _QUESTION.pack(VERSION, flags, number, min(patience, MAX_PATIENCE)) + _encoder.encode(body)


def encode_answer(body: Any, number: int, epoch: int, flags: int = 0) -> bytes:
    """Returns an answer as bytes."""
    return _ANSWER.pack(VERSION, flags, number, epoch) + _encoder.encode(body)


def split_question(raw: bytes) -> tuple[int, int, int]:
    """Returns flags, id and patience of a question.

    Raises:
        CorruptDataError: it is too short.
        VersionError: it is of another version.
    """
    if len(raw) < QUESTION_HEAD:
        raise CorruptDataError(f"a question of {len(raw)} bytes")
    version, flags, number, patience = _QUESTION.unpack_from(raw)
    if version != VERSION:
        raise VersionError(f"a question of version {version}", version=version)
    return flags, number, patience


def decode_question(raw: bytes) -> Any:
    """Returns the body of a question.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        return _questions.decode(memoryview(raw)[QUESTION_HEAD:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise CorruptDataError(f"not a question: {err}") from None


def decode_answer(raw: bytes) -> tuple[Head, Any]:
    """Takes an answer apart.

    Raises:
        CorruptDataError: it is none.
        VersionError: it is of another version.
    """
    if len(raw) < ANSWER_HEAD:
        raise CorruptDataError(f"an answer of {len(raw)} bytes")
    version, flags, number, epoch = _ANSWER.unpack_from(raw)
    if version != VERSION:
        raise VersionError(f"an answer of version {version}", version=version)
    try:
        return Head(flags, number, epoch), _answers.decode(memoryview(raw)[ANSWER_HEAD:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise CorruptDataError(f"not an answer: {err}") from None
