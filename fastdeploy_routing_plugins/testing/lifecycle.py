"""The kit's tests of opening, closing, event loops and leaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import AbsentError
from ..spec import Capability
from ..store.bridge import as_async
from .harness import CLOSE_LIMIT, ConformanceBase, Harness, conformance, in_time
from .samples import sample

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

READ, LIST = Capability.READ, Capability.LIST

OPEN_LIMIT = 30.0  # s
LAG_LIMIT = 0.05  # s the event loop may stand still, every time, while a verb runs
CYCLES = 50
SPARE = 2  # descriptors and threads that a library may keep for the whole process


class LifecycleTests(ConformanceBase):
    """Opening, closing, event loops and leaks."""

    @conformance()
    async def test_opens_in_time(self, kit: Harness) -> None:
        """``_open`` returns within 30 s, also beside another open handle."""
        first, second = (as_async(kit.resolved.create_backend(), bare=True) for _ in range(2))
        try:
            assert await in_time(first._open(), OPEN_LIMIT), f"_open took more than {OPEN_LIMIT} s"
            assert await in_time(second._open(), OPEN_LIMIT), f"a second _open took more than {OPEN_LIMIT} s"
        finally:
            await in_time(first._close(), CLOSE_LIMIT)
            await in_time(second._close(), CLOSE_LIMIT)

    @conformance()
    async def test_close_returns_in_time(self, kit: Harness) -> None:
        """``_close`` returns within 5 s after use."""
        backend = as_async(kit.resolved.create_backend(), bare=True)
        await backend._open()
        item = sample(kit.namespace)
        await backend._put(item.name, item.header, item.buffer())
        assert await in_time(backend._close(), CLOSE_LIMIT), f"_close took more than {CLOSE_LIMIT} s"

    @conformance()
    async def test_close_without_open_is_harmless(self, kit: Harness) -> None:
        """``_close`` is called after a failed ``_open`` too, so it must not need anything that ``_open`` makes."""
        backend = as_async(kit.resolved.create_backend(), bare=True)
        assert await in_time(backend._close(), CLOSE_LIMIT), f"_close took more than {CLOSE_LIMIT} s"

    @conformance()
    async def test_close_with_pending_operations_returns_in_time(self, kit: Harness) -> None:
        """``_close`` does not wait for a reader's deadline, and what was pending ends."""
        backend = as_async(kit.resolved.create_backend(), bare=True)
        await backend._open()
        items = [sample(kit.namespace, f"pending:{i}", size=256 << 10) for i in range(16)]
        pending = [asyncio.create_task(backend._put(item.name, item.header, item.buffer())) for item in items]
        if LIST in kit.capabilities:
            far = time.monotonic() + 60.0
            pending.append(asyncio.create_task(_forget(backend._wait(f"{kit.root}never/", (), far))))
        await asyncio.sleep(0.01)
        closed = await in_time(backend._close(), CLOSE_LIMIT)
        for task in pending:
            task.cancel()
        _, stuck = await asyncio.wait(pending, timeout=CLOSE_LIMIT)
        assert closed, f"_close took more than {CLOSE_LIMIT} s"
        assert not stuck, f"{len(stuck)} operations hang after _close"
        for task in pending:
            task.cancelled() or task.exception()  # looked at, so that nobody complains; any outcome will do

    @conformance(READ | LIST)
    async def test_opening_and_closing_change_nothing(self, kit: Harness) -> None:
        """A second handle that opens and closes deletes nothing."""
        item = sample(kit.namespace)
        async with kit.backend() as backend:
            await backend._put(item.name, item.header, item.buffer())
            async with kit.backend() as other:
                await other._flush()
            await kit.settle()
            assert item.equals(await backend._get(item.name))

    @conformance(READ)
    async def test_data_survives_reopening(self, kit: Harness) -> None:
        """What was put is there after all handles were closed; for a store that is not persistent, whole or absent."""
        item = sample(kit.namespace, size=100_000)
        async with kit.backend() as backend:
            await backend._put(item.name, item.header, item.buffer())
            await backend._flush()
        await kit.settle()
        async with kit.backend() as backend:
            with contextlib.nullcontext() if self.persistent else contextlib.suppress(AbsentError):
                assert item.equals(await backend._get(item.name))

    @conformance()
    async def test_works_in_a_second_event_loop(self, kit: Harness) -> None:
        """One resolved store serves event loops one after the other and two at the same time."""
        errors: list[BaseException] = []

        def other_loop(number: int) -> None:
            try:
                asyncio.run(use(number))
            except BaseException as err:  # noqa: BLE001 - carried into the test's own thread
                errors.append(err)

        async def use(number: int) -> None:
            items = [sample(kit.namespace, f"loop:{number}:{i}") for i in range(8)]
            async with kit.backend() as backend:
                await asyncio.gather(*[backend._put(item.name, item.header, item.buffer()) for item in items])
                if READ in kit.capabilities:
                    assert all([item.equals(await backend._get(item.name)) for item in items])

        await use(0)
        threads = [threading.Thread(target=other_loop, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert not errors, f"in another event loop: {errors[0]!r}"

    @conformance()
    async def test_event_loop_stays_responsive(self, kit: Harness) -> None:
        """No verb of an asynchronous backend blocks the event loop."""
        payload_size = 1 << 20
        async with kit.backend() as backend:
            items = [sample(kit.namespace, f"lag:{i}", size=payload_size) for i in range(5)]
            lags = {"_put": [await _lag(partial(backend._put, i.name, i.header, i.buffer())) for i in items]}
            if READ in kit.capabilities:
                lags["_get"] = [await _lag(partial(backend._get, item.name)) for item in items]
            if LIST in kit.capabilities:
                lags["_list"] = [await _lag(partial(backend._list, kit.root)) for _ in items]
            lags["_delete"] = [await _lag(partial(backend._delete, [item.name])) for item in items]
        # The least of several: a busy machine delays some rounds, a blocking call delays them all.
        slow = {verb: min(found) for verb, found in lags.items() if min(found) > LAG_LIMIT}
        assert not slow, f"the event loop stood still (s): {slow}"

    @conformance()
    async def test_nothing_leaks(self, kit: Harness) -> None:
        """50 times opening, using and closing leaves no file descriptor and no thread behind."""
        _fill_executor()
        for number in range(3):
            await _cycle(kit, f"warm:{number}")
        descriptors, threads = _descriptors(), threading.active_count()
        for number in range(CYCLES):
            await _cycle(kit, f"leak:{number}")
        gc.collect()
        until = time.monotonic() + 5.0
        left = _descriptors() - descriptors, threading.active_count() - threads
        while max(left) > SPARE and time.monotonic() < until:
            await asyncio.sleep(0.05)  # threads of a closed pool need a moment to end
            gc.collect()
            left = _descriptors() - descriptors, threading.active_count() - threads
        assert max(left) <= SPARE, f"{CYCLES} cycles left {left[0]} file descriptors and {left[1]} threads"


def _fill_executor() -> None:
    """Gives the event loop an executor whose threads are all there: it makes them as it goes, which is no leak."""
    executor = ThreadPoolExecutor(4, thread_name_prefix="asyncio")
    together = threading.Barrier(5)
    for _ in range(4):
        executor.submit(together.wait, 60)
    together.wait(60)
    asyncio.get_running_loop().set_default_executor(executor)


async def _forget(operation: Awaitable[Any]) -> None:
    await operation


async def _cycle(kit: Harness, rollout_id: str) -> None:
    item = sample(kit.namespace, rollout_id)
    async with kit.backend() as backend:
        await backend._put(item.name, item.header, item.buffer())
        if READ in kit.capabilities:
            await backend._get(item.name)


async def _lag(operation: Callable[[], Awaitable[Any]]) -> float:
    """Returns the longest time, in s, that the event loop did not run while an operation was in progress."""
    longest = 0.0
    before = time.monotonic()

    async def tick() -> None:
        nonlocal longest, before
        while True:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            longest, before = max(longest, now - before), now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await operation()
    longest = max(longest, time.monotonic() - before)
    ticker.cancel()
    return longest


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))
