"""One store over both forms of backend, from asyncio code and from plain code.

``as_async`` gives a ``BlockingBackend`` the verbs of ``Backend`` by running it in threads. ``inline`` does the same
without threads: the coroutines never suspend, so plain code drives them in its own thread with ``run_inline`` and pays
no hop. ``LoopThread`` runs an asynchronous backend for plain code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..backend import Backend, Blob, BlockingBackend, Buffer, GetRequest, Ranges, poll_until_changed
from ..errors import StoreClosedError, StoreUnavailableError
from ..threads import begin
from .forks import at_work
from .pool import DaemonPool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ..arena.file import ArenaFile
    from ..errors import AbsentError, RoutingError

T = TypeVar("T")

_WAITERS = 16  # native waits that may each occupy a thread; further ones poll
_ALIVE_CHECK = 1.0  # s between looks whether the loop still runs
_WAIT_SLICE = 0.1  # s a waiting thread may outlive a cancelled waiter


class _Calls(Backend):
    """The verbs of ``Backend`` over a ``BlockingBackend``; ``_call`` decides where they run."""

    def __init__(self, blocking: BlockingBackend) -> None:
        self.blocking = blocking
        self.digests_on_copy = blocking.digests_on_copy
        self._run = at_work().run

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        return self._run(function, *args)

    async def _open(self) -> None:
        await self._call(self.blocking._open)

    async def _close(self) -> None:
        await self._call(self.blocking._close)

    async def _flush(self) -> None:
        await self._call(self.blocking._flush)

    async def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        verb: Callable[..., object] = self.blocking._put  # returns nothing, unless it breaks its contract
        answer: object = await self._call(verb, name, header, payload)
        return answer  # type: ignore[return-value]

    async def _delete(self, names: Sequence[str]) -> int:
        return await self._call(self.blocking._delete, names)

    async def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        if ranges is None:
            return await self._call(self.blocking._get, name)
        return await self._call(self.blocking._get, name, ranges)

    async def _list(self, prefix: str) -> list[str]:
        return await self._call(self.blocking._list, prefix)

    async def _clear(self, prefix: str) -> int:
        return await self._call(self.blocking._clear, prefix)

    async def _wait(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        return self.blocking._wait(prefix, seen, deadline)  # no fork waits for it

    async def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        return await self._call(self.blocking._get_many, requests)

    async def _view_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        return await self._call(self.blocking._view_many, requests)

    async def _absence(self, prefix: str) -> RoutingError | None:
        return await self._call(self.blocking._absence, prefix)

    async def _list_many(self, prefixes: Sequence[str]) -> list[list[str]]:
        return await self._call(self.blocking._list_many, prefixes)

    async def _look(self, prefix: str, view: bool) -> tuple[list[str], Blob | None]:
        return await self._call(self.blocking._look, prefix, view)

    async def _release(self, names: Sequence[str]) -> None:
        await self._call(self.blocking._release, names)

    async def _make_room(self, arena: ArenaFile, nbytes: int) -> int:
        return await self._call(self.blocking._make_room, arena, nbytes)

    async def _inherit(self) -> None:
        await self._call(self.blocking._inherit)

    async def _linger(self) -> None:
        self.blocking._linger()  # no fork waits for it


class _Threads(_Calls):
    """A blocking backend in a thread pool of its own."""

    def __init__(self, blocking: BlockingBackend, *, bare: bool = False) -> None:
        super().__init__(blocking)
        self.digests_on_copy = False  # the copy is made here, see ``_put``
        self._bare = bare
        self._pool = DaemonPool(blocking.threads, "fd-routing-store")
        self._wait_pool: DaemonPool | None = None
        self._waiting = 0
        self._native_wait = type(blocking)._wait is not BlockingBackend._wait

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, function, *args)

    async def _linger(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, self.blocking._linger)

    async def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        # The caller's memory is the caller's again when this is cancelled, the thread's work is not: hence the copy.
        return await super()._put(name, header, payload if self._bare else payload.retain())

    async def _wait(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        if not self._native_wait or self._waiting >= _WAITERS:
            return await poll_until_changed(self._list, prefix, seen, deadline)
        if self._wait_pool is None:
            self._wait_pool = DaemonPool(_WAITERS, "fd-routing-wait")
        loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            while True:
                end = deadline if self._bare else min(deadline, time.monotonic() + _WAIT_SLICE)
                names = await loop.run_in_executor(self._wait_pool, self.blocking._wait, prefix, seen, end)
                if end >= deadline or names != list(seen):
                    return names
        finally:
            self._waiting -= 1

    async def _close(self) -> None:
        try:
            await super()._close()
        finally:
            self._pool.shutdown()
            if self._wait_pool is not None:
                self._wait_pool.shutdown()


def as_async(backend: Backend | BlockingBackend, *, bare: bool = False) -> Backend:
    """Returns an asynchronous backend: the same one, or a blocking one behind a thread pool.

    Args:
        backend: Either form.
        bare: Without what makes cancelling safe (payloads are copied, long waits cut), which would hide a backend's
            own faults from the conformance kit.
    """
    return backend if isinstance(backend, Backend) else _Threads(backend, bare=bare)


def moves_many(backend: Backend | BlockingBackend) -> bool:
    """Whether a backend moves many objects in one go: then several fetches at the same time are no help."""
    return not isinstance(backend, BlockingBackend) or type(backend)._get_many is not BlockingBackend._get_many


def inline(backend: BlockingBackend) -> Backend:
    """Returns a backend whose coroutines never suspend: they run in the thread of whoever drives them."""
    return _Calls(backend)


def run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError("a blocking backend's coroutine was suspended")


class _Job(Generic[T]):
    """A coroutine that runs in a loop, for a thread that waits for it.

    What that thread touches has no lock but C's own, which no exception of a signal's handler can leave locked; those
    of ``concurrent.futures`` are left so, and the loop waits for them for ever.

    Attributes:
        ended: Gets the task when it has ended.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.ended: queue.SimpleQueue[asyncio.Task[T]] = queue.SimpleQueue()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def start(self) -> None:
        """Begins; in the loop."""
        if not self._cancelled:
            self._task = asyncio.get_running_loop().create_task(self._coroutine)
            self._task.add_done_callback(self._over)

    def cancel(self) -> None:
        """Ends it, whether it has begun or not; in the loop."""
        self._cancelled = True
        if self._task is None:
            self._coroutine.close()
        else:
            self._task.cancel()

    def _over(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # nobody may be left who asks, which is nothing to complain of
        self.ended.put(task)


class LoopThread:
    """An event loop in a daemon thread, for plain code over an asynchronous backend."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._ending: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._serve, name="fd-routing-loop", daemon=True)
        try:
            begin(self._thread)
        except BaseException:
            self._loop.close()
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    @property
    def alive(self) -> bool:
        """Whether the loop still runs."""
        return os.getpid() == self._pid and self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Runs a coroutine in the loop and returns its result.

        Raises:
            StoreUnavailableError: it did not end within ``timeout`` seconds; it is cancelled then.
        """
        if os.getpid() != self._pid:
            coroutine.close()
            raise StoreClosedError("this store was opened in another process", hint="open it again after a fork")
        if self._loop.is_closed():
            coroutine.close()
            raise StoreClosedError("the store was closed")
        job = _Job(coroutine)
        try:
            self._loop.call_soon_threadsafe(job.start)
            task = self._ended(job, timeout)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(job.cancel)
            raise
        try:
            if task.cancelled():
                raise StoreClosedError("the store was closed during the call")
            return task.result()
        finally:
            del task, job  # an error would keep them, and what they have, in a cycle

    def _ended(self, job: _Job[T], timeout: float | None) -> asyncio.Task[T]:
        """Waits until a coroutine has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _ALIVE_CHECK if end is None else min(_ALIVE_CHECK, end - time.monotonic())
            with contextlib.suppress(queue.Empty):
                return job.ended.get(timeout=max(0.0, left))
            if not self.alive:
                raise StoreClosedError("the store was closed during the call")
            if end is not None and time.monotonic() >= end:
                raise StoreUnavailableError(
                    f"the store did not answer within {timeout:.1f} s", hint="is its service running?"
                )

    def stop(self, timeout: float = 2.0) -> None:
        """Cancels what still runs and ends the thread; gives up after ``timeout`` seconds."""
        if os.getpid() == self._pid and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end)
            self._thread.join(timeout)

    def _end(self) -> None:
        """In the loop: begins its end, once; a coroutine that another call had made would never be awaited."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._cancel_all())

    async def _cancel_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        self._loop.call_soon(self._loop.stop)
