"""How a block describes itself: what is written is read, and nothing else is taken for a block."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.arena.layout import (
    BLOCK_MAGIC,
    HEAD_BYTES,
    MAX_META,
    PAGE,
    TAIL_BYTES,
    WORD,
    BlockHead,
    State,
    Word,
    block_size,
    checksum,
    read_block,
    write_block,
)

from .helpers import Memory

KEY = 0x0123_4567_89AB_CDEF
WORDS = st.integers(0, 2**64 - 1)
METAS = st.binary(max_size=200) | st.integers(0, 20_000).map(lambda size: bytes(index % 251 for index in range(size)))
PAYLOADS = st.integers(0, 3 * PAGE + 100) | st.sampled_from(
    [PAGE - TAIL_BYTES, PAGE - TAIL_BYTES + 1, PAGE, 2 * PAGE - TAIL_BYTES]
)
FREE_TO_CHANGE = {Word.STATE, Word.STARTS, Word.CODE}


@dataclass(frozen=True)
class Written:
    """A block in memory, and what its head should say."""

    memory: Memory
    head: BlockHead


def write(
    memory: Memory,
    page: int,
    meta: bytes,
    payload_bytes: int,
    *,
    generation: int = 5,
    sequence: int = 9,
    key: int = KEY,
) -> BlockHead:
    """Writes a block and returns what should be read."""
    pages, payload_at = block_size(len(meta), payload_bytes)
    write_block(
        memory.data,
        memory.words,
        key,
        page=page,
        pages=pages,
        generation=generation,
        sequence=sequence,
        meta=meta,
        payload_at=payload_at,
        payload_bytes=payload_bytes,
    )
    return BlockHead(page, pages, generation, sequence, meta, page * PAGE + payload_at, payload_bytes, 0)


def written(meta: bytes, payload_bytes: int, page: int = 2) -> Written:
    memory = Memory(page + block_size(len(meta), payload_bytes)[0])
    return Written(memory, write(memory, page, meta, payload_bytes))


def read(memory: Memory, page: int, key: int = KEY) -> BlockHead | None:
    return read_block(memory.data, memory.words, key, page)


def flip(data: memoryview, bit: int) -> None:
    data[bit // 8] ^= 1 << bit % 8


# --- what is written is read --------------------------------------------------------------------------------------


@given(st.integers(1, 5), METAS, PAYLOADS, WORDS, WORDS, WORDS)
def test_a_block_comes_back_as_it_was_written(
    page: int, meta: bytes, payload_bytes: int, generation: int, sequence: int, key: int
) -> None:
    memory = Memory(page + block_size(len(meta), payload_bytes)[0])
    expected = write(memory, page, meta, payload_bytes, generation=generation, sequence=sequence, key=key)
    assert read(memory, page, key) == expected


@given(METAS, PAYLOADS)
def test_payload_and_tail_do_not_share_bytes(meta: bytes, payload_bytes: int) -> None:
    head = written(meta, payload_bytes).head
    assert head.payload_at + head.payload_bytes <= (head.page + head.pages) * PAGE - TAIL_BYTES or not payload_bytes


@given(METAS, st.integers(1, 4 * PAGE))
def test_a_payload_begins_on_a_page_border(meta: bytes, payload_bytes: int) -> None:
    assert block_size(len(meta), payload_bytes)[1] % PAGE == 0


@given(METAS, PAYLOADS, st.data())
def test_writing_a_payload_leaves_its_block_as_it_is(meta: bytes, payload_bytes: int, data: st.DataObject) -> None:
    block = written(meta, payload_bytes)
    content = data.draw(st.binary(min_size=1, max_size=64))
    payload = (content * payload_bytes)[:payload_bytes]
    block.memory.data[block.head.payload_at : block.head.payload_at + payload_bytes] = payload
    assert read(block.memory, 2) == block.head


def test_a_new_block_is_ready() -> None:
    block = written(b"meta", 100)
    assert block.memory.words[2 * PAGE // WORD + Word.STATE] == State.READY


def test_the_longest_meta_is_read() -> None:
    block = written(bytes(MAX_META), 0)
    assert read(block.memory, 2) == block.head


def test_meta_that_is_too_long_is_no_block() -> None:
    assert read(written(bytes(MAX_META + 1), 0).memory, 2) is None


# --- damage -------------------------------------------------------------------------------------------------------


def bits_of(head: BlockHead) -> list[int]:
    """Returns, as offsets in the file, every bit of head words, meta and tail, but those of ``FREE_TO_CHANGE``."""
    at, end = head.page * PAGE, (head.page + head.pages) * PAGE
    places = [
        at + index * WORD + byte for index in range(HEAD_BYTES // WORD) for byte in range(WORD)
        if index not in FREE_TO_CHANGE
    ]  # fmt: skip
    places += range(at + HEAD_BYTES, at + HEAD_BYTES + len(head.meta))
    places += range(end - TAIL_BYTES, end)
    return [place * 8 + bit for place in places for bit in range(8)]


@pytest.mark.parametrize(
    ("meta", "payload_bytes"),
    [(b"", 0), (b"meta", 0), (b"some meta text", 100), (b"m" * 300, 2 * PAGE), (bytes(range(256)) * 17, PAGE)],
    ids=["empty", "no-payload", "one-page", "two-pages", "long-meta"],
)
def test_any_flipped_bit_hides_the_block_or_changes_nothing(meta: bytes, payload_bytes: int) -> None:
    block = written(meta, payload_bytes)
    wrong = []
    for bit in bits_of(block.head):
        flip(block.memory.data, bit)
        if read(block.memory, 2) not in (None, block.head):
            wrong.append(bit)
        flip(block.memory.data, bit)
    assert not wrong


@given(METAS, PAYLOADS, st.data())
def test_any_flipped_bit_of_any_block_hides_it_or_changes_nothing(
    meta: bytes, payload_bytes: int, data: st.DataObject
) -> None:
    block = written(meta, payload_bytes)
    flip(block.memory.data, data.draw(st.sampled_from(bits_of(block.head))))
    assert read(block.memory, 2) in (None, block.head)


@pytest.mark.parametrize(
    "word", sorted({value for name, value in vars(Word).items() if name.isupper()} - {*FREE_TO_CHANGE})
)
def test_a_zeroed_head_word_hides_the_block(word: Word) -> None:
    block = written(b"meta", 100)
    block.memory.words[2 * PAGE // WORD + word] = 0
    assert read(block.memory, 2) is None


def test_a_block_whose_tail_was_not_written_is_none() -> None:
    block = written(b"meta", 2 * PAGE)
    end = (block.head.page + block.head.pages) * PAGE
    block.memory.data[end - TAIL_BYTES : end] = bytes(TAIL_BYTES)
    assert read(block.memory, 2) is None


def test_another_key_does_not_read_a_block() -> None:
    assert read(written(b"meta", 100).memory, 2, KEY + 1) is None


# --- hostile bytes ------------------------------------------------------------------------------------------------

SIZES = (
    st.integers(0, 12)
    | st.sampled_from([0, 1, PAGE, PAGE - HEAD_BYTES - TAIL_BYTES, MAX_META, MAX_META + 1, 2**32, 2**63, 2**64 - 1])
    | st.integers(0, 2**64 - 1)
    | st.integers(0, 10 * PAGE)
)
PAGES_OF_MEMORY = 8


def inside(block: BlockHead | None) -> bool:
    """Whether everything that a block names lies in the memory; None names nothing."""
    return block is None or (
        block.page + block.pages <= PAGES_OF_MEMORY
        and block.payload_at + block.payload_bytes <= PAGES_OF_MEMORY * PAGE
        and len(block.meta) <= block.pages * PAGE
    )


@given(st.integers(0, PAGES_OF_MEMORY - 1), st.binary(max_size=300), st.booleans())
def test_random_bytes_are_no_block(page: int, content: bytes, with_magic: bool) -> None:
    memory = Memory(PAGES_OF_MEMORY)
    memory.data[page * PAGE : page * PAGE + len(content)] = content
    if with_magic:
        memory.words[page * PAGE // WORD + Word.MAGIC] = BLOCK_MAGIC
    assert read(memory, page) is None


@st.composite
def heads(draw: st.DrawFn) -> tuple[int, ...]:
    """Returns what a head states: sizes that agree with each other in every second case."""
    meta_bytes, payload_bytes = draw(SIZES), draw(SIZES)
    pages, payload_at = block_size(meta_bytes, payload_bytes) if draw(st.booleans()) else (draw(SIZES), draw(SIZES))
    return 5, 9, pages, meta_bytes, min(payload_at, 2**64 - 1), payload_bytes


@given(st.integers(1, PAGES_OF_MEMORY - 1), heads(), st.binary(max_size=64))
def test_whatever_sizes_a_head_states_it_stays_inside_the_memory(
    page: int, numbers: tuple[int, ...], meta: bytes
) -> None:
    memory = Memory(PAGES_OF_MEMORY)
    at, end = page * PAGE, (page + numbers[2]) * PAGE
    checked = struct.pack("<6Q", *numbers)
    memory.data[at + HEAD_BYTES : at + HEAD_BYTES + len(meta)] = meta
    memory.data[at + Word.GENERATION * WORD : at + Word.CHECKSUM * WORD] = checked
    memory.words[at // WORD + Word.MAGIC] = BLOCK_MAGIC
    if numbers[2] > 0 and end <= len(memory.data):
        memory.data[end - TAIL_BYTES : end] = checked[:TAIL_BYTES]
    # As if the key were known, so that only the checks of sizes are left.
    stated = bytes(memory.data[at + HEAD_BYTES : at + HEAD_BYTES + numbers[3]])
    memory.words[at // WORD + Word.CHECKSUM] = checksum(KEY, page.to_bytes(WORD, "little") + checked, stated)
    assert inside(read(memory, page))


@pytest.mark.parametrize("page", [-1, 0, PAGES_OF_MEMORY, PAGES_OF_MEMORY + 1, 2**52, 2**64 - 1])
def test_a_page_outside_the_memory_has_no_block(page: int) -> None:
    memory = Memory(PAGES_OF_MEMORY)
    memory.words[0] = BLOCK_MAGIC
    assert read(memory, page) is None


def test_a_block_that_ends_beyond_the_memory_is_none() -> None:
    block = written(b"meta", 3 * PAGE)
    cut = Memory(block.head.page + block.head.pages - 1)
    cut.data[:] = block.memory.data[: len(cut.data)]
    assert read(cut, 2) is None


@given(METAS, st.integers(PAGE, 3 * PAGE), WORDS.filter(lambda key: key != KEY))
def test_a_head_forged_with_another_key_is_no_block(meta: bytes, payload_bytes: int, key: int) -> None:
    pages = block_size(len(meta), payload_bytes)[0]
    memory = Memory(1 + pages)
    write(memory, 1, meta, payload_bytes, key=key)
    assert read(memory, 1) is None


@given(METAS, st.integers(0, 2 * PAGE), st.integers(1, 9), st.integers(1, 9))
def test_a_copy_of_a_block_on_other_pages_is_no_block(meta: bytes, payload_bytes: int, page: int, to: int) -> None:
    pages = block_size(len(meta), payload_bytes)[0]
    memory = Memory(10 + pages)
    write(memory, page, meta, payload_bytes)
    copy = bytes(memory.data[page * PAGE : (page + pages) * PAGE])
    memory.data[to * PAGE : (to + pages) * PAGE] = copy
    assert to == page or read(memory, to) is None
