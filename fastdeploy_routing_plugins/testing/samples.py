"""What the kit stores: names made from awkward ids, and objects of every size."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..backend import Blob, Buffer
from ..keys import MAX_ATTEMPT, MAX_CHOICE, MAX_COMPONENT, RoutingKey, encode_namespace
from ..names import MAX_TOKENS, Part, PartName, SealName, object_name

if TYPE_CHECKING:
    from pathlib import Path

    from ..backend import Ranges

_ITEM = {"uint8": 1, "uint16": 2, "uint32": 4}

AWKWARD_IDS = (
    ".",
    "..",
    "../../x",
    "../../../escaped",
    "/abs",
    "a/b",
    "a_b",
    "a%b",
    "axb",
    "a//b",
    "a/../b",
    "a\\b",
    "a\0b",
    "a\nb",
    "a b",
    " ",
    "a'b\"c;--",
    "$(id)",
    "*",
    "?[a]",
    "~",
    "~x",
    "%2e%2e",
    "..%2f",
    "x:1",
    "x:10",
    "x:1:0",
    "x",
    "x_1",
    "Run",
    "run",
    "RUN",
    "con",
    "nul",
    "com1",
    "-rf",
    ".hidden",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",  # NFC
    "e\N{COMBINING ACUTE ACCENT}",  # NFD of the same
    "\N{LATIN SMALL LETTER DOTLESS I}",
    "\N{SNOWMAN}",
    "\N{PILE OF POO}",
    "\N{RIGHT-TO-LEFT OVERRIDE}abc",
    "d:0:__import__('os').getpid():0",
    "d:0:-1:0",
    "88888888",
    "l" * 127,
    "l" * 128,
    "l" * 129,
    "l" * 255,
    "l" * 256,
    "\N{SNOWMAN}" * 85,
    "l" * 4095 + "1",
    "l" * 4095 + "2",
)
"""Ids as clients send them: paths, look-alikes, wildcards, quotes, device names, and the limits of length."""


def escaping_ids(outside: Path) -> tuple[str, ...]:
    """Returns ids that lead to ``outside``, or a few folders up, if a store takes them for paths."""
    ups = tuple("../" * up + "fd-escaped" for up in range(1, 7))
    return (*ups, str(outside / "fd-absolute"), f"x/../../../{outside.name}/fd-mixed", "..", ".", "../..")


@dataclass(frozen=True, slots=True)
class Sample:
    """An object to store.

    Attributes:
        name: The full name.
        header: One line of UTF-8 text.
        payload: The bytes.
        shape: As in ``Buffer``.
        dtype: As in ``Buffer``.
    """

    name: str
    header: bytes
    payload: bytes
    shape: tuple[int, ...]
    dtype: str = "uint8"

    def buffer(self) -> Buffer:
        """The payload on its way into a backend."""
        return Buffer(memoryview(self.payload), self.shape, self.dtype)

    def equals(self, blob: object) -> bool:
        """Whether a backend's answer is this object, whole."""
        return isinstance(blob, Blob) and blob.header == self.header and pieces(blob) == (self.payload,)

    def __repr__(self) -> str:
        return f"Sample({self.name!r}, {len(self.payload)} bytes)"


def pieces(blob: Blob) -> tuple[bytes, ...]:
    """Returns a blob's payload as bytes."""
    return tuple(bytes(piece) for piece in blob.payload)


def cut(payload: bytes, ranges: Ranges) -> tuple[bytes, ...]:
    """Returns the asked byte ranges of a payload."""
    return tuple(payload[start:stop] for start, stop in ranges)


def sample(
    namespace: str,
    rollout_id: str = "kit:0",
    *,
    size: int = 64,
    at: int = 0,
    attempt: int = 0,
    choice: int = 0,
    dtype: str = "uint8",
    text: str = "",
) -> Sample:
    """Makes an object whose name, shape and payload fit each other and whose payload follows from its name.

    Args:
        namespace: The namespace's text.
        rollout_id: The rollout's id.
        size: Elements of the payload, that is tokens of one layer with one expert each.
        at: First token.
        attempt: The attempt's number.
        choice: The choice's number.
        dtype: Of the payload.
        text: Further text for the header.
    """
    item = _ITEM[dtype]
    what = PartName(Part((at, at + size), (0, 1)), 1, None, item)
    name = object_name(RoutingKey(rollout_id, choice), namespace, attempt, what)
    return Sample(name, _header(name, text), content(name, size * item), (1, size, 1), dtype)


def seal_sample(namespace: str, rollout_id: str, total: int) -> Sample:
    """Makes an object without a payload, as seals are."""
    name = object_name(RoutingKey(rollout_id), namespace, 0, SealName(total))
    return Sample(name, _header(name), b"", ())


def longest_samples(namespace: str) -> list[Sample]:
    """Makes two objects with the longest names there are, 377 characters, which differ close to the end only."""
    namespace = namespace.rjust(MAX_COMPONENT, "n")
    key = RoutingKey("m" * 128, MAX_CHOICE, "k" * 32)
    made = []
    for total_layers in (99_998, 99_999):
        what = PartName(Part((MAX_TOKENS - 8, MAX_TOKENS), (0, 1)), total_layers, MAX_TOKENS, 1)
        name = object_name(key, namespace, MAX_ATTEMPT, what)
        made.append(Sample(name, _header(name), content(name, 8), (1, 8, 1)))
    return made


def content(seed: str, size: int) -> bytes:
    """Returns bytes that no other name has, without a repeated block that a fault could hide behind."""
    return hashlib.shake_128(seed.encode()).digest(size)


def root(namespace: str) -> str:
    """Returns the prefix of every name in a namespace."""
    return f"{encode_namespace(namespace)}/"


def _header(name: str, text: str = "") -> bytes:
    return f"KIT {hashlib.sha256(name.encode()).hexdigest()} {text or 'plain'}".encode()
