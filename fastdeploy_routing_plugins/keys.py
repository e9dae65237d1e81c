"""Identity: what a piece of routing is called, for people (``RoutingKey``) and for stores (names).

A stored object's *name* is six components joined by ``/``::

    namespace / rollout / choice / kind / attempt / object

``object`` is a part, a seal or an abort mark (see ``ObjectName``). Components contain only the characters
``0-9 a-z - . _ % = ` ~``, so a name is safe in every file system and database, whatever the id was. The encoding is
injective, keeps the order of ids (by code point) and keeps prefixes; ids whose encoding is longer than 128 characters
become a digest instead, and the full id is compared in the header on every read.
"""

from __future__ import annotations

import hashlib
import operator
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import SupportsIndex

from .errors import InvalidKeyError

MAX_ID_BYTES = 4096
MAX_COMPONENT = 128
MAX_CHOICE = 999_999
MAX_ATTEMPT = 2**63 - 1  # nanoseconds since the epoch fit
DEFAULT_NAMESPACE = "default"
DEFAULT_KIND = "routing"

_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LITERAL = frozenset(b"-0123456789_abcdefghijklmnopqrstuvwxyz")
_DIGEST_MARK = "~x"  # no escape looks like this: escapes continue with two hex digits
_DEVICE_NAMES = frozenset(
    ["con", "prn", "aux", "nul", *(f"com{i}" for i in range(10)), *(f"lpt{i}" for i in range(10))]
)
# Escape = leader + two hex digits. The leader sorts between the literals around the byte, which keeps the order.
_LEADERS = ((0x2D, "%"), (0x30, "."), (0x5F, "="), (0x61, "`"), (0x100, "~"))
_ESCAPE = [
    chr(b) if b in _LITERAL else next(leader for end, leader in _LEADERS if b < end) + f"{b:02x}" for b in range(256)
]
_TOKEN = re.compile(r"[%.=`~][0-9a-f]{2}|[-0-9_a-z]")


def encode_component(text: str, *, what: str = "rollout id", digest: bool = True) -> str:
    """Encodes any text as one name component.

    Args:
        text: Any text of 1 to 4,096 UTF-8 bytes without lone surrogates.
        what: How error messages call it.
        digest: Whether over-long text may become a digest; otherwise it is refused.

    Raises:
        InvalidKeyError: ``text`` is no such text.
    """
    if not isinstance(text, str):
        raise InvalidKeyError(f"{what} must be a str, got {type(text).__name__}")
    encoded = _encode(text if type(text) is str else str.__str__(text), what)
    if digest or not encoded.startswith(_DIGEST_MARK):
        return encoded
    raise InvalidKeyError(f"{what} {text[:40]!r} is too long or a device name", hint="choose a shorter one")


@lru_cache(maxsize=1024)  # a key is encoded several times between a call and the object's header
def _encode(text: str, what: str) -> str:
    if not text:
        raise InvalidKeyError(f"{what} is empty", hint=f"a {what} has at least one character")
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise InvalidKeyError(f"{what} {text!r} has a lone surrogate", hint="decode it as UTF-8 first") from err
    if len(raw) > MAX_ID_BYTES:
        raise InvalidKeyError(f"{what} has {len(raw)} bytes, the limit is {MAX_ID_BYTES}")
    encoded = "".join([_ESCAPE[b] for b in raw])
    if len(encoded) <= MAX_COMPONENT and encoded not in _DEVICE_NAMES:
        return encoded
    return _DIGEST_MARK + hashlib.blake2b(raw, digest_size=20).hexdigest()


def encode_prefix(text: str) -> str:
    """Encodes the beginning of an id: every encoded id that is no digest and begins with ``text`` begins with this."""
    return "".join([_ESCAPE[b] for b in text.encode("utf-8")])


def decode_component(component: str) -> str | None:
    """Returns the text behind a component, or None if it is a digest (the header has the text).

    Raises:
        InvalidKeyError: no encoding yields ``component``.
    """
    if component.startswith(_DIGEST_MARK):
        if re.fullmatch(r"~x[0-9a-f]{40}", component):
            return None
        raise InvalidKeyError(f"{component!r} is no encoded id")
    raw = bytearray()
    pos = 0
    while pos < len(component):
        match = _TOKEN.match(component, pos)
        if match is None:
            raise InvalidKeyError(f"{component!r} is no encoded id")
        token = match.group()
        byte = ord(token) if len(token) == 1 else int(token[1:], 16)
        if _ESCAPE[byte] != token:
            raise InvalidKeyError(f"{component!r} is no encoded id")
        raw.append(byte)
        pos = match.end()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as err:
        raise InvalidKeyError(f"{component!r} is no encoded id") from err
    if not text or len(component) > MAX_COMPONENT or component in _DEVICE_NAMES:
        raise InvalidKeyError(f"{component!r} is no encoded id")
    return text


