"""Errors as they travel from a producer to a reader, in a reply's place for the header; see ``frames``."""

from __future__ import annotations

from typing import Final

import msgspec

from .... import errors
from ....errors import CorruptDataError, RoutingError, StoreUnavailableError

MAX_ERROR: Final = 4096


class _Error(msgspec.Struct, frozen=True, array_like=True):
    code: str
    message: str
    hint: str
    facts: dict[str, str | int | float | bool | None]


_KINDS: Final = {
    kind.code: kind
    for kind in (
        errors.NotFoundError,
        errors.DeletedError,
        errors.EvictedError,
        errors.ExpiredError,
        errors.SupersededError,
        StoreUnavailableError,
    )
}

_NO_FACTS = frozenset({"self", "message", "hint"})


def encode_error(err: RoutingError) -> bytes:
    """Returns an error in at most ``MAX_ERROR`` bytes: those that a reader can do something about, as they are."""
    code = err.code if err.code in _KINDS else StoreUnavailableError.code
    facts = {key: value for key, value in err.facts.items() if _is_simple(value)}
    raw = msgspec.msgpack.encode(_Error(code, err.message, err.hint, facts))
    if len(raw) > MAX_ERROR:
        raw = msgspec.msgpack.encode(_Error(code, f"{err.message:.500}", "", {}))
    return raw


def decode_error(raw: bytes | bytearray | memoryview) -> RoutingError:
    """Returns what ``encode_error`` was given.

    Raises:
        CorruptDataError: it is no such thing.
    """
    try:
        found = msgspec.msgpack.decode(raw, type=_Error)
        kind = _KINDS[found.code]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        raise CorruptDataError("this is no error") from None
    facts = {key: value for key, value in found.facts.items() if key not in _NO_FACTS}
    return kind(found.message, hint=found.hint, **facts)


def _is_simple(value: object) -> bool:
    """Whether a fact can travel."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    return value is None or isinstance(value, (str, float))
