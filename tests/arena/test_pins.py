"""Pins: what a reader looks at is not used again, however the reader ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastdeploy_routing_plugins.arena.arena import Arena, Block
from fastdeploy_routing_plugins.arena.layout import PAGE, BlockHead, State
from fastdeploy_routing_plugins.arena.pins import SLOTS, PinBook, Pins
from fastdeploy_routing_plugins.arena.view import ArenaView
from fastdeploy_routing_plugins.errors import ArenaError

from .helpers import Child, kill, published

PAYLOAD = b"look at me" * 1000


@pytest.fixture
def pins(arena: Arena) -> Iterator[Pins]:
    """A reader's pins."""
    made = Pins(arena.file.path)
    yield made
    made.close()


@pytest.fixture
def book(folder: str) -> Iterator[PinBook]:
    """Pins as an owner sees them, of an arena that is not needed here."""
    made = PinBook(os.path.join(folder, "arena"))
    yield made
    made.close()


def head_of(arena: Arena, block: Block) -> BlockHead:
    head = ArenaView(arena.file).block(block.page)
    assert head is not None
    return head


def pin(pins: Pins, block: Block) -> int:
    return pins.pin(block.page, block.generation)


# --- one process --------------------------------------------------------------------------------------------------


def test_nothing_is_pinned_at_first(book: PinBook) -> None:
    assert book.pinned() == set()


def test_what_is_pinned_is_known(book: PinBook, folder: str) -> None:
    pins = Pins(os.path.join(folder, "arena"))
    pins.pin(7, 2**64 - 1)
    pins.pin(8, 1)
    found = book.pinned()
    pins.close()
    assert found == {(7, 2**64 - 1), (8, 1)}


def test_what_is_unpinned_is_forgotten(book: PinBook, folder: str) -> None:
    pins = Pins(os.path.join(folder, "arena"))
    first = pins.pin(7, 1)
    pins.pin(8, 1)
    pins.unpin(first)
    found = book.pinned()
    pins.close()
    assert found == {(8, 1)}


def test_a_block_pinned_twice_is_pinned_until_both_are_given_back(book: PinBook, folder: str) -> None:
    pins = Pins(os.path.join(folder, "arena"))
    first = pins.pin(7, 1)
    pins.pin(7, 1)
    pins.unpin(first)
    found = book.pinned()
    pins.close()
    assert found == {(7, 1)}


def test_closing_gives_every_pin_back(book: PinBook, folder: str) -> None:
    pins = Pins(os.path.join(folder, "arena"))
    for page in range(20):
        pins.pin(page, 1)
    pins.close()
    assert book.pinned() == set()


def test_giving_a_pin_back_twice_is_harmless(arena: Arena, pins: Pins) -> None:
    slot = pins.pin(7, 1)
    pins.unpin(slot)
    other = pins.pin(7, 1)
    pins.unpin(slot if slot != other else slot + 1)
    assert other in pins._mine


def test_closed_pins_pin_nothing(arena: Arena) -> None:
    pins = Pins(arena.file.path)
    pins.close()
    with pytest.raises(ArenaError, match="closed"):
        pins.pin(7, 1)


def test_closing_twice_closes_no_descriptor_of_anybody_else(arena: Arena) -> None:
    pins = Pins(arena.file.path)
    pins.close()
    spare = os.open(os.devnull, os.O_RDONLY)
    pins.close()
    os.close(spare)
    assert pins._fd < 0


def test_an_arena_without_pins_cannot_be_pinned(folder: str) -> None:
    with pytest.raises(ArenaError, match="cannot be opened: No such file"):
        Pins(os.path.join(folder, "arena"))


def test_pins_of_somebody_else_are_refused(folder: str) -> None:
    path = Path(folder, "arena.pins")
    path.symlink_to("/dev/zero")
    if os.geteuid() == 0:  # who is not root cannot make another user's file, and a symlink is refused as well
        path.unlink()
        path.write_bytes(b"")
        os.chown(path, 12_345, 12_345)
    with pytest.raises(OSError, match=r"foreign file|symbolic links"):
        PinBook(os.path.join(folder, "arena"))


def test_all_slots_can_be_used_and_then_there_are_none(book: PinBook, folder: str) -> None:
    pins = Pins(os.path.join(folder, "arena"))
    for number in range(SLOTS):
        pins.pin(number, 1)
    full = len(book.pinned())
    with pytest.raises(ArenaError, match=f"all {SLOTS} pins are in use.*release views"):
        pins.pin(7, 2)
    pins.close()
    assert full == SLOTS


def test_damaged_pins_hold_nothing_up(book: PinBook, folder: str) -> None:
    with open(os.path.join(folder, "arena.pins"), "r+b") as file:
        file.write(b"\xff" * (SLOTS * 32 + 1))
    assert book.pinned() == set()


@pytest.mark.parametrize("size", [0, 77, SLOTS * 32])
def test_whose_pins_were_cut_off_is_not_known(book: PinBook, folder: str, size: int) -> None:
    pins = Pins(os.path.join(folder, "arena"))
    pins.pin(7, 1)
    os.truncate(os.path.join(folder, "arena.pins"), size)
    found = book.pinned()
    pins.close()
    assert found is None


# --- the owner ----------------------------------------------------------------------------------------------------


def test_a_pinned_block_is_not_used_again(arena: Arena, pins: Pins) -> None:
    block = published(arena, payload=PAYLOAD)
    pin(pins, block)
    arena.release(block)
    while (other := arena.allocate(b"", PAGE)) is not None:
        arena.file.data[other.payload_at : other.payload_at + PAGE] = bytes(PAGE)
    assert arena.file.data[block.payload_at : block.payload_at + len(PAYLOAD)] == PAYLOAD


