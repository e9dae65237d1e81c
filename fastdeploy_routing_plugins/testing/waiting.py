"""The kit's tests of ``_wait``: at once if something differs, promptly after a change, else at the deadline."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

from ..backend import POLL_LIMIT
from ..spec import Capability
from .harness import ConformanceBase, Harness, conformance, overrides
from .samples import sample

if TYPE_CHECKING:
    from ..backend import Backend

LIST, NOTIFY = Capability.LIST, Capability.NOTIFY

POLLED = 1.0  # s that polling may take to see a change
PROMPT = 0.9 * POLL_LIMIT  # s that a native wait may take, in the median: less than the longest pause of polling
CROWDED = 3.0  # s that 40 waits may take, with puts for all of them
PATIENCE = 10.0  # s


class WaitingTests(ConformanceBase):
    """``_wait``, polled or native."""

    @conformance(LIST)
    async def test_wait_ends_at_the_deadline(self, kit: Harness) -> None:
        """Nothing changes: ``_wait`` returns the listing at the deadline, not before and not much later."""
        item = sample(kit.namespace)
        async with kit.backend() as backend:
            await backend._put(item.name, item.header, item.buffer())
            await kit.settle()
            started = time.monotonic()
            names = await backend._wait(kit.root, [item.name], started + 0.3)
            took = time.monotonic() - started
        assert names == [item.name]
        assert 0.25 <= took <= 2.0, f"a wait of 0.3 s took {took:.3f} s"

    @conformance(LIST)
    async def test_wait_past_the_deadline_returns_the_listing(self, kit: Harness) -> None:
        """A deadline in the past: ``_wait`` returns what is there, at once."""
        item = sample(kit.namespace)
        async with kit.backend() as backend:
            await backend._put(item.name, item.header, item.buffer())
            await kit.settle()
            started = time.monotonic()
            names = await backend._wait(kit.root, [item.name], started - 1.0)
            took = time.monotonic() - started
        assert names == [item.name]
        assert took <= POLLED

    @conformance(LIST)
    async def test_wait_ends_at_once_if_the_listing_differs(self, kit: Harness) -> None:
        """What changed before ``_wait`` was called ends it at once: an object more, and an object less."""
        item = sample(kit.namespace)
        gone = sample(kit.namespace, "gone").name
        async with kit.backend() as backend:
            await backend._put(item.name, item.header, item.buffer())
            await kit.settle()
            started = time.monotonic()
            assert await backend._wait(kit.root, [], started + PATIENCE) == [item.name]
            assert await backend._wait(kit.root, sorted([gone, item.name]), started + PATIENCE) == [item.name]
            assert time.monotonic() - started <= POLLED

    @conformance(LIST)
    async def test_wait_ends_after_a_put_of_another_process(self, kit: Harness) -> None:
        """A put of another process ends a wait on a prefix under which nothing was stored before."""
        delays = []
        async with kit.backend() as backend, kit.peer() as peer:
            for number in range(9):
                item = sample(kit.namespace, f"wait:{number}")
                prefix = item.name.rpartition("/")[0] + "/"
                wait = asyncio.create_task(_wait(backend, prefix, []))
                await asyncio.sleep(0.15 + 0.007 * number)  # polling has slowed down by then, at differing moments
                answer = await peer.put(item)
                assert "error" not in answer
                names, ended = await wait
                assert names == [item.name]
                delays.append(ended - answer["time"])
        limit = PROMPT if NOTIFY in kit.capabilities else POLLED
        assert statistics.median(delays) <= limit, f"waits ended {delays} s after the put"

    @conformance(LIST)
    async def test_wait_ends_after_a_delete(self, kit: Harness) -> None:
        """A delete ends a wait, too."""
        item = sample(kit.namespace)
        async with kit.backend() as backend, kit.backend() as other:
            await other._put(item.name, item.header, item.buffer())
            await kit.settle()
            wait = asyncio.create_task(_wait(backend, kit.root, [item.name], 2.0))
            await asyncio.sleep(0.1)
            await other._delete([item.name])
            deleted = time.monotonic()
            names, ended = await wait
        assert names == []
        assert ended - deleted <= POLLED

    @conformance(LIST)
    async def test_many_waits_at_once(self, kit: Harness) -> None:
        """40 waits in flight neither keep each other nor puts and gets from ending."""
        items = [sample(kit.namespace, f"crowd:{number}") for number in range(40)]
        async with kit.backend() as backend:
            started = time.monotonic()
            waits = [asyncio.create_task(_wait(backend, item.name.rpartition("/")[0] + "/", [])) for item in items]
            await asyncio.sleep(0.1)
            for item in items:
                await backend._put(item.name, item.header, item.buffer())
            found = [names for names, _ in await asyncio.gather(*waits)]
            took = time.monotonic() - started
        assert found == [[item.name] for item in items]
        assert took <= CROWDED, f"40 waits took {took:.1f} s"

    @conformance()
    async def test_notify_is_declared_honestly(self, kit: Harness) -> None:
        """A store has its own ``_wait`` exactly if it declares ``Capability.NOTIFY``."""
        if NOTIFY in kit.capabilities:
            assert overrides(kit.resolved.create_backend(), "_wait"), (
                "the store declares Capability.NOTIFY and has no _wait of its own: "
                "write one that a change wakes, or remove NOTIFY from the capabilities in the StoreSpec"
            )
        else:
            assert not overrides(kit.resolved.create_backend(), "_wait"), (
                "the store has its own _wait and does not declare it: "
                "add Capability.NOTIFY to the capabilities in the StoreSpec, or remove _wait (_list is polled then)"
            )


async def _wait(backend: Backend, prefix: str, seen: list[str], limit: float = PATIENCE) -> tuple[list[str], float]:
    """Returns the listing and the moment at which the wait ended."""
    names = await backend._wait(prefix, seen, time.monotonic() + limit)
    return names, time.monotonic()
