"""An arena against a model: whatever is done in whatever order, a fresh start finds what it should, and no more."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastdeploy_routing_plugins.arena import head as heads
from fastdeploy_routing_plugins.arena.arena import Arena, Block
from fastdeploy_routing_plugins.arena.layout import PAGE, State
from fastdeploy_routing_plugins.arena.pins import Pins
from fastdeploy_routing_plugins.arena.view import ArenaView

from .helpers import FEWER, SIZE, TEXT

NUMBERS = st.integers(0, 1 << 30)
SIZES = st.integers(0, 40 * PAGE) | st.sampled_from([0, 0, 1, PAGE - 16, PAGE, 40 * PAGE])
SLOTS = 16


@dataclass
class Known:
    """What the model knows of a block."""

    block: Block
    payload: bytes
    state: State | None = None  # None: not published
    pin: int | None = None
    released: bool = False


class ArenaMachine(RuleBasedStateMachine):
    """Does the same with an arena and with a list."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="fd-arena-test-", dir="/dev/shm")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(heads, "RING_SLOTS", SLOTS)
            self.arena = Arena.create(self.folder, SIZE, TEXT)
        self.view = ArenaView(self.arena.file)
        self.pins = Pins(self.arena.file.path)
        self.known: list[Known] = []
        self.ring: list[int] = []
        self.published = 0
        self.content = 0

    def teardown(self) -> None:
        if hasattr(self, "arena"):
            self.pins.close()
            self.arena.close(remove=True)
            shutil.rmtree(self.folder)

    def of(self, number: int, *states: State | None) -> Known | None:
        """Returns one of the blocks in some states that were not released."""
        some = [each for each in self.known if each.state in states and not each.released]
        return some[number % len(some)] if some else None

    # --- the owner ------------------------------------------------------------------------------------------------

    @rule(meta=st.sampled_from([0, 1, 40, 3968, 5000]), size=SIZES, copied=st.booleans(), number=NUMBERS)
    def allocate(self, meta: int, size: int, copied: bool, number: int) -> None:
        block = self.arena.allocate(bytes([number % 256]) * meta, size)
        if block is None:
            return
        self.content += 1
        payload = (self.content.to_bytes(8, "little") * (size // 8 + 1))[:size]
        old = self.of(number, State.READY, State.DONE, State.RETAINED)
        if copied and old is not None:  # a payload full of heads, each of them whole, none on its own page
            head = bytes(self.arena.file.data[old.block.page * PAGE : (old.block.page + 1) * PAGE])
            payload = (head * (size // PAGE + 1))[:size]
        self.arena.file.data[block.payload_at : block.payload_at + size] = payload
        self.known.append(Known(block, payload))

    @rule(number=NUMBERS)
    def publish(self, number: int) -> None:
        each = self.of(number, None)
        if each is None:
            return
        sequence = self.arena.publish(each.block)
        assert (sequence is None) == (len(self.ring) == SLOTS)
        if sequence is not None:
            self.published += 1
            assert sequence == self.published
            each.state = State.READY
            self.ring.append(sequence)

    @rule(number=NUMBERS)
    def release(self, number: int) -> None:
        # What is ready is taken back only when no worker lives, and then the ring starts again.
        each = self.of(number, None, State.DONE, State.RETAINED, State.FAILED)
        if each is not None:
            self.give_back(each)

    def give_back(self, each: Known) -> None:
        self.arena.release(each.block)
        each.released = True
        each.state = State.FREE if each.state is not None else None
        self.known = [other for other in self.known if not other.released or other.pin is not None]

    # --- the worker -----------------------------------------------------------------------------------------------

    @rule()
    def take(self) -> None:
        assert [block.sequence for block in self.view.published()] == self.ring
        assert not self.view.damaged
        self.ring = []

    @rule(number=NUMBERS, state=st.sampled_from([State.DONE, State.RETAINED, State.FAILED]))
    def mark(self, number: int, state: State) -> None:
        each = self.of(number, State.READY)
        if each is None or each.block.sequence in self.ring:
            return
        head = self.view.block(each.block.page)
        assert head is not None
        if state == State.FAILED:
            self.view.fail(head, f"code-{head.sequence}")
        else:
            self.view.mark(head, state)
        each.state = state

    @rule(number=NUMBERS, give_up=st.booleans())
    def restart(self, number: int, give_up: bool) -> None:
        """The worker dies, some of what it had may be given up, and another one starts."""
        below = self.arena.restart_ring()
        assert below == self.published + 1
        self.ring = []
        each = self.of(number, State.READY)
        if give_up and each is not None:
            self.give_back(each)
        self.view = ArenaView(self.arena.file)

    # --- a reader -------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.known) > 2)
    @rule(number=NUMBERS)
    def pin(self, number: int) -> None:
        each = self.of(number, State.DONE, State.RETAINED)
        if each is not None and each.pin is None:
            each.pin = self.pins.pin(each.block.page, each.block.generation)

    @rule(number=NUMBERS)
    def unpin(self, number: int) -> None:
        pinned = [each for each in self.known if each.pin is not None]
        if pinned:
            each = pinned[number % len(pinned)]
            assert each.pin is not None
            self.pins.unpin(each.pin)
            each.pin = None
            self.known = [other for other in self.known if not other.released or other.pin is not None]

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def a_scan_finds_what_is_ready(self) -> None:
        ready = [each.block.sequence for each in self.known if each.state == State.READY]
        assert [block.sequence for block in self.view.scan()] == sorted(ready)

    @invariant()
    def a_scan_finds_what_is_retained_or_failed(self) -> None:
        states = State.READY, State.RETAINED, State.FAILED
        wanted = [each.block.sequence for each in self.known if each.state in states]
        below = self.published // 2
        found = [block.sequence for block in self.view.scan(below, retained=True, failed=True)]
        assert found == sorted(sequence for sequence in wanted if sequence < below)

    @invariant()
    def every_block_is_as_it_was_filled(self) -> None:
        for each in self.known:
            block = each.block
            assert self.arena.file.data[block.payload_at : block.payload_at + len(each.payload)] == each.payload

    @invariant()
    def meta_and_state_are_as_the_model_says(self) -> None:
        for each in self.known:
            if each.state is not None:
                head = self.view.block(each.block.page)
                assert head is not None
                assert (head.meta, self.view.state(head)) == (each.block.meta, each.state)
                assert each.state != State.FAILED or self.view.code(head) == f"code-{head.sequence}"

    @invariant()
    def what_is_free_and_what_is_not_is_all_there_is(self) -> None:
        free = self.arena.free  # looks at what was released
        used = sum(each.block.nbytes for each in self.known if each.block.page < self.arena._control_from)
        # What was unpinned is free as soon as anything else is released, or there is no room.
        waiting = sum(block.nbytes for block in self.arena._waiting if block.page < self.arena._control_from)
        held = sum(
            each.block.nbytes for each in self.known if each.released and each.block.page < self.arena._control_from
        )
        assert free == self.arena.capacity - used - (waiting - held)


ArenaMachine.TestCase.settings = settings(FEWER, stateful_step_count=60)


class TestArenaModel(ArenaMachine.TestCase):  # type: ignore[name-defined,misc]
    """Runs the machine."""
