"""What a backend's calls are wrapped in: its exceptions become typed errors, its answers are looked at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..backend import Blob
from ..errors import BackendError, RoutingError, StoreClosedError, StoreUnavailableError

if TYPE_CHECKING:
    from ..backend import GetRequest
    from .objects import Objects

_BYTES = (bytes, bytearray, memoryview)


class Translated:
    """Turns whatever a backend raises into a typed error."""

    __slots__ = ("_objects", "_verb")

    def __init__(self, objects: Objects, verb: str) -> None:
        self._objects = objects
        self._verb = verb

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, err: BaseException | None, trace: object) -> None:
        if isinstance(err, Exception):
            translate(self._objects, self._verb, err)


def translate(objects: Objects, verb: str, err: Exception) -> None:
    """Raises the typed error for what a backend raised; returns if it is one already."""
    if isinstance(err, RoutingError):
        return
    name = objects.store_name
    if objects.closed and verb != "_close":
        raise StoreClosedError(f"store {name!r} was closed during the call") from err
    if isinstance(err, (asyncio.TimeoutError, TimeoutError)) and not err.args:
        raise StoreUnavailableError(f"store {name!r} does not answer") from err
    if isinstance(err, OSError):
        raise StoreUnavailableError(f"store {name!r}: {err}", hint="does what it keeps routing in run?") from err
    if isinstance(err, MemoryError):
        raise StoreUnavailableError(
            f"store {name!r} got no memory in {verb}",
            hint="this process has hardly any left: ulimit -v, or a container's limit",
        ) from err
    raise BackendError(
        f"store {name!r} failed in {verb}: {type(err).__name__}: {err}", hint="this is the store's own fault"
    ) from err


def is_sound(blob: object) -> bool:
    """Whether an answer is a blob of bytes."""
    if not isinstance(blob, Blob):
        return False
    header: object = blob.header
    payload: object = blob.payload
    if type(header) is bytes and type(payload) is tuple and len(payload) == 1 and type(payload[0]) is memoryview:
        return True  # the usual case
    if not isinstance(header, _BYTES) or not isinstance(payload, (tuple, list)):
        return False
    for piece in payload:  # noqa: SIM110 - most have one, and a generator costs more than looking at it
        if not isinstance(piece, _BYTES):
            return False
    return True


def sliced(blob: Blob, request: GetRequest) -> Blob:
    """Returns the asked ranges of a whole object."""
    if request.ranges is None:
        return blob
    whole = memoryview(blob.payload[0]).cast("B") if blob.payload else memoryview(b"")
    return Blob(blob.header, tuple(whole[start:stop] for start, stop in request.ranges))
