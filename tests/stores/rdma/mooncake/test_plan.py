"""What is read for an object. These tests need no Mooncake."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from fastdeploy_routing_plugins.arena.layout import PAGE
from fastdeploy_routing_plugins.errors import CorruptDataError, NotFoundError, RoutingError, UnsupportedError
from fastdeploy_routing_plugins.stores.rdma.place import Place
from fastdeploy_routing_plugins.stores.rdma.transport.base import Wanted
from fastdeploy_routing_plugins.stores.rdma.transport.rdma_blocks import check_payload, check_tail, read_card
from fastdeploy_routing_plugins.stores.rdma.transport.rdma_plan import merged, plan

from .agent import content
from .memory import KEYS, PAGES, Memory

Ranges = tuple[tuple[int, int], ...] | None
PLACES = st.tuples(*[st.integers(0, 1 << 62) | st.integers(0, PAGES * PAGE)] * 8)


@st.composite
def objects(draw: st.DrawFn) -> tuple[Memory, Ranges]:
    size = draw(st.sampled_from([0, 1, 15, 16, 4080, 4081, 4096]) | st.integers(0, 150_000))
    memory = Memory(
        draw(st.sampled_from(["n", "ns/x/0/routing/é", "n" * 390])),
        draw(st.binary(max_size=50)) * draw(st.sampled_from([1, 100])),
        content(size, size),
        draw(st.booleans()),
        engine_meta=b"m" * draw(st.sampled_from([0, 100, 5000])),
    )
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=12)))
    ranges = tuple(itertools.pairwise(cuts))[:: draw(st.sampled_from([1, 2]))]
    return memory, draw(st.sampled_from([None, (), ranges]))


@given(objects(), st.booleans())
def test_a_plan_brings_what_is_wanted_and_what_proves_it(drawn: tuple[Memory, Ranges], in_order: bool) -> None:
    memory, ranges = drawn
    found = plan(Wanted(memory.name, memory.place, ranges), memory.info, in_order=in_order)
    piece = memory.carry_out(found)
    card = piece[found.card.at : found.card.at + found.card.nbytes]
    assert read_card(card, KEYS[0], memory.place, memory.name) == memory.header
    wanted = [memory.payload[start:stop] for start, stop in ([(0, len(memory.payload))] if ranges is None else ranges)]
    assert [bytes(piece[at : at + size]) for at, size in found.pieces] == wanted
    if found.again is not None:
        head = check_payload(
            piece[found.head : found.head + PAGE], KEYS[memory.place.arena], memory.place, memory.name
        )
        if found.tail is not None:
            check_tail(piece[found.tail : found.tail + 16], head, memory.name)
    assert (found.again is None) == (not any(wanted))
    whole = ranges in (None, ((0, len(memory.payload)),)) and any(wanted)
    assert bool(found.head) == (in_order and whole)


@given(st.integers(1, 40_000), st.booleans(), st.data())
def test_a_block_used_again_while_it_is_read_in_order_is_noticed(size: int, lent: bool, data: st.DataObject) -> None:
    memory = Memory("n", b"header", content(size, size), lent)
    found = plan(Wanted("n", memory.place), memory.info, in_order=True)
    span = found.spans[-1]
    before = memory.read(span)
    at = data.draw(st.integers(0, span.nbytes))
    memory.reuse(data.draw(st.binary(max_size=64)) * 1000)
    piece = bytearray(found.nbytes)
    piece[span.at : span.at + span.nbytes] = before[:at] + memory.read(span)[at:]
    try:
        head = check_payload(piece[found.head : found.head + PAGE], KEYS[memory.place.arena], memory.place, "n")
        assert found.tail is not None
        check_tail(piece[found.tail : found.tail + 16], head, "n")
    except (NotFoundError, CorruptDataError):
        return
    (start, nbytes), *_ = found.pieces
    assert piece[start : start + nbytes] == memory.payload


def test_where_a_payload_is_read_in_order_its_head_is_read_once() -> None:
    memory = Memory("n", b"header", b"payload", lent=False)
    assert plan(Wanted("n", memory.place), memory.info).head == 0
    assert plan(Wanted("n", memory.place), memory.info, in_order=True).head == PAGE


@given(objects())
def test_what_is_read_first_does_not_overlap(drawn: tuple[Memory, Ranges]) -> None:
    memory, ranges = drawn
    found = plan(Wanted(memory.name, memory.place, ranges), memory.info)
    places = sorted((span.at, span.at + span.nbytes) for span in found.spans)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise([(0, PAGE), *places]))


@given(
    st.tuples(*[st.integers(0, 1 << 62) | st.integers(0, PAGES * PAGE)] * 8), st.sampled_from([None, (), ((0, 1),)])
)
def test_a_hostile_place_never_leads_outside(numbers: tuple[int, ...], ranges: Ranges) -> None:
    memory = Memory("n", b"h", b"p" * 100, lent=True)
    place = Place(*numbers)
    place = msgspec.structs.replace(place, arena=place.arena % 3)
    try:
        found = plan(Wanted("n", place, ranges), memory.info)
    except (CorruptDataError, NotFoundError):
        return
    memory.carry_out(found)


@pytest.mark.parametrize(
    "change",
    [
        {"payload_at": 40 * PAGE + 100},
        {"payload_at": 40 * PAGE},
        {"page": PAGES},
        {"payload_bytes": PAGES * PAGE},
        {"card": PAGES},
        {"header_bytes": 1 << 40},
    ],
)
def test_an_impossible_place_is_corrupt(change: dict[str, int]) -> None:
    memory = Memory("n", b"h", b"p" * 100, lent=True)
    place = msgspec.structs.replace(memory.place, **change)
    with pytest.raises(CorruptDataError):
        plan(Wanted("n", place), memory.info)


def test_an_inline_payload_outside_of_its_card_is_corrupt() -> None:
    memory = Memory("n", b"h", b"p" * 100, lent=False)
    with pytest.raises(CorruptDataError):
        plan(Wanted("n", msgspec.structs.replace(memory.place, card=2)), memory.info)


def test_an_arena_that_is_not_known_yet_means_moved() -> None:
    memory = Memory("n", b"h", b"p" * 100, lent=True)
    with pytest.raises(NotFoundError) as caught:
        plan(Wanted("n", msgspec.structs.replace(memory.place, arena=2)), memory.info)
    assert caught.value.facts["moved"]


def test_an_arena_that_is_not_served_is_unsupported() -> None:
    memory = Memory("n", b"h", b"p" * 100, lent=False)
    info = msgspec.structs.replace(memory.info, arenas=(msgspec.structs.replace(memory.info.arenas[0], address=0),))
    with pytest.raises(UnsupportedError):
        plan(Wanted("n", memory.place), info)


def test_a_producer_without_arenas_has_nothing() -> None:
    memory = Memory("n", b"h", b"p" * 100, lent=False)
    with pytest.raises(RoutingError):
        plan(Wanted("n", memory.place), msgspec.structs.replace(memory.info, arenas=()))


@pytest.mark.parametrize("ranges", [((0, 101),), ((-1, 3),), ((5, 3),), ((4, 8), (2, 3))])
def test_ranges_that_are_none_are_corrupt(ranges: tuple[tuple[int, int], ...]) -> None:
    memory = Memory("n", b"h", b"p" * 100, lent=False)
    with pytest.raises(CorruptDataError):
        plan(Wanted("n", memory.place, ranges), memory.info)


def test_near_ranges_are_read_together_and_far_ones_are_not() -> None:
    assert merged([(0, 10), (10, 20), (20, 20), (30_000, 30_001), (80_000, 80_010)]) == [(0, 30_001), (80_000, 80_010)]
