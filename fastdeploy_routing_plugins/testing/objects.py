"""The kit's tests of single objects: bytes, names, create-if-absent, absence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ..backend import Buffer, GetRequest
from ..errors import AbsentError, AlreadyExistsError
from ..spec import Capability
from .harness import ConformanceBase, Harness, assert_absent, assert_carries_header, conformance
from .samples import AWKWARD_IDS, Sample, content, longest_samples, sample, seal_sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backend import Backend

READ, LIST, RANGE = Capability.READ, Capability.LIST, Capability.RANGE


async def put_all(backend: Backend, items: Sequence[Sample]) -> None:
    """Puts objects one after the other."""
    for item in items:
        await backend._put(item.name, item.header, item.buffer())


class ObjectTests(ConformanceBase):
    """Single objects: bytes, names, create-if-absent, absence."""

    @conformance(READ)
    async def test_bytes_come_back_exactly(self, kit: Harness) -> None:
        """Header and payload come back as they were: none, 1 byte, odd sizes, 3 MiB, every dtype."""
        items = [seal_sample(kit.namespace, "sealed", 7)]
        items += [sample(kit.namespace, f"size:{size}", size=size) for size in (0, 1, 2, 4095, 4096, 4097, 3 << 20)]
        items += [sample(kit.namespace, dtype, size=10_001, dtype=dtype) for dtype in ("uint8", "uint16", "uint32")]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            damaged = [item for item in items if not item.equals(await backend._get(item.name))]
        assert not damaged, "what came back is not what was put"

    @conformance(READ)
    async def test_payload_is_flat_bytes(self, kit: Harness) -> None:
        """Payloads are bytes-like with one byte an item, whatever the dtype of the routing was."""
        item = sample(kit.namespace, size=1000, dtype="uint32")
        async with kit.backend() as backend:
            await put_all(backend, [item])
            await kit.settle()
            blob = await backend._get(item.name)
            assert isinstance(blob.header, bytes)
            assert all(isinstance(piece, (bytes, bytearray, memoryview)) for piece in blob.payload)
            assert [len(piece) for piece in blob.payload] == [4000]

    @conformance(READ)
    async def test_headers_come_back_exactly(self, kit: Harness) -> None:
        """A header is any line of UTF-8 text: quotes, backslashes, other scripts, 256 KiB."""
        texts = (
            '{"quoted": "\\"\\\\u0041", \'single\'}',
            "caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{SNOWMAN} \N{PILE OF POO} \N{HEBREW LETTER ALEF}",
            "e\N{COMBINING ACUTE ACCENT} % _ \t <&>;-- {} $(x) ",
            "0123456789abcdef" * (16 << 10),
        )
        items = [sample(kit.namespace, f"header:{number}", text=text) for number, text in enumerate(texts)]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            assert all([item.equals(await backend._get(item.name)) for item in items])

    @conformance(READ)
    async def test_awkward_names_are_kept_apart(self, kit: Harness) -> None:
        """Names of look-alike ids never meet: no case folding, no decoding, no splitting, no cutting off."""
        items = [sample(kit.namespace, rollout_id) for rollout_id in AWKWARD_IDS]
        items += [sample(kit.namespace, "a", at=at) for at in (1, 10)]
        items += [sample(kit.namespace, "a_1"), sample(kit.namespace, "a", choice=1), sample(kit.namespace, "a:1")]
        items += [sample(kit.namespace, "a", attempt=attempt) for attempt in (1, 10)]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            wrong = [item.name for item in items if not item.equals(await backend._get(item.name))]
        assert not wrong, "these names met others"

    @conformance(READ | LIST)
    async def test_longest_names_are_kept(self, kit: Harness) -> None:
        """The longest names there are, different only at the end, are stored and listed in full."""
        items = longest_samples(kit.namespace)
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            assert await backend._list(items[0].name[:64]) == sorted(item.name for item in items)
            assert all([item.equals(await backend._get(item.name)) for item in items])

    @conformance(READ)
    async def test_put_never_overwrites(self, kit: Harness) -> None:
        """A second put of a name is refused and changes nothing, whatever it brings."""
        item = sample(kit.namespace, size=1000)
        other = Buffer(memoryview(content("other", 1000)), item.shape, item.dtype)
        async with kit.backend() as backend, kit.backend() as second:
            await put_all(backend, [item])
            await kit.settle()
            for handle in (backend, second):
                with pytest.raises(AlreadyExistsError):
                    await handle._put(item.name, b"KIT other", other)
            assert item.equals(await second._get(item.name))

    @conformance(READ)
    async def test_refused_put_carries_the_stored_header(self, kit: Harness) -> None:
        """``AlreadyExistsError`` brings the stored object's header, so that a retry is told from a conflict."""
        item = sample(kit.namespace, text="\N{SNOWMAN} first")
        async with kit.backend() as backend:
            await put_all(backend, [item])
            await kit.settle()
            with pytest.raises(AlreadyExistsError) as caught:
                await backend._put(item.name, b"KIT second", item.buffer())
        assert_carries_header(caught.value, item.header)

    @conformance(READ)
    async def test_deleted_name_can_be_put_again(self, kit: Harness) -> None:
        """After a delete the name is free, and only the new object is found."""
        item = sample(kit.namespace, size=1000)
        other = Sample(item.name, b"KIT new", content("new", 1000), item.shape)
        async with kit.backend() as backend:
            await put_all(backend, [item])
            await kit.settle()
            await backend._delete([item.name])
            await kit.settle()
            await put_all(backend, [other])
            await kit.settle()
            assert other.equals(await backend._get(item.name))

    @conformance(READ)
    async def test_get_after_delete_is_absence(self, kit: Harness) -> None:
        """A deleted object is absent for every handle."""
        item = sample(kit.namespace)
        async with kit.backend() as backend, kit.backend() as other:
            await put_all(backend, [item])
            await kit.settle()
            assert item.equals(await other._get(item.name))
            await backend._delete([item.name])
            await kit.settle()
            for handle in (backend, other):
                await assert_absent(handle, item.name)

    @conformance(READ)
    async def test_get_many_keeps_order_and_absences(self, kit: Harness) -> None:
        """``_get_many`` answers in the order asked, repeats included, with absences in their places."""
        items = [sample(kit.namespace, f"many:{number}", size=100 + number) for number in range(20)]
        unknown = sample(kit.namespace, "many:unknown").name
        order = [items[7].name, unknown, items[3].name, items[7].name, *[item.name for item in items], unknown]
        async with kit.backend() as backend:
            assert await backend._get_many([]) == []
            await put_all(backend, items)
            await kit.settle()
            found = await backend._get_many([GetRequest(name) for name in order])
        stored = {item.name: item for item in items}
        assert [
            isinstance(answer, AbsentError) if name == unknown else stored[name].equals(answer)
            for name, answer in zip(order, found, strict=True)
        ] == [True] * len(order)

    @conformance(READ)
    async def test_caller_may_reuse_its_memory(self, kit: Harness) -> None:
        """The payload's memory belongs to the caller again when ``_put`` has returned."""
        item = sample(kit.namespace, size=50_000)
        memory = bytearray(item.payload)
        async with kit.backend() as backend:
            buffer = item.buffer()
            buffer.data = memoryview(memory).toreadonly()
            await backend._put(item.name, item.header, buffer)
            memory[:] = content("something else", len(memory))
            await kit.settle()
            assert item.equals(await backend._get(item.name)), "the store kept the caller's memory"

    @conformance(READ)
    async def test_what_was_read_outlives_a_delete(self, kit: Harness) -> None:
        """A reader's bytes stay as they are when the object is deleted and another one takes its name."""
        item = sample(kit.namespace, size=50_000)
        other = content("another", len(item.payload))
        async with kit.backend() as backend:
            await backend._put(item.name, item.header, item.buffer())
            await kit.settle()
            blob = await backend._get(item.name)
            await backend._delete([item.name])
            await kit.settle()
            buffer = item.buffer()
            buffer.data = memoryview(other)
            await backend._put(item.name, item.header, buffer)
            assert item.equals(blob)

    @conformance(READ)
    async def test_absence_is_an_error(self, kit: Harness) -> None:
        """``_get`` of an unknown name raises ``AbsentError``; it never returns None or nothing."""
        async with kit.backend() as backend:
            await assert_absent(backend, sample(kit.namespace, "never put").name)
