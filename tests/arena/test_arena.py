"""The owner's and the worker's side of one arena: room, order, the ring, and what happens beside the rules."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fastdeploy_routing_plugins.arena import head as heads
from fastdeploy_routing_plugins.arena.arena import Arena, Block
from fastdeploy_routing_plugins.arena.layout import MAX_META, PAGE, RING_SLOTS, WORD, Live, State, Word, write_block
from fastdeploy_routing_plugins.arena.view import ArenaView
from fastdeploy_routing_plugins.errors import StoreClosedError

from .helpers import PATIENCE, SIZE, TEXT, allocated, published

SLOTS = 8


@pytest.fixture
def view(arena: Arena) -> ArenaView:
    return ArenaView(arena.file)


@pytest.fixture
def short(folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """An arena with few slots in its ring."""
    monkeypatch.setattr(heads, "RING_SLOTS", SLOTS)
    made = Arena.create(folder, SIZE, TEXT)
    yield made
    made.close(remove=True)


def fill(arena: Arena, payload_bytes: int = 3 * PAGE) -> list[Block]:
    """Allocates until no part of this size, nor of one page, fits."""
    blocks = []
    for size in (payload_bytes, 1):
        while (block := arena.allocate(b"", size)) is not None:
            blocks.append(block)
    return blocks


# --- room ---------------------------------------------------------------------------------------------------------


def test_what_is_allocated_is_no_longer_free(arena: Arena) -> None:
    block = allocated(arena, payload=bytes(3 * PAGE))
    assert arena.free == arena.capacity - block.nbytes


def test_what_is_released_is_free_again(arena: Arena) -> None:
    arena.release(published(arena, payload=bytes(3 * PAGE)))
    assert (arena.free, arena.largest) == (arena.capacity, arena.capacity)


def test_a_block_given_back_unpublished_is_free_again(arena: Arena) -> None:
    arena.release(allocated(arena, payload=bytes(3 * PAGE)))
    assert arena.free == arena.capacity


def test_a_full_arena_allocates_nothing(arena: Arena) -> None:
    fill(arena)
    assert arena.allocate(b"", 1) is None


def test_a_full_arena_still_takes_operations_without_payload(arena: Arena) -> None:
    fill(arena)
    assert arena.allocate(b"seal", 0) is not None


def test_operations_without_payload_end_too_and_give_their_share_back(arena: Arena) -> None:
    fill(arena)
    rounds = []
    for _ in range(2):
        blocks = []
        while (block := arena.allocate(b"seal", 0)) is not None:
            blocks.append(block)
        for block in blocks:
            arena.release(block)
        rounds.append(len(blocks))
    assert rounds[0] == rounds[1] >= 13


def test_the_share_of_operations_is_not_lent_to_parts(arena: Arena) -> None:
    blocks = fill(arena)
    control = allocated(arena, b"seal")
    for block in [*blocks, control]:
        arena.release(block)
    assert arena.largest == arena.capacity


def test_what_fits_into_an_empty_arena_is_known(arena: Arena) -> None:
    largest = arena.capacity - PAGE - 16
    assert (arena.fits(0, largest), arena.fits(0, largest + 1)) == (True, False)


def test_what_fits_is_allocated(arena: Arena) -> None:
    assert arena.allocate(b"", arena.capacity - PAGE - 16) is not None


def test_meta_that_no_reader_would_take_is_refused(folder: str) -> None:
    arena = Arena.create(folder, 4 << 20, TEXT)
    answers = arena.allocate(bytes(MAX_META + 1), 0), arena.fits(MAX_META + 1, 0)
    arena.close(remove=True)
    assert answers == (None, False)


def test_no_block_lies_on_another_one(arena: Arena) -> None:
    pages = [page for block in fill(arena) for page in range(block.page, block.page + block.pages)]
    assert len(pages) == len(set(pages))


def test_every_use_of_a_page_has_its_own_generation(arena: Arena) -> None:
    generations = set()
    for _ in range(5):
        block = published(arena)
        generations.add(block.generation)
        arena.release(block)
    assert len(generations) == 5


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 0, 8), (0,), (1,)])
def test_a_payload_is_an_array_in_place(arena: Arena, shape: tuple[int, ...]) -> None:
    block = allocated(arena, payload=bytes(2 * int(np.prod(shape))))
    arena.array(block, shape, "<u2")[...] = 258
    arena.publish(block)
    (found,) = ArenaView(arena.file).scan()
    assert bytes(ArenaView(arena.file).payload(found)) == b"\2\1" * int(np.prod(shape))


def test_an_empty_payload_at_the_very_end_is_an_array_too(arena: Arena) -> None:
    block = arena.allocate(bytes(PAGE - 200), 0)
    while block is not None:
        last, block = block, arena.allocate(bytes(PAGE - 200), 0)
    assert arena.array(last, (3, 0, 8), "u1").shape == (3, 0, 8)


def test_payloads_are_read_only_for_the_worker(arena: Arena, view: ArenaView) -> None:
    published(arena, payload=b"abc")
    assert view.payload(view.published()[0]).readonly


# --- published ----------------------------------------------------------------------------------------------------


def test_blocks_come_in_the_order_of_publishing(arena: Arena, view: ArenaView) -> None:
    first, second = allocated(arena, b"first"), allocated(arena, b"second")
    arena.publish(second)
    arena.publish(first)
    assert [block.meta for block in view.published()] == [b"second", b"first"]


def test_what_was_taken_does_not_come_again(arena: Arena, view: ArenaView) -> None:
    published(arena)
    view.published()
    assert view.published() == []


def test_a_block_comes_with_its_payload(arena: Arena, view: ArenaView) -> None:
    payload = os.urandom(3 * PAGE + 5)
    published(arena, payload=payload)
    assert bytes(view.payload(view.published()[0])) == payload


def test_a_full_ring_takes_nothing(short: Arena) -> None:
    blocks = [allocated(short) for _ in range(SLOTS + 1)]
    assert [short.publish(block) for block in blocks] == [*range(1, SLOTS + 1), None]


def test_a_full_ring_goes_on_when_something_was_taken(short: Arena) -> None:
    view = ArenaView(short.file)
    for _ in range(SLOTS):
        published(short)
    block = allocated(short, b"late")
    assert short.publish(block) is None
    view.published()
    assert (short.publish(block), [found.meta for found in view.published()]) == (SLOTS + 1, [b"late"])


def test_a_block_that_a_full_ring_refused_does_not_exist(short: Arena) -> None:
    for _ in range(SLOTS):
        published(short)
    short.publish(allocated(short, b"late"))
    assert b"late" not in [block.meta for block in ArenaView(short.file).scan()]


def test_the_ring_goes_round(arena: Arena, view: ArenaView) -> None:
    expected, seen = [], []
    for number in range(RING_SLOTS // 100 * 2 + 3):
        blocks = [published(arena, b"%d" % (number * 100 + index)) for index in range(100)]
        expected += [block.meta for block in blocks]
        seen += [block.meta for block in view.published()]
        for block in blocks:
            arena.release(block)
    assert seen == expected


def test_a_new_worker_reads_the_ring_from_where_it_is_restarted(arena: Arena) -> None:
    published(arena, b"before")
    below = arena.restart_ring()
    view = ArenaView(arena.file)
    published(arena, b"after")
    assert ([block.meta for block in view.published()], below) == ([b"after"], 2)


def test_a_new_worker_finds_what_the_ring_dropped(arena: Arena) -> None:
    published(arena, b"before")
    below = arena.restart_ring()
    published(arena, b"after")
    assert [block.meta for block in ArenaView(arena.file).scan(below)] == [b"before"]


def test_a_restarted_ring_has_all_its_room(short: Arena) -> None:
    for _ in range(SLOTS):
        published(short)
    short.restart_ring()
    assert short.publish(allocated(short)) == SLOTS + 1


def test_a_head_of_the_ring_that_runs_away_is_followed_for_one_round_only(short: Arena) -> None:
    short.file.words[Live.RING_HEAD] = 2**64 - 1
    view = ArenaView(short.file)
    view.published()
    assert len(view.damaged) == SLOTS


def test_a_published_block_that_was_overwritten_is_named(arena: Arena, view: ArenaView) -> None:
    published(arena)
    block = published(arena)
    arena.file.data[block.page * PAGE + 128] ^= 1
    view.published()
    assert view.damaged == [2]


def test_a_ring_that_names_another_block_does_not_do_it_twice(arena: Arena, view: ArenaView) -> None:
    first = published(arena)
    published(arena)
    arena.file.words[arena.file.head.ring_page * PAGE // WORD + 1] = first.page
    assert ([block.sequence for block in view.published()], view.damaged) == ([1], [2])


# --- states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_the_owner_sees_what_the_worker_marks(arena: Arena, view: ArenaView, state: State) -> None:
    block = published(arena)
    view.mark(view.published()[0], state)
    assert arena.state(block) == state


@pytest.mark.parametrize(
    ("state", "retained", "found"),
    [
        (State.READY, False, True),
        (State.DONE, False, False),
        (State.DONE, True, False),
        (State.RETAINED, False, False),
        (State.RETAINED, True, True),
        (State.FREE, True, False),
        (State.FAILED, True, False),
    ],
)
def test_a_scan_finds_what_is_to_be_done(
    arena: Arena, view: ArenaView, state: State, retained: bool, found: bool
) -> None:
    published(arena)
    view.mark(view.published()[0], state)
    assert bool(view.scan(retained=retained)) == found


def test_a_scan_finds_what_failed_when_asked_to(arena: Arena, view: ArenaView) -> None:
    published(arena)
    view.fail(view.published()[0], "backend")
    assert [block.sequence for block in view.scan(failed=True)] == [1]


@pytest.mark.parametrize(("code", "kept"), [("backend", "backend"), ("x" * 100, "x" * 48), ("", ""), ("\xe9", "?")])
def test_why_a_block_failed_is_kept_with_it(arena: Arena, view: ArenaView, code: str, kept: str) -> None:
    block = published(arena, b"meta", b"payload")
    (head,) = view.published()
    view.fail(head, code)
    assert (arena.state(block), arena.code(block), view.code(head), view.block(head.page)) == (
        State.FAILED,
        kept,
        kept,
        head,
    )


def test_a_scan_finds_no_block_within_a_payload(arena: Arena, view: ArenaView) -> None:
    inner = published(arena, b"inner", bytes(PAGE))
    copy = bytes(arena.file.data[inner.page * PAGE :][: inner.nbytes])
    published(arena, b"outer", copy * 3)
    view.mark(view.published()[0], State.DONE)
    assert [block.meta for block in view.scan()] == [b"outer"]


def test_a_scan_passes_over_the_payload_of_what_is_done(arena: Arena, view: ArenaView) -> None:
    block = allocated(arena, b"outer", bytes(5 * PAGE))
    # What no payload can be: a block, whole and ready, with this arena's key, on its very page.
    write_block(
        arena.file.data,
        arena.file.words,
        arena.file.head.key,
        page=block.page + 2,
        pages=1,
        generation=99,
        sequence=99,
        meta=b"inner",
        payload_at=PAGE,
        payload_bytes=0,
    )
    arena.publish(block)
    view.mark(view.published()[0], State.DONE)
    assert view.scan() == []


def test_starts_are_counted_with_the_block(arena: Arena, view: ArenaView) -> None:
    published(arena)
    block = view.published()[0]
    view.set_starts(block, 2)
    assert (view.starts(block), view.scan()[0].starts) == (2, 2)


def test_starts_begin_at_zero_when_pages_are_used_again(arena: Arena, view: ArenaView) -> None:
    block = published(arena)
    view.set_starts(view.published()[0], 2)
    arena.release(block)
    published(arena)
    assert view.published()[0].starts == 0


def test_a_released_block_is_free_for_who_still_knows_it(arena: Arena, view: ArenaView) -> None:
    block = published(arena)
    known = view.published()[0]
    arena.release(block)
    assert view.state(known) == State.FREE


def test_a_block_whose_pages_are_used_again_is_free_for_who_still_knows_it(arena: Arena, view: ArenaView) -> None:
    block = published(arena)
    known = view.published()[0]
    arena.release(block)
    published(arena)
    assert view.state(known) == State.FREE


@pytest.mark.parametrize("word", [1, State.READY, State.DONE, 2**64 - 1])
def test_a_block_whose_pages_are_payload_now_is_free_whatever_that_says(
    arena: Arena, view: ArenaView, word: int
) -> None:
    blocks = [published(arena, payload=bytes(PAGE)) for _ in range(2)]
    known = view.published()[1]
    for block in blocks:
        arena.release(block)
    published(arena, payload=word.to_bytes(8, "little") * (5 * PAGE // 8))
    arena.file.words[known.page * PAGE // WORD + Word.GENERATION] = known.generation
    assert view.state(known) == State.FREE


def test_marking_a_block_that_was_taken_back_changes_nothing(arena: Arena, view: ArenaView) -> None:
    blocks = [published(arena, payload=bytes(PAGE)) for _ in range(2)]
    known = view.published()
    for block in blocks:
        arena.release(block)
    payload = b"\7" * 5 * PAGE
    allocated(arena, payload=payload)
    before = bytes(arena.file.data)
    for block in known:
        view.mark(block, State.DONE)
        view.set_starts(block, 1)
        view.fail(block, "backend")
    assert (len(known), bytes(arena.file.data) == before) == (2, True)


def test_the_heartbeat_is_seen(arena: Arena, view: ArenaView) -> None:
    before = arena.beats()
    view.beat()
    assert arena.beats() == before + 1


# --- beside the rules ---------------------------------------------------------------------------------------------


def test_a_closed_arena_allocates_nothing(arena: Arena) -> None:
    arena.close(remove=True)
    with pytest.raises(StoreClosedError):
        arena.allocate(b"", 0)


def test_a_closed_arena_publishes_nothing(arena: Arena) -> None:
    block = allocated(arena)
    arena.close(remove=True)
    with pytest.raises(StoreClosedError):
        arena.publish(block)


def test_a_block_may_be_released_after_closing(arena: Arena) -> None:
    block = published(arena)
    arena.close(remove=True)
    arena.release(block)
    assert arena.beats() == 0


def test_closing_twice_is_harmless(arena: Arena) -> None:
    arena.close(remove=True)
    spare = os.open(os.devnull, os.O_RDONLY)  # takes a number that closing twice would close
    arena.close(remove=True)
    os.close(spare)
    assert not os.path.exists(arena.file.path)


def test_forgetting_an_arena_closes_no_descriptor_of_anybody_else(arena: Arena) -> None:
    arena.forget()
    spares = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    arena.forget()
    arena.close(remove=True)
    for spare in spares:
        os.close(spare)
    arena.file.remove()
    assert not os.path.exists(arena.file.path)


_COLLECTED_WITHIN = """
import gc, sys
from fastdeploy_routing_plugins.arena.allocator import Extents
from fastdeploy_routing_plugins.arena.arena import Arena

