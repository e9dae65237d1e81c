"""Names of stored objects: all that is known about a rollout without reading a single header.

Within ``RoutingKey.prefix`` a name continues with ``attempt/object``. The object is one of::

    p-{tokens}-{total tokens}-{layers}-{total layers}-{row bytes}-{schema}  a part: some tokens x some layers
    s-{total tokens}                                                        a seal: says the total later
    x                                                                       an abort mark

Numbers are decimal with leading zeros (``_`` for a total that is not known yet), so names sort as the numbers do;
``schema`` is ``RoutingSchema.fingerprint``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .errors import InvalidKeyError
from .keys import MAX_ATTEMPT, RoutingKey, check_int, decode_component

MAX_TOKENS = 9_999_999_999
MAX_LAYERS = 99_999
_UNKNOWN = "_" * 10
_PART = re.compile(
    r"p-([0-9]{10})-([0-9]{10})-([0-9]{10}|_{10})-([0-9]{5})-([0-9]{5})-([0-9]{5})-([0-9]{6})-([0-9a-f]{8})", re.ASCII
)
_SEAL = re.compile(r"s-([0-9]{10})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A rectangle of a rollout's grid of tokens x MoE layers; ranges are absolute and half-open.

    Attributes:
        tokens: ``(start, stop)`` in the rollout's recorded tokens.
        layers: ``(start, stop)`` in the list of recorded MoE layers (positions, not model layer ids).
    """

    tokens: tuple[int, int]
    layers: tuple[int, int]

    def __post_init__(self) -> None:
        (t0, t1), (l0, l1) = self.tokens, self.layers
        if type(t0) is type(t1) is type(l0) is type(l1) is int and (
            0 <= t0 <= t1 <= MAX_TOKENS and 0 <= l0 < l1 <= MAX_LAYERS
        ):
            return  # the usual case, checked in one go
        for what, (start, stop), limit in (("tokens", self.tokens, MAX_TOKENS), ("layers", self.layers, MAX_LAYERS)):
            check_int(f"start of {what}", start, limit)
            check_int(f"stop of {what}", stop, limit)
            if stop < start or (what == "layers" and stop == start):
                raise InvalidKeyError(f"range of {what} {start}:{stop} is empty or reversed")

    def __str__(self) -> str:
        return f"layers {self.layers[0]}:{self.layers[1]}, tokens {self.tokens[0]}:{self.tokens[1]}"

    @property
    def num_layers(self) -> int:
        """Number of layers in the part."""
        return self.layers[1] - self.layers[0]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the part; 0 is legal."""
        return self.tokens[1] - self.tokens[0]

    def intersect(self, other: Part) -> Part | None:
        """Returns the rectangle that both share, or None if they share no cell."""
        tokens = max(self.tokens[0], other.tokens[0]), min(self.tokens[1], other.tokens[1])
        layers = max(self.layers[0], other.layers[0]), min(self.layers[1], other.layers[1])
        return Part(tokens, layers) if tokens[0] < tokens[1] and layers[0] < layers[1] else None


@dataclass(frozen=True, slots=True)
class PartName:
    """What a part's name says.

    Attributes:
        part: The rectangle.
        total_layers: Number of MoE layers of the whole rollout.
        total_tokens: Number of recorded tokens of the whole rollout, or None if not known when it was put.
        row_bytes: Bytes of one token in one layer, ``top_k * itemsize``.
        schema: The schema's fingerprint.
    """

    part: Part
    total_layers: int
    total_tokens: int | None
    row_bytes: int
    schema: str = "00000000"

    def __post_init__(self) -> None:
        total_layers, total, row_bytes = self.total_layers, self.total_tokens, self.row_bytes
        if type(total_layers) is type(row_bytes) is int and (total is None or type(total) is int):
            fits = total is None or self.part.tokens[1] <= total <= MAX_TOKENS
            if fits and self.part.layers[1] <= total_layers <= MAX_LAYERS and 1 <= row_bytes <= 999_999:
                return  # the usual case, checked in one go
        check_int("total_layers", self.total_layers, MAX_LAYERS, low=1)
        check_int("row_bytes", self.row_bytes, 999_999, low=1)
        if self.total_tokens is not None:
            check_int("total_tokens", self.total_tokens, MAX_TOKENS)
            if self.part.tokens[1] > self.total_tokens:
                raise InvalidKeyError(f"part ({self.part}) goes beyond total_tokens={self.total_tokens}")
        if self.part.layers[1] > self.total_layers:
            raise InvalidKeyError(f"part ({self.part}) goes beyond total_layers={self.total_layers}")

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of the part's payload."""
        return self.part.num_tokens * self.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the part's payload."""
        (start, stop), (first, last) = self.part.tokens, self.part.layers
        return (last - first) * (stop - start) * self.row_bytes

    def __str__(self) -> str:
        (t0, t1), (l0, l1) = self.part.tokens, self.part.layers
        total = _UNKNOWN if self.total_tokens is None else f"{self.total_tokens:010d}"
        grid = f"{t0:010d}-{t1:010d}-{total}-{l0:05d}-{l1:05d}-{self.total_layers:05d}"
        return f"p-{grid}-{self.row_bytes:06d}-{self.schema}"