@dataclass(frozen=True, slots=True)
class RolloutId:
    """A rollout id taken apart where a feature needs it: ``data:gen:turn:segment``.

    Attributes:
        text: The whole id.
        trajectory: ``data:gen``, or the whole id if it has another form.
        turn: The turn's number, or None if the id has another form.
        segment: The segment's number, or None.
    """

    text: str
    trajectory: str
    turn: int | None = None
    segment: int | None = None

    @classmethod
    def parse(cls, text: str) -> RolloutId:
        """Takes an id apart without guessing: other forms than ``*:[0-9]+:[0-9]+`` have no turn."""
        match = re.fullmatch(r"(.+):([0-9]{1,18}):([0-9]{1,18})", text, re.DOTALL | re.ASCII)
        if match is None:
            return cls(text, text)
        return cls(text, match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True, order=True)
class RoutingKey:
    """The name of one sample's routing within a namespace.

    Attributes:
        rollout_id: The trainer's id of the sample; any text of 1 to 4,096 UTF-8 bytes. Never a path, never evaluated.
        choice: Which of a request's ``n`` choices, 0 to 999,999.
        kind: What is recorded, ``[a-z][a-z0-9_]*`` of at most 32 characters; ``"routing"`` unless stated.
    """

    rollout_id: str
    choice: int = 0
    kind: str = DEFAULT_KIND

    def __post_init__(self) -> None:
        encode_component(self.rollout_id)
        # Subclasses of str (numpy.str_ is one) and NumPy's integers become plain: they are stored and compared.
        if type(self.rollout_id) is not str:
            object.__setattr__(self, "rollout_id", str.__str__(self.rollout_id))
        if type(self.choice) is not int or not 0 <= self.choice <= MAX_CHOICE:
            object.__setattr__(self, "choice", check_int("choice", self.choice, MAX_CHOICE))
        kind: object = self.kind
        if kind is DEFAULT_KIND:
            return
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise InvalidKeyError(f"kind {kind!r} must match [a-z][a-z0-9_]* and have at most 32 characters")
        if type(kind) is not str:
            object.__setattr__(self, "kind", str.__str__(kind))

    def __str__(self) -> str:
        extra = (f"#{self.choice}" if self.choice else "") + (f" ({self.kind})" if self.kind != DEFAULT_KIND else "")
        return f"{self.rollout_id!r}{extra}"

    def prefix(self, namespace: str) -> str:
        """Returns the prefix of the names of everything stored under this key, all attempts included."""
        return f"{encode_namespace(namespace)}/{encode_component(self.rollout_id)}/{self.choice:06d}/{self.kind}/"


def check_int(what: str, value: object, limit: int, *, low: int = 0) -> int:
    """Returns ``value``, a Python or NumPy integer, as an int from ``low`` to ``limit``; raises InvalidKeyError."""
    number = as_int(value)
    if number is None or not low <= number <= limit:
        raise InvalidKeyError(f"{what} must be an integer from {low} to {limit}, got {shown(value)}")
    return number


def as_int(value: object) -> int | None:
    """Returns a Python or NumPy integer as an int, and None for everything else, bool and arrays included."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or type(value).__name__ == "bool":
        return None
    try:
        return operator.index(value)
    except TypeError:  # arrays claim to be indices
        return None


def shown(value: object) -> str:
    """Returns a short text for a value in a message; values without a printable form included."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge integer"
    return text if len(text) <= 80 else f"{text[:80]}…"


def as_key(key: str | RoutingKey, choice: int = 0) -> RoutingKey:
    """Returns the key that an id, or a key, and a choice mean.

    Raises:
        InvalidKeyError: no such key exists, or ``choice`` contradicts the key's own.
    """
    if not isinstance(key, RoutingKey):
        return RoutingKey(key, choice)
    if check_int("choice", choice, MAX_CHOICE) not in (0, key.choice):
        raise InvalidKeyError(f"choice={choice} contradicts the key's choice {key.choice}")
    return key


@lru_cache(maxsize=64)
def encode_namespace(namespace: str) -> str:
    """Encodes a namespace; it must be short, because nothing else remembers its text."""
    return encode_component(namespace, what="namespace", digest=False)