class Dropped:
    '''A reservation in a cycle: the garbage collector gives its block back, whenever it likes.'''
    def __init__(self, arena, block):
        self.arena, self.block, self.cycle = arena, block, self
    def __del__(self):
        self.arena.release(self.block)

class Collecting(Extents):
    '''Comes to a collection while the arena is locked.'''
    def take(self, pages):
        gc.collect()
        return super().take(pages)

arena = Arena.create(sys.argv[1], 1 << 20, b"")
arena._data.__class__ = Collecting
gc.freeze()  # what Python itself consists of need not be looked at each time
for number in range(200):
    block = arena.allocate(b"", 5000)
    assert block is not None, number
    Dropped(arena, block)
del block
gc.collect()
print(arena.free == arena.capacity)
arena.close(remove=True)
"""


def test_the_garbage_collector_may_release_in_the_middle_of_anything(folder: str) -> None:
    command = [sys.executable, "-c", _COLLECTED_WITHIN, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_several_threads_share_an_arena(arena: Arena, view: ArenaView) -> None:
    each, mine, errors = 120, 4, []
    over = threading.Event()
    done: list[int] = []

    def produce(number: int) -> None:
        try:
            for index in range(each):
                payload = bytes([number]) * (1 + index * 37 % (4 * PAGE))
                while (block := arena.allocate(b"%d" % number, len(payload))) is None:
                    over.wait(0.001)
                arena.file.data[block.payload_at : block.payload_at + len(payload)] = payload
                while arena.publish(block) is None:
                    over.wait(0.001)
                while arena.state(block) != State.DONE:
                    over.wait(0.0002)
                arena.release(block)
        except Exception as err:  # noqa: BLE001 - shown below
            errors.append(err)

    def work() -> None:
        while not over.is_set():
            for block in view.published():
                if set(bytes(view.payload(block))) == {int(block.meta)}:
                    done.append(block.sequence)
                view.mark(block, State.DONE)

    worker = threading.Thread(target=work)
    threads = [threading.Thread(target=produce, args=(number,)) for number in range(1, mine + 1)]
    for thread in (worker, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    worker.join()
    assert (errors, done, arena.free) == ([], list(range(1, each * mine + 1)), arena.capacity)


def test_arenas_leave_no_descriptor_and_no_mapping_behind(folder: str) -> None:
    def count() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count(folder)

    before = count()
    for _ in range(5):
        arena = Arena.create(folder, SIZE, TEXT)
        arena.array(allocated(arena, payload=b"abc"), (3,), "u1")
        arena.close(remove=True)
    assert count() == before