def test_nothing_is_used_again_when_the_pins_were_cut_off(arena: Arena, pins: Pins) -> None:
    block = published(arena, payload=PAYLOAD)
    pin(pins, block)
    os.truncate(f"{arena.file.path}.pins", 0)
    arena.release(block)
    while (other := arena.allocate(b"", PAGE)) is not None:
        arena.file.data[other.payload_at : other.payload_at + PAGE] = bytes(PAGE)
    assert arena.file.data[block.payload_at : block.payload_at + len(PAYLOAD)] == PAYLOAD


def test_a_pinned_block_is_used_again_when_it_is_unpinned(arena: Arena, pins: Pins) -> None:
    block = published(arena, payload=PAYLOAD)
    slot = pin(pins, block)
    arena.release(block)
    pins.unpin(slot)
    assert arena.allocate(b"", arena.capacity - 2 * PAGE) is not None


def test_a_pin_on_an_earlier_use_of_the_pages_holds_nothing_up(arena: Arena, pins: Pins) -> None:
    first = published(arena, payload=PAYLOAD)
    arena.release(first)
    second = published(arena, payload=PAYLOAD)
    pin(pins, first)
    arena.release(second)
    assert (second.page, arena.free) == (first.page, arena.capacity)


def test_a_pin_before_the_release_finds_the_block(arena: Arena, pins: Pins) -> None:
    block = published(arena)
    head = head_of(arena, block)
    pin(pins, block)
    assert ArenaView(arena.file).state(head) == State.READY


def test_a_pin_after_the_release_finds_the_block_gone(arena: Arena, pins: Pins) -> None:
    block = published(arena)
    head = head_of(arena, block)
    arena.release(block)
    pin(pins, block)
    assert ArenaView(arena.file).state(head) == State.FREE


def test_a_block_that_is_pinned_and_released_is_gone_for_later_readers(arena: Arena, pins: Pins) -> None:
    block = published(arena)
    head = head_of(arena, block)
    pin(pins, block)
    arena.release(block)
    assert ArenaView(arena.file).state(head) == State.FREE


# --- several processes --------------------------------------------------------------------------------------------


def test_a_pin_of_another_process_counts(arena: Arena) -> None:
    block = published(arena, payload=PAYLOAD)
    with Child("pin", arena.file.path, block.page, block.generation) as reader:
        reader.line()
        arena.release(block)
        assert arena.free == arena.capacity - block.nbytes


def test_a_pin_that_another_process_gives_back_does_not_count(arena: Arena) -> None:
    block = published(arena, payload=PAYLOAD)
    with Child("pin", arena.file.path, block.page, block.generation) as reader:
        reader.line()
        reader.tell()
        reader.line()
        arena.release(block)
        assert arena.free == arena.capacity


def test_the_pin_of_a_killed_reader_does_not_count(arena: Arena) -> None:
    block = published(arena, payload=PAYLOAD)
    with Child("pin", arena.file.path, block.page, block.generation) as reader:
        reader.line()
        reader.kill()
    arena.release(block)
    assert arena.free == arena.capacity


def test_a_block_that_waited_for_a_reader_is_used_when_that_is_killed(arena: Arena) -> None:
    block = published(arena, payload=PAYLOAD)
    with Child("pin", arena.file.path, block.page, block.generation) as reader:
        reader.line()
        arena.release(block)
        reader.kill()
    assert arena.allocate(b"", arena.capacity - 2 * PAGE) is not None


def test_the_slot_of_a_killed_reader_is_used_again(book: PinBook, folder: str) -> None:
    path = os.path.join(folder, "arena")
    with Child("pin", path, 7, 1) as reader:
        slot = int(reader.line())
        reader.kill()
    pins = Pins(path)
    again = pins.pin(7, 2)
    found = book.pinned()
    pins.close()
    assert (again, found) == (slot, {(7, 2)})


def test_two_processes_do_not_share_a_slot(book: PinBook, folder: str) -> None:
    path = os.path.join(folder, "arena")
    with Child("pin", path, 7, 1) as one, Child("pin", path, 7, 1) as other:
        assert one.line() != other.line()


@pytest.fixture
def forked(arena: Arena) -> Iterator[tuple[Child, Block, int, str]]:
    """A reader that pinned a block and then forked a child, which gave everything back that it could.

    Yields:
        The reader, the block, the child's process id, and what pinning in the child led to.
    """
    block = published(arena, payload=PAYLOAD)
    with Child("pin_and_fork", arena.file.path, block.page, block.generation) as reader:
        pid, answer = reader.line().split()
        try:
            yield reader, block, int(pid), answer
        finally:
            kill(int(pid))


def test_a_forked_child_does_not_give_its_parents_pins_back(
    arena: Arena, forked: tuple[Child, Block, int, str]
) -> None:
    arena.release(forked[1])
    assert arena.free == arena.capacity - forked[1].nbytes


def test_a_forked_child_does_not_keep_the_pins_of_a_dead_parent(
    arena: Arena, forked: tuple[Child, Block, int, str]
) -> None:
    forked[0].kill()
    arena.release(forked[1])
    assert arena.free == arena.capacity


def test_a_forked_child_cannot_pin_with_its_parents_pins(forked: tuple[Child, Block, int, str]) -> None:
    assert forked[3] == ArenaError.code
