"""A thread pool whose threads never keep the interpreter alive: a backend that hangs must not hang the exit."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from ..errors import StoreClosedError, StoreUnavailableError
from ..threads import begin

if TYPE_CHECKING:
    from collections.abc import Callable


class DaemonPool(Executor):
    """Runs calls in at most ``size`` daemon threads, started as needed.

    ``concurrent.futures.ThreadPoolExecutor`` joins its threads at interpreter exit, which a stuck call would block.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = threading.Semaphore(0)
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queues a call; see ``concurrent.futures.Executor.submit``. Raises StoreClosedError after ``shutdown``."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            self._calls.put((future, lambda: fn(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._threads < self._size:
                thread = threading.Thread(target=self._work, name=f"{self._name}-{self._threads + 1}", daemon=True)
                try:
                    begin(thread)
                except StoreUnavailableError:
                    if not self._threads:
                        self._calls.get()  # nobody would ever do it
                        raise
                else:
                    self._threads += 1
        return future

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())  # no name for it: this thread must not keep what readers have let go of
                except BaseException as err:  # noqa: BLE001 - the caller gets it from the future
                    future.set_exception(err)
            del item, future, call
            self._idle.release()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Lets threads end after what is queued; never waits for them."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in range(self._threads):
                    self._calls.put(None)
