"""One process's way into the store, for a reader: ``Opened``; and what a fork does to readers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from ..backend import BlockingBackend
from ..errors import RoutingError, StoreClosedError
from ..store.bridge import LoopThread, as_async, moves_many
from ..store.routing_store import RoutingStore
from ..store.sync import SyncStore
from . import gathering
from .at_once import read_at_once
from .prefetch import Prefetcher

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ..backend import Backend
    from ..resolver import ResolvedStore
    from ..schema import RoutingSchema
    from ..store.fetching import Clock
    from .asking import Ask, Reading
    from .handle import ReaderHandle
    from .places import Places

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Concurrent:
    """An event loop in a thread, and what runs in it.

    Attributes:
        loop: The loop.
        store: The store, open in the loop.
        prefetched: What was read ahead.
        lanes: How many fetches the store makes at the same time, if each of them moves one object after the other.
    """

    loop: LoopThread
    store: RoutingStore
    prefetched: Prefetcher
    lanes: int = 1
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)  # a loop alone does not keep its tasks

    def run(self, job: Callable[[RoutingStore, Prefetcher], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in the loop and returns its result."""
        return self.loop.run(job(self.store, self.prefetched))

    def begin(
        self, asks: Sequence[Ask], clock: Clock, done: Callable[[int, Reading | RoutingError], None]
    ) -> Callable[[], None]:
        """Begins to settle asks.

        Args:
            asks: What to read.
            clock: When waiting ends.
            done: Told, in the loop's thread, what became of each ask, by index; and of -1 if all of it came to an end.

        Returns:
            What ends it.
        """

        async def settle() -> None:
            try:
                await gathering.settle_all(self.store, self.prefetched, asks, clock, self.lanes, done)
            except asyncio.CancelledError:
                done(-1, StoreClosedError("the reader was closed during the iteration"))
                raise
            except RoutingError as err:
                done(-1, err)

        async def start() -> asyncio.Task[None]:
            task = asyncio.get_running_loop().create_task(settle())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task

        def end() -> None:
            if not task.done():
                with contextlib.suppress(StoreClosedError):
                    self.loop.run(gathering.ended([task]))

        task = self.loop.run(start())
        return end


def _lanes(backend: Backend | BlockingBackend) -> int:
    """How many fetches are made at the same time; one that moves many objects in one go is not helped by others."""
    if not isinstance(backend, BlockingBackend) or moves_many(backend):
        return 1
    return min(backend.threads, max(2, os.cpu_count() or 2))


class Opened:
    """The store as one process has it open. Safe to use from several threads.

    One rollout is read in the caller's thread if the backend blocks. For several at once there is an event loop: that
    of an asynchronous backend, or, from the first need on, one over a second handle of a blocking backend.

    Attributes:
        store: The store for plain code.
    """

    def __init__(self, resolved: ResolvedStore, schema: RoutingSchema, nbytes: int, records: int) -> None:
        self.store = SyncStore(resolved, schema)
        self._schema = schema
        self._bounds = nbytes, records
        self._bulk = self.store.moves_many
        self._lock = threading.Lock()
        self._concurrent: Concurrent | None = None
        self._closed = False

    def __del__(self) -> None:
        concurrent = getattr(self, "_concurrent", None)
        if concurrent is not None:
            concurrent.loop.stop(0.0)  # a reader that was dropped, not closed, leaves no thread behind

    def read_at_once(self, asks: Sequence[Ask], places: Places) -> dict[int, Reading]:
        """Returns, by index, what of several asks is there in one part: read in the calling thread, one fetch for all.

        Only of a blocking backend that moves many objects in one go; waking other threads would cost more.
        """
        begun = self._concurrent
        if not self._bulk:
            return {}
        wanted = [pair for pair in enumerate(asks) if begun is None or pair[1] not in begun.prefetched]
        return read_at_once(self.store, wanted, places)

    @property
    def begun(self) -> Concurrent | None:
        """What ``concurrent`` returned, if it was needed before."""
        return self._concurrent

    def concurrent(self) -> Concurrent:
        """Returns where several rollouts are read at once.

        Raises:
            StoreUnavailableError: The store does not open a second time.
            StoreClosedError: ``close`` was called.
        """
        with self._lock:
            if self._closed:
                raise StoreClosedError("the reader was closed")
            if self._concurrent is None:
                self._concurrent = self._begin()
            return self._concurrent

    def _begin(self) -> Concurrent:
        if self.store.loop is not None:

            async def same(store: RoutingStore) -> tuple[RoutingStore, Prefetcher]:
                return store, Prefetcher(store, *self._bounds)

            return Concurrent(self.store.loop, *self.store.run(same))
        resolved = self.store.resolved
        backend = resolved.create_backend()
        store = RoutingStore(resolved, as_async(backend), self._schema, shared_loop=False)
        loop = LoopThread()
        try:
            loop.run(store.open())
        except BaseException:
            loop.stop()
            raise
        return Concurrent(loop, store, Prefetcher(store, *self._bounds), _lanes(backend))

    def close(self, timeout: float) -> None:
        """Ends what is under way and closes the store; harmless when already closed.

        Raises:
            StoreUnavailableError: It did not close within ``timeout`` seconds.
        """
        with self._lock:
            self._closed = True
            concurrent, self._concurrent = self._concurrent, None
        try:
            if concurrent is not None and concurrent.loop.alive:
                concurrent.loop.run(concurrent.prefetched.clear(), timeout)
                if concurrent.loop is not self.store.loop:
                    concurrent.loop.run(concurrent.store.close(timeout), timeout + 1.0)
        finally:
            if concurrent is not None and concurrent.loop is not self.store.loop:
                concurrent.loop.stop()
            self.store.close(timeout)


class _Readers:
    """The readers of this process, so that a forked child can make them its own."""

    def __init__(self) -> None:
        self.readers: weakref.WeakSet[ReaderHandle] = weakref.WeakSet()
        self.inherited: list[Opened] = []
        os.register_at_fork(after_in_child=self.in_child)
        # The first event loop is made under a lock of asyncio; a fork meanwhile would leave it locked in the child.
        asyncio.new_event_loop().close()

    def in_child(self) -> None:
        """Lets readers open the store anew. What the parent opened stays as it is: closing it here could harm it."""
        for reader in list(self.readers):
            opened = reader.forked()
            if opened is not None:
                self.inherited.append(opened)


@lru_cache(maxsize=1)
def _readers() -> _Readers:
    return _Readers()


def made(reader: ReaderHandle) -> None:
    """Takes note of a reader."""
    _readers().readers.add(reader)
