"""Blocks that arrived: recognised, or refused. These tests need no Mooncake."""

from __future__ import annotations

import os
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.arena.layout import PAGE, State, Word
from fastdeploy_routing_plugins.errors import CorruptDataError, NotFoundError, RoutingError
from fastdeploy_routing_plugins.stores.rdma.place import Place
from fastdeploy_routing_plugins.stores.rdma.transport.rdma_blocks import (
    DoubtError,
    Head,
    check_payload,
    check_tail,
    expect,
    moved,
    read_card,
)

from .memory import KEYS, Memory

MUTATIONS = int(os.environ.get("FD_ROUTING_TEST_MUTATIONS", "5000"))
NAME, HEADER = "ns/x/0/routing/0/p", b"header" * 10


@pytest.fixture
def memory() -> Memory:
    return Memory(NAME, HEADER, b"p" * 5000, lent=False)


def card(memory: Memory) -> bytearray:
    start = memory.place.card * PAGE
    return memory.arenas[0][start : start + PAGE]


def put_word(raw: bytearray, word: int, value: int) -> None:
    raw[word * 8 : word * 8 + 8] = value.to_bytes(8, "little")


def is_moved(raw: bytes | bytearray, memory: Memory) -> bool:
    with pytest.raises(NotFoundError) as caught:
        read_card(raw, KEYS[0], memory.place, NAME)
    return not isinstance(caught.value, DoubtError) and caught.value.facts.get("moved", False)


def test_a_card_gives_the_header(memory: Memory) -> None:
    assert read_card(card(memory), KEYS[0], memory.place, NAME) == HEADER


@pytest.mark.parametrize(
    ("word", "value"), [(Word.MAGIC, 0), (Word.STATE, State.FREE), (Word.STATE, 77), (Word.GENERATION, 18)]
)
def test_a_freed_or_reused_block_has_moved(memory: Memory, word: int, value: int) -> None:
    raw = card(memory)
    put_word(raw, word, value)
    assert is_moved(raw, memory)


@pytest.mark.parametrize("state", [State.READY, State.DONE, State.RETAINED, State.FAILED])
def test_a_block_in_use_is_accepted_whatever_became_of_it(memory: Memory, state: State) -> None:
    raw = card(memory)
    put_word(raw, Word.STATE, state)
    assert read_card(raw, KEYS[0], memory.place, NAME) == HEADER


def test_zeros_and_nothing_have_moved(memory: Memory) -> None:
    assert is_moved(bytes(PAGE), memory)
    assert is_moved(b"", memory)


@pytest.mark.parametrize("at", [4 * 8, 5 * 8, 6 * 8, 7 * 8, 8 * 8, 130, 200])
def test_a_changed_byte_of_the_right_block_is_a_doubt(memory: Memory, at: int) -> None:
    raw = card(memory)
    raw[at] ^= 1
    with pytest.raises(DoubtError):
        read_card(raw, KEYS[0], memory.place, NAME)


def test_a_block_of_another_arena_or_page_is_a_doubt(memory: Memory) -> None:
    with pytest.raises(DoubtError):
        read_card(card(memory), KEYS[1], memory.place, NAME)
    with pytest.raises(DoubtError):
        expect(card(memory), KEYS[0], memory.place.card + 1, memory.place.generation, NAME)


def test_another_name_is_corrupt(memory: Memory) -> None:
    with pytest.raises(CorruptDataError):
        read_card(card(memory), KEYS[0], memory.place, NAME + "q")


@pytest.mark.parametrize("field", ["header_bytes", "payload_bytes", "arena", "page", "block_generation", "payload_at"])
@pytest.mark.parametrize("lent", [False, True])
def test_a_place_that_the_card_contradicts_is_corrupt(lent: bool, field: str) -> None:
    memory = Memory(NAME, HEADER, b"p" * 5000, lent)
    place = msgspec.structs.replace(memory.place, **{field: getattr(memory.place, field) + 1})
    with pytest.raises(CorruptDataError):
        read_card(card(memory), KEYS[0], place, NAME)


def test_a_card_that_is_cut_off_is_corrupt(memory: Memory) -> None:
    with pytest.raises(CorruptDataError):
        read_card(card(memory)[:150], KEYS[0], memory.place, NAME)


def test_a_payload_elsewhere_in_the_right_block_is_corrupt(memory: Memory) -> None:
    place = msgspec.structs.replace(memory.place, payload_bytes=4999)
    with pytest.raises(CorruptDataError):
        check_payload(card(memory), KEYS[0], place, NAME)


def test_a_tail_that_contradicts_the_head_is_to_be_read_again() -> None:
    head = Head(17, 5, 1, 0, PAGE, 1)
    check_tail((17).to_bytes(8, "little") + (5).to_bytes(8, "little"), head, NAME)
    with pytest.raises(DoubtError):
        check_tail((17).to_bytes(8, "little") + (6).to_bytes(8, "little"), head, NAME)


def test_hostile_cards_never_pass_for_the_right_one(memory: Memory) -> None:
    whole, chance = card(memory), random.Random(0)
    for _ in range(MUTATIONS):
        raw = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(320)
            raw[at : at + 8] = chance.randbytes(chance.choice([0, 1, 8, 8]))
        if chance.random() < 0.2:
            del raw[chance.randrange(len(raw)) :]
        try:
            header = read_card(raw, KEYS[0], memory.place, NAME)
        except RoutingError:
            continue
        assert header == HEADER  # what was changed is not looked at


@given(st.binary(max_size=400))
def test_noise_is_never_a_card(raw: bytes) -> None:
    with pytest.raises(RoutingError):
        read_card(raw, KEYS[0], Place(1, 1, 1, 1, 0, 1, 1, 2 * PAGE), NAME)


def test_moved_says_so() -> None:
    assert moved(NAME).facts == {"name": NAME, "moved": True}
