"""The kit's tests of capabilities: what a store declares it does, what it does not declare it refuses."""

from __future__ import annotations

import pytest

from ..backend import Backend, BlockingBackend, Buffer
from ..errors import UnsupportedError
from ..spec import Capability
from .harness import ConformanceBase, Harness, conformance, cuts_ranges, overrides
from .objects import put_all
from .samples import content, cut, pieces, sample

READ, LIST, RANGE, RETAIN = Capability.READ, Capability.LIST, Capability.RANGE, Capability.RETAIN

SIZE = 100_000
RANGES: tuple[tuple[tuple[int, int], ...], ...] = (
    (),
    ((0, 1),),
    ((SIZE - 1, SIZE),),
    ((0, SIZE),),
    ((10, 20), (20, 30)),
    ((1, 5000), (77_777, 99_999)),
    tuple((start, start + 3) for start in range(0, SIZE - 3, 100)),
)


class HonestyTests(ConformanceBase):
    """Capabilities are declared and kept, in both directions."""

    @conformance()
    async def test_read_is_declared_honestly(self, kit: Harness) -> None:
        """``_get`` works if ``Capability.READ`` is declared; if not, it raises ``UnsupportedError``."""
        item = sample(kit.namespace)
        async with kit.backend() as backend:
            await put_all(backend, [item])
            await kit.settle()
            if READ in kit.capabilities:
                assert item.equals(await backend._get(item.name))
            else:
                with pytest.raises(UnsupportedError):
                    await backend._get(item.name)

    @conformance()
    async def test_list_is_declared_honestly(self, kit: Harness) -> None:
        """``_list`` works if ``Capability.LIST`` is declared; if not, it raises ``UnsupportedError``."""
        item = sample(kit.namespace)
        async with kit.backend() as backend:
            await put_all(backend, [item])
            await kit.settle()
            if LIST in kit.capabilities:
                assert await backend._list(kit.root) == [item.name]
            else:
                with pytest.raises(UnsupportedError):
                    await backend._list(kit.root)

    @conformance()
    async def test_range_is_declared_honestly(self, kit: Harness) -> None:
        """``_get`` cuts the asked ranges out if, and only if, ``Capability.RANGE`` is declared."""
        item = sample(kit.namespace, size=1000)
        async with kit.backend() as backend:
            await put_all(backend, [item])
            await kit.settle()
            if RANGE in kit.capabilities:
                assert await cuts_ranges(backend, item), (
                    "the store declares Capability.RANGE and _get does not return exactly the asked ranges, one piece "
                    "each: cut them out natively, or remove RANGE from the capabilities in the StoreSpec"
                )
            else:
                assert not await cuts_ranges(backend, item), (
                    "the store cuts ranges natively and does not declare it: "
                    "add Capability.RANGE to the capabilities in the StoreSpec"
                )

    @conformance(RANGE)
    async def test_ranges_are_exact(self, kit: Harness) -> None:
        """Each asked range comes back as one piece, exactly; no range at all asks for the header alone."""
        item = sample(kit.namespace, size=SIZE)
        async with kit.backend() as backend:
            await put_all(backend, [item])
            await kit.settle()
            for ranges in RANGES:
                blob = await backend._get(item.name, ranges)
                assert blob.header == item.header
                assert pieces(blob) == cut(item.payload, ranges)

    @conformance()
    async def test_retain_is_declared_honestly(self, kit: Harness) -> None:
        """The owner's buffer is kept until ``_release`` if ``Capability.RETAIN`` is declared; if not, it is copied."""
        item = sample(kit.namespace, size=SIZE)
        memory = bytearray(item.payload)
        given_back: list[str] = []
        buffer = Buffer(
            memoryview(memory).toreadonly(), item.shape, item.dtype, on_release=lambda: given_back.append(item.name)
        )
        async with kit.backend() as backend:
            await backend._put(item.name, item.header, buffer)
            await kit.settle()
            if RETAIN in kit.capabilities:
                assert given_back == [], "the buffer was given back though the store declares that it keeps it"
                await backend._release([item.name])
                assert given_back == [item.name], "_release must give the buffer back, once"
            else:
                memory[:] = content("reused", SIZE)
                assert READ not in kit.capabilities or item.equals(await backend._get(item.name))
                assert not overrides(kit.resolved.create_backend(), "_release"), (
                    "the store has its own _release and does not declare Capability.RETAIN: "
                    "declare it if _put keeps the buffer, or remove _release"
                )

    @conformance()
    async def test_factory_makes_a_backend(self, kit: Harness) -> None:
        """Each call of the spec's factory returns another, unopened ``Backend`` or ``BlockingBackend``."""
        first, second = kit.resolved.create_backend(), kit.resolved.create_backend()
        assert first is not second
        assert isinstance(first, (Backend, BlockingBackend))
        assert isinstance(second, type(first))
