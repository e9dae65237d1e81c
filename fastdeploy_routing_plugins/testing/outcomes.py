"""The kit's tests of what readers and writers are told: absence, conflict, attempts, deletes, a closed store."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ..errors import (
    AbortedError,
    ConflictError,
    IncompleteError,
    InvalidKeyError,
    NotFoundError,
    PendingError,
    StoreClosedError,
    SupersededError,
)
from ..names import Part
from ..opening import open_store, open_store_async
from .harness import ConformanceBase, Harness, conformance
from .rollouts import READABLE, SMALL, assert_reads, make_routing
from .samples import AWKWARD_IDS

if TYPE_CHECKING:
    from collections.abc import Coroutine


class OutcomeTests(ConformanceBase):
    """What ``RoutingStore`` tells readers and writers."""

    @conformance(READABLE)
    async def test_absent_rollouts_say_why(self, kit: Harness) -> None:
        """Never put, total unknown, part missing, given up: each has an error of its own, after the time waited."""
        routing = make_routing(SMALL, 10)
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            await store.put("pending", routing, tokens=(0, 10))
            await store.put("incomplete", routing[:, :4], tokens=(0, 4), total_tokens=10)
            await store.put("aborted", routing, tokens=(0, 10))
            await store.abort("aborted", "the request was cancelled \N{SNOWMAN}")
            await kit.settle()
            started = time.monotonic()
            with pytest.raises(NotFoundError):
                await store.get("never", timeout=0.1)
            assert time.monotonic() - started >= 0.1
            with pytest.raises(PendingError):
                await store.get("pending")
            with pytest.raises(IncompleteError) as incomplete:
                await store.get("incomplete")
            assert list(incomplete.value.missing) == [Part((4, 10), (0, 3))]
            with pytest.raises(AbortedError) as aborted:
                await store.get("aborted", timeout=10.0)
            assert aborted.value.reason == "the request was cancelled \N{SNOWMAN}"

    @conformance(READABLE)
    async def test_equal_put_is_a_success_and_another_a_conflict(self, kit: Harness) -> None:
        """The same routing again is a retry; other routing in its place is refused and changes nothing."""
        routing = make_routing(SMALL, 10)
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            first = await store.put("twice", routing)
            await kit.settle()
            again = await store.put("twice", routing)
            assert (first.duplicate, again.duplicate) == (False, True)
            with pytest.raises(ConflictError):
                await store.put("twice", make_routing(SMALL, 10, seed=1))
            await assert_reads(store, "twice", routing, SMALL)

    @conformance(READABLE)
    async def test_higher_attempt_replaces_the_lower(self, kit: Harness) -> None:
        """Readers see the highest attempt, whole; the lower one goes once it is complete, and is refused then."""
        old, new = make_routing(SMALL, 10, seed=1), make_routing(SMALL, 12, seed=2)
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            await store.put("a", old, attempt=1)
            await store.put("a", new[:2], layers=(0, 2), attempt=2)
            await kit.settle()
            with pytest.raises(IncompleteError):
                await store.get("a")
            await store.put("a", new[2], layers=2, attempt=2)
            await kit.settle()
            await assert_reads(store, "a", new, SMALL)
            assert (await store.status("a")).attempts == (2,)
            with pytest.raises(SupersededError):
                await store.put("a", old, attempt=1)
            with pytest.raises(NotFoundError):
                await store.get("a", min_attempt=3)

    @conformance(READABLE)
    async def test_get_waits_for_the_last_part(self, kit: Harness) -> None:
        """A reader with a timeout gets the rollout soon after its last part was put."""
        routing = make_routing(SMALL, 40)
        async with (
            open_store_async(kit.resolved, schema=SMALL) as writer,
            open_store_async(kit.resolved, schema=SMALL) as reader,
        ):
            waiting = asyncio.create_task(reader.get("late", timeout=20.0))
            for layer in range(SMALL.num_layers):
                await asyncio.sleep(0.05)
                assert not waiting.done()
                await writer.put("late", routing[layer], layers=layer)
            put = time.monotonic()
            record = await waiting
            assert np.array_equal(record.routing, routing)
            assert time.monotonic() - put <= 2.0

    @conformance(READABLE)
    async def test_awkward_ids_are_stored_and_listed(self, kit: Harness) -> None:
        """Every id, up to 4,096 bytes, is stored apart from its look-alikes and listed in full; others are refused."""
        stored = {rollout_id: make_routing(SMALL, 2, seed) for seed, rollout_id in enumerate(AWKWARD_IDS)}
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            for rollout_id, routing in stored.items():
                await store.put(rollout_id, routing)
            await kit.settle()
            for rollout_id, routing in stored.items():
                assert np.array_equal((await store.get(rollout_id)).routing, routing), rollout_id
            assert {status.key.rollout_id for status in await store.list()} == set(stored)
            for refused in ("", "x" * 4097, "\ud800"):
                with pytest.raises(InvalidKeyError):
                    await store.put(refused, make_routing(SMALL, 2))

    @conformance(READABLE)
    async def test_deletes_of_rollouts_count_and_leave_neighbours(self, kit: Harness) -> None:
        """``delete`` and ``delete_prefix`` take rollouts whole: ``x:1`` never meets ``x:10``."""
        ids = ("x:1", "x:10", "x:1:0", "x:1:1", "x", "y")
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            for rollout_id in ids:
                for layer in range(SMALL.num_layers):
                    await store.put(rollout_id, make_routing(SMALL, 5)[layer], layers=layer)
            await kit.settle()
            assert await store.delete("unknown") == 0
            assert await store.delete("y", "unknown", "y") == 1
            await kit.settle()
            assert await store.delete_prefix("x:1") == 3
            await kit.settle()
            assert sorted(status.key.rollout_id for status in await store.list()) == ["x", "x:10"]

    @conformance(READABLE)
    async def test_clear_takes_what_this_producer_wrote(self, kit: Harness) -> None:
        """``clear`` leaves other producers and namespaces; ``everything=True`` leaves other namespaces."""
        mine, theirs = kit.resolve(producer="mine"), kit.resolve(producer="theirs")
        beside = kit.resolve(namespace=f"{kit.namespace}2", producer="mine")
        async with (
            open_store_async(mine, schema=SMALL) as store,
            open_store_async(theirs, schema=SMALL) as other,
            open_store_async(beside, schema=SMALL) as neighbour,
        ):
            for number in range(3):
                await store.put(f"mine:{number}", make_routing(SMALL, 5))
            await other.put("theirs:0", make_routing(SMALL, 5))
            await neighbour.put("mine:0", make_routing(SMALL, 5))
            await kit.settle()
            assert await store.clear() == 3
            await kit.settle()
            assert [status.key.rollout_id for status in await store.list()] == ["theirs:0"]
            assert await store.clear(everything=True) == 1
            await kit.settle()
            assert [status.key.rollout_id for status in await neighbour.list()] == ["mine:0"]

    @conformance()
    async def test_closed_store_says_so(self, kit: Harness) -> None:
        """After ``close`` every verb raises ``StoreClosedError``; a second ``close`` is harmless."""
        store = open_store_async(kit.resolved, schema=SMALL)
        await store.open()
        await store.close()
        await store.close()
        calls: list[Coroutine[Any, Any, Any]] = [store.put("c", make_routing(SMALL, 2)), store.get("c")]
        for call in [*calls, store.list(), store.delete("c")]:
            with pytest.raises(StoreClosedError):
                await call
        plain = open_store(kit.resolved, schema=SMALL)
        plain.close()
        plain.close()
        with pytest.raises(StoreClosedError):
            plain.put("c", make_routing(SMALL, 2))