@dataclass(frozen=True, slots=True)
class SealName:
    """A seal's name: the total number of tokens, known only after the parts were put."""

    total_tokens: int

    def __post_init__(self) -> None:
        check_int("total_tokens", self.total_tokens, MAX_TOKENS)

    def __str__(self) -> str:
        return f"s-{self.total_tokens:010d}"


@dataclass(frozen=True, slots=True)
class AbortName:
    """An abort mark's name; the reason is in its header."""

    def __str__(self) -> str:
        return "x"


ObjectName = PartName | SealName | AbortName


@lru_cache(maxsize=65_536)  # a rollout of many parts is listed once for each of them
def parse_object(text: str) -> ObjectName:
    """Parses a name's last component.

    Raises:
        InvalidKeyError: it is none of the three forms.
    """
    if match := _PART.fullmatch(text):
        t0, t1, total, l0, l1, total_layers, row, schema = match.groups()
        total_tokens = None if total == _UNKNOWN else int(total)
        part = Part((int(t0), int(t1)), (int(l0), int(l1)))
        return PartName(part, int(total_layers), total_tokens, int(row), schema)
    if match := _SEAL.fullmatch(text):
        return SealName(int(match[1]))
    if text == "x":
        return AbortName()
    raise InvalidKeyError(f"{text!r} is no object name")


def is_attempt(text: str) -> bool:
    """Whether this is how the component of an attempt is written."""
    return len(text) == 19 and text.isascii() and text.isdigit()


@dataclass(frozen=True, slots=True)
class StoredName:
    """A whole name taken apart.

    Attributes:
        namespace: The namespace's text.
        rollout: The encoded rollout id (text may hide behind a digest).
        choice: See ``RoutingKey``.
        kind: See ``RoutingKey``.
        attempt: The attempt's number.
        object: What it is.
    """

    namespace: str
    rollout: str
    choice: int
    kind: str
    attempt: int
    object: ObjectName

    @property
    def rollout_id(self) -> str | None:
        """The rollout id, or None if the name holds only its digest."""
        return decode_component(self.rollout)


def object_name(key: RoutingKey, namespace: str, attempt: int, what: ObjectName) -> str:
    """Composes the full name of an object."""
    check_int("attempt", attempt, MAX_ATTEMPT)
    return f"{key.prefix(namespace)}{attempt:019d}/{what}"


def parse_name(name: str) -> StoredName:
    """Takes a full name apart.

    Raises:
        InvalidKeyError: no call of this package composes such a name.
    """
    pieces = name.split("/")
    if len(pieces) != 6:
        raise InvalidKeyError(f"{name!r} is no stored name")
    namespace, rollout, choice, kind, attempt, what = pieces
    text = decode_component(namespace)
    decode_component(rollout)
    if text is None or not re.fullmatch(r"[0-9]{6}", choice, re.ASCII) or not is_attempt(attempt):
        raise InvalidKeyError(f"{name!r} is no stored name")
    number = check_int("attempt", int(attempt), MAX_ATTEMPT)
    kind = RoutingKey("_", 0, kind).kind
    return StoredName(text, rollout, int(choice), kind, number, parse_object(what))
