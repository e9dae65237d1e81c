"""An arena as a reader sees it that takes no part in it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from fastdeploy_routing_plugins.arena.arena import Arena, Block
from fastdeploy_routing_plugins.arena.layout import PAGE, WORD, Word
from fastdeploy_routing_plugins.arena.reading import ReadArena
from fastdeploy_routing_plugins.errors import ArenaError, UnsupportedError

from .helpers import SIZE, published

PAYLOAD = bytes(range(256)) * 40


@pytest.fixture
def block(arena: Arena) -> Block:
    return published(arena, b"a card", PAYLOAD)


@pytest.fixture
def reading(arena: Arena) -> Iterator[ReadArena]:
    made = opened(arena)
    yield made
    made.close()


def opened(arena: Arena) -> ReadArena:
    return ReadArena(arena.file.path, arena.file.nbytes, arena.file.head.key)


def view(reading: ReadArena, block: Block) -> memoryview:
    with reading.pin(block.page, block.generation) as pin:
        assert reading.holds(block.page, block.generation)
        return reading.view(block.payload_at, block.payload_at + block.payload_bytes, pin)


def used(arena: Arena) -> int:
    """Bytes that are not free, after a look at the pins."""
    with arena._lock:
        arena._sweep()
        arena._reclaim()
    return arena.capacity - arena.free


# --- opening ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nbytes", "key"), [(SIZE, 1), (SIZE - PAGE, 0), (SIZE + PAGE, 0), (0, 0)])
def test_another_arena_than_the_one_that_is_meant_is_refused(arena: Arena, nbytes: int, key: int) -> None:
    with pytest.raises(ArenaError, match="another arena"):
        ReadArena(arena.file.path, nbytes, arena.file.head.key ^ key)


def test_a_file_that_is_gone_is_known_by_its_cause(folder: str) -> None:
    with pytest.raises(ArenaError) as caught:
        ReadArena(os.path.join(folder, "arena"), SIZE, 1)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_symbolic_link_is_refused(arena: Arena, folder: str) -> None:
    link = os.path.join(folder, "link")
    os.symlink(arena.file.path, link)
    with pytest.raises(ArenaError, match="cannot be opened"):
        ReadArena(link, arena.file.nbytes, arena.file.head.key)


def test_what_is_no_file_is_refused(folder: str) -> None:
    with pytest.raises(ArenaError, match="another user's"):
        ReadArena(folder, SIZE, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_arena_is_refused(arena: Arena) -> None:
    os.chown(arena.file.path, 12_345, 12_345)
    with pytest.raises(ArenaError, match="another user's"):
        opened(arena)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"x" * PAGE])
def test_a_file_that_is_no_arena_is_refused(folder: str, content: bytes) -> None:
    path = os.path.join(folder, "arena")
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(ArenaError, match="no arena"):
        ReadArena(path, len(content), 1)


def test_a_reader_holds_no_lock_of_the_arena(arena: Arena) -> None:
    reading = opened(arena)
    arena.close(remove=False)
    probe = subprocess.run(["flock", "-n", arena.file.path, "true"], check=False)
    reading.close()
    os.unlink(arena.file.path)
    os.unlink(arena.file.path + ".pins")
    assert probe.returncode == 0


# --- looking ------------------------------------------------------------------------------------------------------


def test_a_card_is_meta_text_and_the_place_of_the_payload(reading: ReadArena, block: Block) -> None:
    assert reading.card(block.page, block.generation) == (b"a card", block.payload_at, len(PAYLOAD))


def test_a_block_is_held_until_it_is_released(arena: Arena, reading: ReadArena, block: Block) -> None:
    before = reading.holds(block.page, block.generation)
    arena.release(block)
    assert (before, reading.holds(block.page, block.generation)) == (True, False)


def test_a_released_block_has_no_card(arena: Arena, reading: ReadArena, block: Block) -> None:
    arena.release(block)
    assert reading.card(block.page, block.generation) is None


def test_another_generation_of_the_same_pages_is_not_taken_for_it(
    arena: Arena, reading: ReadArena, block: Block
) -> None:
    arena.release(block)
    other = published(arena, b"a card", PAYLOAD)
    assert (other.page, reading.card(block.page, block.generation)) == (block.page, None)


@pytest.mark.parametrize("page", [-1, 0, 1, SIZE // PAGE - 1, SIZE // PAGE, 1 << 60, 1 << 70])
def test_a_page_without_a_block_has_none(reading: ReadArena, page: int) -> None:
    assert (reading.card(page, 1), reading.holds(page, 1)) == (None, False)


@pytest.mark.parametrize("word", [Word.MAGIC, Word.GENERATION, Word.SEQUENCE, Word.PAGES, Word.META_BYTES])
@pytest.mark.parametrize("value", [0, 1, (1 << 64) - 1, 1 << 40])
def test_a_damaged_head_has_no_card(arena: Arena, reading: ReadArena, block: Block, word: int, value: int) -> None:
    at = block.page * PAGE // WORD + word
    arena.file.words[at] = value if arena.file.words[at] != value else value + 7
    assert reading.card(block.page, block.generation) is None


def test_damaged_meta_text_is_no_card(arena: Arena, reading: ReadArena, block: Block) -> None:
    arena.file.data[block.page * PAGE + 128] ^= 1
    assert reading.card(block.page, block.generation) is None


@pytest.mark.parametrize(("before", "beyond", "held"), [(0, 0, True), (1, 0, False), (0, 1, False), (-1, -1, True)])
def test_only_bytes_within_the_payload_are_of_it(
    reading: ReadArena, block: Block, before: int, beyond: int, held: bool
) -> None:
    start, stop = block.payload_at - before, block.payload_at + len(PAYLOAD) + beyond
    assert reading.holds_payload(block.page, block.generation, start, stop) == held


# --- views --------------------------------------------------------------------------------------------------------


def test_a_damaged_head_leads_to_nothing_beyond_the_file(arena: Arena, reading: ReadArena, block: Block) -> None:
    arena.file.words[block.page * PAGE // WORD + Word.PAYLOAD_BYTES] = 1 << 50
    begin = block.payload_at
    assert reading.holds_payload(block.page, block.generation, begin, reading.nbytes)
    assert not reading.holds_payload(block.page, block.generation, begin, reading.nbytes + 1)


def test_a_view_shows_the_payload(reading: ReadArena, block: Block) -> None:
    assert view(reading, block) == PAYLOAD


def test_a_view_cannot_be_written_to(reading: ReadArena, block: Block) -> None:
    with pytest.raises(TypeError):
        view(reading, block)[0] = 1


def test_a_view_keeps_its_block(arena: Arena, reading: ReadArena, block: Block) -> None:
    seen = view(reading, block)
    arena.release(block)
    while (other := arena.allocate(b"", PAGE)) is not None:
        arena.file.data[other.payload_at : other.payload_at + PAGE] = bytes(PAGE)
    assert seen == PAYLOAD


@pytest.mark.parametrize("make", [lambda v: v[5:9], lambda v: np.frombuffer(v, "u2")[3:], lambda v: memoryview(v)])
def test_what_is_made_of_a_view_keeps_its_block(arena: Arena, reading: ReadArena, block: Block, make: object) -> None:
    assert callable(make)
    made = make(view(reading, block))
    arena.release(block)
    before = used(arena)
    del made
    assert (before, used(arena)) == (block.nbytes, 0)


def test_a_pin_without_a_view_is_given_back(arena: Arena, reading: ReadArena, block: Block) -> None:
    with reading.pin(block.page, block.generation):
        arena.release(block)
        within = used(arena)
    assert (within, used(arena)) == (block.nbytes, 0)


def test_a_view_outlives_the_reader_and_the_file(arena: Arena, block: Block) -> None:
    reading = opened(arena)
    seen = view(reading, block)
    reading.close()
    arena.close(remove=True)
    del reading
    assert bytes(seen) == PAYLOAD


def test_a_view_that_outlives_the_reader_keeps_its_block_and_gives_it_back(arena: Arena, block: Block) -> None:
    reading = opened(arena)
    seen = view(reading, block)
    reading.close()
    del reading
    arena.release(block)
    before = used(arena)
    del seen
    assert (before, used(arena)) == (block.nbytes, 0)


def test_a_closed_reader_that_is_asked_again_leaves_no_pin(arena: Arena, block: Block) -> None:
    reading = opened(arena)
    reading.close()
    seen = view(reading, block)
    del seen, reading
    arena.release(block)
    assert used(arena) == 0


def test_a_view_in_a_cycle_of_rubbish_keeps_its_block_until_the_last_finaliser(
    arena: Arena, reading: ReadArena, block: Block
) -> None:
    found = []

    class Late:
        def __init__(self) -> None:
            self.me = self
            self.seen = view(reading, block)

        def __del__(self) -> None:
            arena.release(block)
            found.append((used(arena), bytes(self.seen) == PAYLOAD))

    Late()
    gc.collect()
    assert (found, used(arena)) == ([(block.nbytes, True)], 0)


def test_the_owner_of_a_view_cannot_be_copied(reading: ReadArena, block: Block) -> None:
    seen = view(reading, block)
    owner = seen.obj.base
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError):
            attempt(owner)


def test_more_views_than_are_kept_ready_all_count(arena: Arena, reading: ReadArena) -> None:
    blocks = [published(arena, b"", b"x" * 100) for _ in range(50)]
    seen = [view(reading, each) for each in blocks]
    for each in blocks:
        arena.release(each)
    before = used(arena)
    del seen[::2]
    half = used(arena)
    seen.clear()
    assert (before, half, used(arena)) == (50 * blocks[0].nbytes, 25 * blocks[0].nbytes, 0)


def test_two_readers_do_not_give_back_each_others_pins(arena: Arena, reading: ReadArena, block: Block) -> None:
    other = opened(arena)
    for _ in range(40):
        view(other, block)
    seen = view(reading, block)
    other.close()
    arena.release(block)
    before = used(arena)
    del seen
    assert (before, used(arena)) == (block.nbytes, 0)


def test_threads_pin_and_give_back_at_the_same_time(arena: Arena, reading: ReadArena) -> None:
    blocks = [published(arena, b"", bytes([number]) * 5000) for number in range(10)]
    wrong = []

    def body(number: int) -> None:
        for turn in range(300):
            chosen = (number + turn) % 10
            seen = view(reading, blocks[chosen])
            if bytes(seen[:100]) != bytes([chosen]) * 100:
                wrong.append(chosen)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for block in blocks:
        arena.release(block)
    assert (wrong, used(arena)) == ([], 0)


def test_pins_that_are_all_in_use_are_an_error(arena: Arena, reading: ReadArena, block: Block) -> None:
    pins = [reading.pin(number, 1) for number in range(4096)]
    with pytest.raises(ArenaError, match="all 4096 pins"):
        view(reading, block)
    with pins[0]:
        pass
    assert view(reading, block) == PAYLOAD


def test_the_pins_of_an_owner_that_is_gone_are_an_error(arena: Arena, reading: ReadArena, block: Block) -> None:
    arena.close(remove=True)
    with pytest.raises(ArenaError, match="pins"):
        view(reading, block)


def test_no_descriptor_stays_open(arena: Arena, block: Block) -> None:
    before = set(os.listdir("/proc/self/fd"))
    reading = opened(arena)
    seen = view(reading, block)
    reading.close()
    del reading, seen
    assert set(os.listdir("/proc/self/fd")) == before


SCRIPT = """
import sys
from fastdeploy_routing_plugins.arena.reading import ReadArena
path, nbytes, key, page, generation, at = sys.argv[1], *map(int, sys.argv[2:])
reading = ReadArena(path, nbytes, key)
with reading.pin(page, generation) as pin:
    seen = reading.view(at, at + 1000, pin)
"""


def test_a_view_that_lives_at_the_end_of_the_interpreter_ends_quietly(arena: Arena, block: Block) -> None:
    file = arena.file
    numbers = (file.nbytes, file.head.key, block.page, block.generation, block.payload_at)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, file.path, *map(str, numbers)], capture_output=True, text=True, check=False
    )
    arena.release(block)
    assert (ended.returncode, ended.stderr, used(arena)) == (0, "", 0)
