"""A backend as the store uses it: every verb bounded in time, capabilities respected, only typed errors let out."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from ..backend import Backend, Blob, Buffer, GetRequest
from ..envelope import Header, PartHeader, decode_header, encode_header
from ..errors import (
    AbsentError,
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    RoutingError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from ..spec import Capability

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

T = TypeVar("T")

CALL_LIMIT = 30.0  # s that one call of an asynchronous backend may take before it counts as unavailable

READABLE = Capability.READ | Capability.LIST


class Objects:
    """Stored objects by full name.

    Attributes:
        store_name: How error messages call the store.
        has: What the backend does natively.
    """

    def __init__(self, store_name: str, backend: Backend, has: Capability, call_limit: float | None) -> None:
        self.store_name = store_name
        self.has = has
        self._backend = backend
        self._limit = call_limit
        self._state = "new"

    async def open(self) -> None:
        """Opens the backend; closes it again if that fails."""
        if self._state != "new":
            raise StoreClosedError("a store is opened once", hint="open_store(...) makes a new one")
        try:
            await self._call(self._backend._open())
        except BaseException:
            await self._close(5.0)
            raise
        self._state = "open"

    async def close(self, timeout: float) -> None:
        """Closes the backend; harmless when it is not open. Raises StoreUnavailableError when it hangs."""
        if self._state == "open":
            await self._close(timeout)
        self._state = "closed"

    async def _close(self, timeout: float) -> None:
        self._state = "closed"
        if self._limit is None:
            await self._backend._close()
            return
        try:
            await asyncio.wait_for(self._backend._close(), timeout)
        except asyncio.TimeoutError:
            raise StoreUnavailableError(f"store {self.store_name!r} did not close within {timeout} s") from None

    def need(self, capability: Capability = Capability.NONE) -> None:
        """Raises StoreClosedError or UnsupportedError unless the store is open and can do this."""
        if self._state != "open":
            raise StoreClosedError(
                "the store is closed" if self._state == "closed" else "the store is not open",
                hint="use it inside `with open_store(...)`",
            )
        if capability not in self.has:
            raise UnsupportedError(
                f"store {self.store_name!r} cannot do this: it lacks {(capability & ~self.has).name}",
                hint="choose another routing_store_type to read routing",
            )

    async def _call(self, operation: Awaitable[T], limit: float | None = None) -> T:
        try:
            if self._limit is None:
                return await operation
            return await asyncio.wait_for(operation, limit or self._limit)
        except asyncio.TimeoutError as err:
            raise StoreUnavailableError(f"store {self.store_name!r} does not answer") from err
        except RoutingError:
            raise
        except OSError as err:
            raise StoreUnavailableError(f"store {self.store_name!r}: {err}") from err

    async def flush(self) -> None:
        """See ``Backend._flush``."""
        await self._call(self._backend._flush())

    async def names(self, prefix: str) -> list[str]:
        """Returns the names under a prefix, sorted."""
        return await self._call(self._backend._list(prefix))

    async def changed(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        """Returns the names under a prefix as soon as they differ, or at the deadline (``time.monotonic()``)."""
        limit = max(0.0, deadline - time.monotonic()) + (self._limit or 0.0)
        return await self._call(self._backend._wait(prefix, seen, deadline), limit)

    async def create(self, name: str, header: Header, payload: Buffer) -> bool:
        """Stores an object under its name; returns whether the same content was there already.

        Raises:
            ConflictError: other content is stored under the name.
        """
        try:
            await self._call(self._backend._put(name, encode_header(header), payload))
        except AlreadyExistsError as err:
            raw = err.facts.get("header")
            stored = await self.header(name) if raw is None else decode_header(raw, name=name)
            if not header.same_content(stored):
                raise ConflictError(
                    f"other content is stored for {header.key()}, attempt {header.attempt}",
                    hint="stored routing never changes: put with a higher attempt, or delete the rollout first",
                    name=name,
                ) from None
            return True
        return False

    async def get(self, request: GetRequest) -> Blob:
        """Gets one object; whole where the backend cannot read ranges."""
        blobs = await self.get_many([request])
        if isinstance(blobs[0], AbsentError):
            raise blobs[0]
        return blobs[0]

    async def get_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        """Gets objects, or the asked ranges of them; absences are returned in place."""
        if Capability.RANGE not in self.has:
            blobs = await self._get_many([GetRequest(request.name) for request in requests])
            return [
                blob if isinstance(blob, AbsentError) else _sliced(blob, request)
                for blob, request in zip(blobs, requests, strict=True)
            ]
        return await self._get_many(requests)

    async def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        if len(requests) == 1:
            request = requests[0]
            verb = self._backend._get
            operation = verb(request.name) if request.ranges is None else verb(request.name, request.ranges)
            try:
                blobs: list[Blob | AbsentError] = [await self._call(operation)]
            except AbsentError as err:
                return [err]
        else:
            blobs = await self._call(self._backend._get_many(requests))
        for request, blob in zip(requests, blobs, strict=True):
            if not isinstance(blob, (Blob, AbsentError)):
                raise CorruptDataError(
                    f"store {self.store_name!r} returned {type(blob).__name__} instead of an object or an error",
                    hint="the backend breaks the contract; its authors can run the conformance kit",
                    name=request.name,
                )
        return blobs

    async def header(self, name: str) -> Header:
        """Reads and checks an object's header."""
        return decode_header((await self.get(GetRequest(name, ()))).header, name=name)

    async def part_header(self, name: str) -> PartHeader:
        """Reads and checks the header of a part."""
        header = await self.header(name)
        if not isinstance(header, PartHeader):
            raise CorruptDataError("the header is not that of a part", name=name)
        return header

    async def delete(self, names: Sequence[str]) -> int:
        """Deletes objects; returns how many existed."""
        return await self._call(self._backend._delete(names)) if names else 0


def _sliced(blob: Blob, request: GetRequest) -> Blob:
    if request.ranges is None:
        return blob
    whole = memoryview(blob.payload[0]).cast("B") if blob.payload else memoryview(b"")
    return Blob(blob.header, tuple(whole[start:stop] for start, stop in request.ranges))
