"""The kit's tests of what happens at the same time: puts, clears, deletes, readers, cancellation, other processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from ..errors import AbsentError, AlreadyExistsError, ProducerLostError, StoreUnavailableError
from ..spec import Capability
from .harness import ConformanceBase, Harness, conformance
from .objects import put_all
from .peer import PATIENCE, fields
from .samples import Sample, content, root, sample

if TYPE_CHECKING:
    from ..backend import Backend

READ, LIST = Capability.READ, Capability.LIST

RACERS = 4
ROUNDS = 6


class ConcurrencyTests(ConformanceBase):
    """What happens at the same time, in one process and in several."""

    @conformance(READ)
    async def test_put_is_readable_at_once(self, kit: Harness) -> None:
        """When ``_put`` has returned, another open handle gets the object, every time."""
        async with kit.backend() as writer, kit.backend() as reader:
            for item in [sample(kit.namespace, f"once:{number}") for number in range(9)]:
                await writer._put(item.name, item.header, item.buffer())
                await kit.settle()
                assert item.equals(await reader._get(item.name))

    @conformance(LIST)
    async def test_put_is_listed_at_once(self, kit: Harness) -> None:
        """When ``_put`` has returned, another open handle lists the object, every time."""
        put: list[str] = []
        async with kit.backend() as writer, kit.backend() as reader:
            for item in [sample(kit.namespace, f"once:{number:03d}") for number in range(9)]:
                await writer._put(item.name, item.header, item.buffer())
                put.append(item.name)
                await kit.settle()
                assert await reader._list(kit.root) == put

    @conformance()
    async def test_many_puts_at_once(self, kit: Harness) -> None:
        """32 puts in flight all succeed, and all are there."""
        items = [sample(kit.namespace, f"many:{number}", size=100_000) for number in range(32)]
        async with kit.backend() as backend:
            await asyncio.gather(*[backend._put(item.name, item.header, item.buffer()) for item in items])
            await kit.settle()
            if READ in kit.capabilities:
                assert all([item.equals(await backend._get(item.name)) for item in items])

    @conformance(READ)
    async def test_one_of_many_puts_creates_a_name(self, kit: Harness) -> None:
        """Of 16 puts of one name in flight, one succeeds; the others get its header, and its bytes stay."""
        async with kit.backend() as backend:
            for number in range(ROUNDS):
                rivals = [_rival(kit.namespace, f"race:{number}", racer) for racer in range(16)]
                outcomes = await asyncio.gather(*[_put_outcome(backend, item) for item in rivals])
                await kit.settle()
                winners = [item for item, outcome in zip(rivals, outcomes, strict=True) if outcome is None]
                assert len(winners) == 1
                assert {outcome for outcome in outcomes if outcome is not None} == {winners[0].header}
                assert winners[0].equals(await backend._get(rivals[0].name))

    @conformance(READ)
    async def test_one_of_many_processes_creates_a_name(self, kit: Harness) -> None:
        """Of several processes that put one name at the same moment, one succeeds; the others get its header."""
        async with contextlib.AsyncExitStack() as stack:
            peers = await asyncio.gather(*[stack.enter_async_context(kit.peer()) for _ in range(RACERS)])
            backend = await stack.enter_async_context(kit.backend())
            for number in range(ROUNDS):
                rivals = [_rival(kit.namespace, f"race:{number}", racer) for racer in range(RACERS)]
                start = time.monotonic() + 0.03
                answers = await asyncio.gather(
                    *[peer.put(item, at=start) for peer, item in zip(peers, rivals, strict=True)]
                )
                await kit.settle()
                winners = [item for item, answer in zip(rivals, answers, strict=True) if "error" not in answer]
                assert len(winners) == 1
                refused = [(answer["error"], answer["header"]) for answer in answers if "error" in answer]
                assert refused == [(AlreadyExistsError.code, winners[0].header)] * (RACERS - 1)
                assert winners[0].equals(await backend._get(rivals[0].name))

    @conformance(READ | LIST)
    async def test_another_process_reads_what_was_put(self, kit: Harness) -> None:
        """Another process gets and lists what this one put, and the other way round."""
        ours = [sample(kit.namespace, f"ours:{number}", size=size) for number, size in enumerate((0, 1, 1 << 20))]
        theirs = sample(kit.namespace, "theirs", size=100_000)
        async with kit.backend() as backend, kit.peer() as peer:
            await put_all(backend, ours)
            await kit.settle()
            assert [await peer.get(item.name) for item in ours] == [(item.header, item.payload) for item in ours]
            await peer.result("put", **fields(theirs), at=0.0)
            await kit.settle()
            assert theirs.equals(await backend._get(theirs.name))
            assert await peer.result("list", prefix=kit.root) == sorted(item.name for item in [*ours, theirs])

    @conformance(READ | LIST)
    async def test_no_reader_sees_half_an_object(self, kit: Harness) -> None:
        """While another process puts, a name is absent or whole, by ``_get`` and by ``_list``."""
        items = [sample(kit.namespace, f"half:{number}", size=2 << 20) for number in range(4)]
        async with kit.backend() as backend, kit.peer() as peer:
            for item in items:
                put = asyncio.create_task(peer.put(item))
                while not put.done():
                    listed = item.name in await backend._list(kit.root)
                    with contextlib.suppress(AbsentError):
                        assert item.equals(await backend._get(item.name)), "a reader saw half an object"
                        listed = False
                    assert not listed, "a listed name could not be read"
                    await asyncio.sleep(0)
                assert "error" not in await put
                assert item.equals(await backend._get(item.name))

    @conformance(READ | LIST)
    async def test_killed_writer_leaves_whole_objects(self, kit: Harness) -> None:
        """When a writing process is killed, every name is whole or absent, and what it had put is there."""
        async with kit.backend() as backend:
            for turn, pause in enumerate((0.0, 0.02, 0.07)):
                items = [sample(kit.namespace, f"kill:{turn}:{number}", size=1 << 20) for number in range(24)]
                beat = kit.tmp_path / f"beat{turn}"
                async with kit.peer() as peer:
                    peer.start("put_until_killed", objects=[fields(item) for item in items], beat=str(beat))
                    until = time.monotonic() + PATIENCE
                    while not beat.exists():
                        assert time.monotonic() < until, f"another process put nothing within {PATIENCE} s"
                        await asyncio.sleep(0.001)
                    await asyncio.sleep(pause)
                    await peer.kill()
                await kit.settle()
                stored = {item.name: item for item in items}
                for name in await backend._list(kit.root):
                    if name in stored:
                        with contextlib.suppress(
                            *([] if self.persistent else [StoreUnavailableError, ProducerLostError])
                        ):
                            whole = stored[name].equals(await backend._get(name))
                            assert whole, "a killed writer left half an object"
                acknowledged = beat.read_text(encoding="utf-8").split("\n")[:-1]
                if self.persistent:
                    assert set(acknowledged) <= set(await backend._list(kit.root))

    @conformance(READ | LIST)
    async def test_put_during_clear(self, kit: Harness) -> None:
        """Puts while the namespace is cleared succeed and are whole or cleared; those of others stay."""
        mine = [sample(kit.namespace, f"mine:{number}", size=2000) for number in range(60)]
        others = [sample(f"other{kit.namespace}", f"o:{number}", size=2000) for number in range(20)]
        async with kit.backend() as writer, kit.backend() as cleaner:
            puts = asyncio.create_task(_put_in_turn(writer, [*mine[:30], *others, *mine[30:]]))
            cleared = 0
            while not puts.done():
                cleared += await cleaner._clear(kit.root)
                await asyncio.sleep(0)
            await puts
            await kit.settle()
            left = await writer._list(kit.root)
            assert cleared + len(left) == len(mine), "each object is either there or counted as cleared"
            found = {item.name: item for item in mine}
            assert all([found[name].equals(await writer._get(name)) for name in left])
            assert await writer._list(root(f"other{kit.namespace}")) == sorted(item.name for item in others)

    @conformance(READ)
    async def test_deletes_at_once_count_each_object_once(self, kit: Harness) -> None:
        """Two handles that delete the same objects at the same time count each of them once in all."""
        items = [sample(kit.namespace, f"twice:{number}") for number in range(40)]
        names = [item.name for item in items]
        async with kit.backend() as one, kit.backend() as other:
            await put_all(one, items)
            await kit.settle()
            counts = await asyncio.gather(one._delete(names), other._delete(list(reversed(names))))
        assert sum(counts) == len(items)

    @conformance()
    async def test_cancelled_put_leaves_all_or_nothing(self, kit: Harness) -> None:
        """A cancelled put leaves its object whole or absent, and the same put can be made again."""
        async with kit.backend() as backend:
            for number, pause in enumerate((0.0, 0.0005, 0.001, 0.002, 0.004, 0.008)):
                item = sample(kit.namespace, f"cancel:{number}", size=2 << 20)
                put = asyncio.create_task(backend._put(item.name, item.header, item.buffer()))
                await asyncio.sleep(pause)
                put.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await put
                if READ in kit.capabilities:
                    with contextlib.suppress(AbsentError):
                        assert item.equals(await backend._get(item.name)), "a cancelled put left half an object"
                assert await _put_outcome(backend, item) in (None, item.header)
                await kit.settle()
                if READ in kit.capabilities:
                    assert item.equals(await backend._get(item.name))


def _rival(namespace: str, rollout_id: str, number: int) -> Sample:
    """Returns an object of the same name as its rivals with content of its own."""
    item = sample(namespace, rollout_id, size=200_000)
    return Sample(item.name, b"KIT rival %d" % number, content(f"{rollout_id} {number}", 200_000), item.shape)


async def _put_outcome(backend: Backend, item: Sample) -> bytes | None:
    """Puts an object; returns None, or the header that is stored in its place."""
    try:
        await backend._put(item.name, item.header, item.buffer())
    except AlreadyExistsError as err:
        header: bytes = err.facts.get("header", b"")
        return header
    return None


async def _put_in_turn(backend: Backend, items: list[Sample]) -> None:
    for item in items:
        await backend._put(item.name, item.header, item.buffer())
        await asyncio.sleep(0)
