"""Reading ahead in the background: ``Prefetcher``. Lives in one event loop, whose thread alone changes it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..errors import RoutingError
from ..record import RoutingRecord
from ..spec import Capability
from ..store.fetching import Clock
from . import asking, gathering

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..arrays import IntArray
    from ..keys import RoutingKey
    from ..store.routing_store import RoutingStore
    from .asking import Ask, Reading


@dataclasses.dataclass(slots=True, eq=False)
class _Entry:
    """One rollout that is read ahead.

    Attributes:
        ask: What is read.
        clock: When waiting for it ends.
        task: What reads it; None while it waits for a place.
        nbytes: What it takes of the bytes, from when they are about to be moved.
        found: What was read.
        dropped: Whether nobody wants it any more.
    """

    ask: Ask
    clock: Clock
    task: asyncio.Task[None] | None = None
    nbytes: int = 0
    found: Reading | None = None
    dropped: bool = False


class Prefetcher:
    """Rollouts that were read, or are being read, before anybody got them.

    At most ``records`` of them are waited for, read and held, and at most ``nbytes`` bytes of routing; the others
    queue in the order in which they were asked for. What alone is larger than ``nbytes`` is left to ``get``. Errors
    are left to ``get`` as well, which meets them anew.
    """

    def __init__(self, store: RoutingStore, nbytes: int, records: int) -> None:
        self._store = store
        self._limit = nbytes
        self._places = records
        self._used = 0
        self._entries: dict[tuple[object, ...], _Entry] = {}
        self._queue: deque[_Entry] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._ending: set[asyncio.Task[None]] = set()  # a loop alone does not keep its tasks

    def __contains__(self, ask: Ask) -> bool:
        return bool(self._entries) and ask.what in self._entries

    @property
    def held(self) -> tuple[int, int]:
        """How many rollouts and bytes are held or under way."""
        return sum(entry.task is not None for entry in self._entries.values()), self._used

    async def add(self, asks: Sequence[Ask], timeout: float) -> None:
        """Begins to read ahead what is not read ahead yet."""
        for ask in asks:
            if ask.what not in self._entries:
                entry = _Entry(replace(ask, verify=True, fresh=None, recorded=None), Clock(timeout))
                self._entries[ask.what] = entry
                self._queue.append(entry)
        self._start()

    async def take(self, ask: Ask) -> Reading | None:
        """Returns what was read ahead, which is the caller's from then on; None if the caller has to read it."""
        entry = self._entries.pop(ask.what, None)
        if entry is None:
            return None
        try:
            if entry.task is not None and entry.nbytes and entry.found is None:
                await asyncio.wait([entry.task])
        finally:
            found = entry.found
            self._drop(entry)
        # A retry that the caller asks for may have begun since.
        return found if found is not None and found.attempt >= ask.min_attempt else None

    async def release(self, keys: Iterable[RoutingKey]) -> None:
        """Forgets what was read ahead of some rollouts."""
        gone = set(keys)
        for what, entry in list(self._entries.items()):
            if entry.ask.key in gone:
                del self._entries[what]
                self._drop(entry)

    async def clear(self) -> None:
        """Forgets everything and ends what is under way."""
        self._queue.clear()
        entries = list(self._entries.values())
        self._entries.clear()
        for entry in entries:
            self._drop(entry)
        await asyncio.gather(*self._ending)

    def _drop(self, entry: _Entry) -> None:
        """Gives up an entry that is in ``_entries`` no more: its bytes, its place, its task."""
        entry.dropped = True
        entry.found = None
        if entry.task is not None and not entry.task.done():
            ending = asyncio.get_running_loop().create_task(gathering.ended([entry.task]))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        self._free(entry)
        self._start()

    def _free(self, entry: _Entry) -> None:
        self._used -= entry.nbytes
        entry.nbytes = 0
        while self._room:  # whoever does not fit waits again
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _start(self) -> None:
        busy = self.held[0]
        while self._queue and busy < self._places:
            entry = self._queue.popleft()
            if entry.dropped:
                continue
            entry.task = asyncio.get_running_loop().create_task(self._fetch(entry))
            busy += 1

    async def _fetch(self, entry: _Entry) -> None:
        """Waits for a rollout, then for room, then reads it."""
        store, ask = self._store, entry.ask
        schema = store.schema
        assert schema is not None
        try:
            size = asking.nbytes(ask, await asking.wait(store, ask, asking.left(entry.clock)), schema)
            if await self._admit(entry, size):
                found = await asking.read(store, ask, 0.0)
                if isinstance(found, RoutingRecord) and self._lies_in_more(ask):
                    found = replace(found, routing=_frozen_copy(found))
                entry.found = None if entry.dropped else found
        except RoutingError:
            pass
        finally:
            if entry.found is None:
                self._forget(entry)

    async def _admit(self, entry: _Entry, size: int) -> bool:
        """Waits for room for so many bytes and takes it; False if there will never be any, or no need for it."""
        while self._used + size > self._limit and not entry.dropped:
            if size > self._limit:
                return False
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter
        if entry.dropped:
            return False
        self._used += size
        entry.nbytes = size
        return True

    def _forget(self, entry: _Entry) -> None:
        """Lets go of an entry that came to nothing; the next one gets its place."""
        if self._entries.get(entry.ask.what) is entry:
            del self._entries[entry.ask.what]
        self._free(entry)
        self._start()

    def _lies_in_more(self, ask: Ask) -> bool:
        """Whether a range keeps the memory of the whole rollout alive, since the backend cannot read less."""
        whole = ask.rank is None and ask.layers is None and ask.tokens is None and ask.layer_ids is None
        return not whole and Capability.RANGE not in self._store.resolved.spec.capabilities


def _frozen_copy(record: RoutingRecord) -> IntArray:
    copy: IntArray = record.routing.copy()
    copy.flags.writeable = False
    return copy
