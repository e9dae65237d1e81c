"""A backend as the store uses it: every verb bounded in time, capabilities respected, only typed errors let out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..backend import Backend, Blob, Buffer, GetRequest
from ..envelope import Header, PartHeader, decode_header, encode_header
from ..errors import (
    AbsentError,
    AlreadyExistsError,
    BackendError,
    ConflictError,
    CorruptDataError,
    RoutingError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from ..keys import as_int, shown
from ..spec import Capability
from .guarding import Translated, is_sound, sliced, translate
from .stating import check_weights
from .undigested import Undigested

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..arena.file import ArenaFile

T = TypeVar("T")

_WAIT_SLICE = 1.0  # s between looks whether the store was closed under a waiting reader
_OFFLOAD = 1 << 18  # bytes; checking and digesting more would hold an event loop up for over 0.1 ms
CALL_LIMIT = 30.0  # s that one call of an asynchronous backend may take before it counts as unavailable

READABLE = Capability.READ | Capability.LIST


class Objects:
    """Stored objects by full name.

    Attributes:
        store_name: How error messages call the store.
        has: What the backend does natively.
        digests_on_copy: See ``BlockingBackend``.
    """

    def __init__(
        self, store_name: str, backend: Backend, has: Capability, call_limit: float | None, shared_loop: bool
    ) -> None:
        self.store_name = store_name
        self.has = has
        self._ranges = Capability.RANGE in has  # looked at with every read
        self.digests_on_copy = backend.digests_on_copy
        self._backend = backend
        self._limit = call_limit
        self._shared_loop = shared_loop
        self._state = "new"

    async def open(self) -> None:
        """Opens the backend; closes it again if that fails."""
        if self._state != "new":
            raise StoreClosedError("a store is opened once", hint="open_store(...) makes a new one")
        try:
            await self._call(self._backend._open)
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong first is what counts
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
        with Translated(self, "_close"):
            try:
                if self._limit is None:
                    await self._backend._close()
                else:
                    await asyncio.wait_for(self._backend._close(), timeout)
            except asyncio.TimeoutError:
                raise StoreUnavailableError(f"store {self.store_name!r} did not close within {timeout} s") from None

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._state == "closed"

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

    async def _call(self, verb: Callable[..., Awaitable[T]], *args: Any, limit: float | None = None) -> T:
        try:
            if self._limit is None:
                return await verb(*args)
            return await asyncio.wait_for(verb(*args), limit or self._limit)
        except Exception as err:
            translate(self, verb.__name__, err)
            raise

    def broken(self, verb: str, what: str) -> BackendError:
        """Returns the error for a backend that breaks its contract."""
        return BackendError(
            f"store {self.store_name!r} breaks the contract of a backend: {verb} {what}",
            hint="the store's authors can run the conformance kit",
        )

    async def offload(self, nbytes: int, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Runs work on ``nbytes`` of data; large work in a thread, where it would hold others' event loop up."""
        if not self._shared_loop or nbytes < _OFFLOAD:
            return function(*args, **options)
        return await asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **options))

    async def flush(self) -> None:
        """See ``Backend._flush``."""
        await self._call(self._backend._flush)

    async def names(self, prefix: str) -> list[str]:
        """Returns the names under a prefix, sorted."""
        return self._checked_names(prefix, await self._call(self._backend._list, prefix))

    async def look(self, prefix: str, *, view: bool) -> tuple[list[str], Blob | None]:
        """Returns the names under a prefix and, if the backend gives it along, the object if there is only one."""
        return self.looked(prefix, await self._call(self._backend._look, prefix, view))

    def looked(self, prefix: str, answer: object) -> tuple[list[str], Blob | None]:
        """Checks what a backend's ``_look`` returned."""
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self.broken("_look", f"returned {type(answer).__name__}, not names and an object")
        blob: Blob | None = answer[1]
        if blob is not None:
            self._check_sound((blob,))
        return self._checked_names(prefix, answer[0]), blob

    async def names_of(self, prefixes: Sequence[str]) -> list[list[str]]:
        """Returns the names under each of several prefixes, listed at the same time."""
        found: object = await self._call(self._backend._list_many, prefixes)
        if not isinstance(found, list) or len(found) != len(prefixes):
            raise self.broken("_list_many", "did not answer for each prefix")
        return [self._checked_names(prefix, names) for prefix, names in zip(prefixes, found, strict=True)]

    async def changed(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        """Returns the names under a prefix as soon as they differ, or at the deadline (``time.monotonic()``)."""
        while True:
            end = min(deadline, time.monotonic() + _WAIT_SLICE)
            limit = _WAIT_SLICE + (self._limit or 0.0)
            found = self._checked_names(prefix, await self._call(self._backend._wait, prefix, seen, end, limit=limit))
            self.need()  # closed meanwhile?
            if end >= deadline or found != list(seen):
                return found

    def _checked_names(self, prefix: str, found: object) -> list[str]:
        if not isinstance(found, list):
            raise self.broken("_list", f"returned {type(found).__name__}, not a list")
        for name in found:
            if not isinstance(name, str) or not name.startswith(prefix):
                raise self.broken("_list", f"names {shown(name)}, which does not begin with {prefix!r}")
        return found

    async def create(self, name: str, header: Header, payload: Buffer) -> bool:
        """Stores an object under its name; returns whether the same content was there already.

        Raises:
            ConflictError: other content is stored under the name.
        """
        try:
            answer: object = await self._call(self._backend._put, name, encode_header(header), payload)
        except AlreadyExistsError as err:
            raw = err.facts.get("header")
            if raw is None:
                stored = await self.header(name)
            elif isinstance(raw, (bytes, bytearray, memoryview)):
                stored = decode_header(raw, name=name)
            else:
                raise self.broken("_put", f"raised AlreadyExistsError with a {type(raw).__name__} as header") from err
            if isinstance(payload, Undigested):
                header = payload.digested()
            if not header.same_content(stored):
                raise ConflictError(
                    f"other content is stored for {header.key()}, attempt {header.attempt}",
                    hint="stored routing never changes: put with a higher attempt, or delete the rollout first",
                    name=name,
                ) from None
            check_weights(name, header, stored)
            return True
        if answer is not None:
            raise self.broken("_put", f"returned {shown(answer)}; it returns nothing, or raises")
        return False

    async def get(self, request: GetRequest) -> Blob:
        """Gets one object; whole where the backend cannot read ranges."""
        blobs = await self.get_many([request])
        if isinstance(blobs[0], AbsentError):
            raise blobs[0]
        return blobs[0]

    async def get_many(self, requests: Sequence[GetRequest], *, view: bool = False) -> list[Blob | AbsentError]:
        """Gets objects, or the asked ranges of them; absences are returned in place.

        Args:
            requests: What to get.
            view: Whether the bytes may lie in the store's own memory.
        """
        if not self._ranges:
            blobs = await self._get_many([GetRequest(request.name) for request in requests])
            return [
                blob if isinstance(blob, AbsentError) else sliced(blob, request)
                for blob, request in zip(blobs, requests, strict=True)
            ]
        if view:
            return await self._fetched(self._backend._view_many, requests)
        return await self._get_many(requests)

    async def absence(self, prefix: str, plain: AbsentError, *, final: bool) -> None:
        """Raises why nothing is under a prefix, if the backend knows.

        Args:
            prefix: Under which nothing is.
            plain: What is known without the backend.
            final: Whether nobody waits any longer; before, only what waiting does not cure is raised.
        """
        why = await self.why_absent(prefix)
        if isinstance(why, AbsentError):
            if final:
                raise type(why)(plain.message, hint=why.message, **{**plain.facts, **why.facts})
        elif why is not None:
            raise why

    async def why_absent(self, prefix: str) -> RoutingError | None:
        """Returns why nothing is under a prefix, if the backend knows."""
        why: object = await self._call(self._backend._absence, prefix)
        if why is None or isinstance(why, RoutingError):
            return why
        raise self.broken("_absence", f"returned {shown(why)}, not an error")

    async def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        blobs: list[Blob | AbsentError]
        if len(requests) == 1:
            request = requests[0]
            args = (request.name,) if request.ranges is None else (request.name, request.ranges)
            try:
                blobs = [await self._call(self._backend._get, *args)]
            except AbsentError as err:
                return [err]
            self._check_sound(blobs)
            return blobs
        return await self._fetched(self._backend._get_many, requests)

    async def _fetched(
        self,
        verb: Callable[[Sequence[GetRequest]], Awaitable[list[Blob | AbsentError]]],
        requests: Sequence[GetRequest],
    ) -> list[Blob | AbsentError]:
        blobs = await self._call(verb, requests)
        answers: object = blobs
        if not isinstance(answers, list) or len(answers) != len(requests):
            raise self.broken(verb.__name__, "did not answer each request")
        self._check_sound(blobs)
        return blobs

    def _check_sound(self, blobs: Sequence[object]) -> None:
        for blob in blobs:
            if not isinstance(blob, AbsentError) and not is_sound(blob):
                raise self.broken("_get", f"returned {type(blob).__name__}, not a Blob of bytes; absence is an error")

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
        if not names:
            return 0
        count = self._count("_delete", await self._call(self._backend._delete, names))
        if count > len(names):
            raise self.broken("_delete", f"says that it deleted {count} of {len(names)} objects")
        return count

    async def release(self, names: Sequence[str]) -> None:
        """See ``Backend._release``; does nothing where the backend retains nothing."""
        if names and Capability.RETAIN in self.has:
            await self._call(self._backend._release, names)

    async def make_room(self, arena: ArenaFile, nbytes: int) -> int:
        """See ``Backend._make_room``."""
        return self._count("_make_room", await self._call(self._backend._make_room, arena, nbytes))

    async def inherit(self) -> None:
        """See ``Backend._inherit``."""
        await self._call(self._backend._inherit)

    async def linger(self) -> None:
        """See ``Backend._linger``; not bounded in time, which is the backend's to do."""
        with Translated(self, "_linger"):
            await self._backend._linger()

    async def clear(self, prefix: str) -> int:
        """Deletes everything under a prefix; returns how many objects that were."""
        return self._count("_clear", await self._call(self._backend._clear, prefix))

    def _count(self, verb: str, answer: object) -> int:
        count = as_int(answer)
        if count is None or count < 0:
            raise self.broken(verb, f"returned {shown(answer)}, not a count")
        return count
