"""An arena from the worker's, an adopter's or a reader's side: published blocks, in order, and marks on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .layout import BLOCK_MAGIC, CODE_BYTES, PAGE, WORD, BlockHead, Live, State, Word, read_block, read_code

if TYPE_CHECKING:
    from .file import ArenaFile


class ArenaView:
    """Blocks of an arena that somebody else allocates.

    Attributes:
        file: The arena's file.
        damaged: Sequences that were published and whose blocks are not whole; ``published`` appends to it.
    """

    def __init__(self, file: ArenaFile) -> None:
        self.file = file
        self.damaged: list[int] = []
        self._words = file.words
        self._ring = file.head.ring_page * PAGE // WORD
        self._slots = file.head.ring_slots
        self._taken = self._words[Live.RING_TAIL]

    def block(self, page: int) -> BlockHead | None:
        """Returns the whole block that begins on a page, or None."""
        return read_block(self.file.data, self._words, self.file.head.key, page)

    def payload(self, block: BlockHead) -> memoryview:
        """Returns a block's payload, read-only, in place."""
        return self.file.data[block.payload_at : block.payload_at + block.payload_bytes].toreadonly()

    def state(self, block: BlockHead) -> int:
        """Returns a block's state; FREE if it was taken back. A reader asks this after it pinned the block."""
        # The state first: if the head is still there afterwards, the state was this block's.
        state = int(self._words[block.page * PAGE // WORD + Word.STATE])
        return state if self._is_there(block) else State.FREE

    def mark(self, block: BlockHead, state: State) -> None:
        """Sets a block's state; only for who works on it."""
        if self._is_there(block):  # an operation that was given up may end after its pages are somebody else's
            self._words[block.page * PAGE // WORD + Word.STATE] = state

    def fail(self, block: BlockHead, code: str) -> None:
        """Notes that a block ended in an error, so that nobody does it again after what came later."""
        if self._is_there(block):
            at = block.page * PAGE + Word.CODE * WORD
            text = code.encode("ascii", "replace")[:CODE_BYTES]
            self.file.data[at : at + CODE_BYTES] = text.ljust(CODE_BYTES, b"\0")
            self.mark(block, State.FAILED)

    def code(self, block: BlockHead) -> str:
        """Returns the code of the error that a block ended in."""
        return read_code(self.file.data, block.page)

    def set_starts(self, block: BlockHead, starts: int) -> None:
        """Notes how often a worker began this block without an end."""
        if self._is_there(block):
            self._words[block.page * PAGE // WORD + Word.STARTS] = starts

    def _is_there(self, block: BlockHead) -> bool:
        """Whether a block's head still lies where it was found."""
        first = block.page * PAGE // WORD
        words = self._words[first + Word.MAGIC], self._words[first + Word.GENERATION]
        return words == (BLOCK_MAGIC, block.generation)

    def starts(self, block: BlockHead) -> int:
        """Returns how often a worker began this block without an end."""
        return int(self._words[block.page * PAGE // WORD + Word.STARTS])

    def published(self) -> list[BlockHead]:
        """Takes what was published since the last call, in order."""
        head = min(self._words[Live.RING_HEAD], self._taken + self._slots)
        found = []
        while self._taken < head:
            page = self._words[self._ring + self._taken % self._slots]
            self._taken += 1
            block = self.block(page)
            if block is not None and block.sequence == self._taken:
                found.append(block)
            else:
                self.damaged.append(self._taken)
        self._words[Live.RING_TAIL] = self._taken
        return found

    def scan(self, below: int | None = None, *, retained: bool = False, failed: bool = False) -> list[BlockHead]:
        """Returns every whole block that was published and is not done, by sequence; for a fresh start.

        Args:
            below: Only sequences below this; later ones come through ``published``.
            retained: Also the blocks that a backend kept in place, and lost with its process.
            failed: Also the blocks that ended in an error.
        """
        table = np.frombuffer(self.file.map, dtype="<u8").reshape(-1, PAGE // WORD)
        heads = table[:, Word.MAGIC] == BLOCK_MAGIC
        heads[: self.file.head.heap_page] = False
        wanted = {State.READY, *([State.RETAINED] if retained else []), *([State.FAILED] if failed else [])}
        found = []
        end = 0
        for page in np.flatnonzero(heads).tolist():
            block = self.block(page) if page >= end else None
            if block is not None:
                end = page + block.pages  # what looks like a head within is payload, whatever this block's state
                if self.state(block) in wanted and (below is None or block.sequence < below):
                    found.append(block)
        return sorted(found, key=lambda block: block.sequence)

    def wanted(self) -> int:
        """Returns how many bytes the engine waits for; 0 if it does not."""
        return int(self._words[Live.WANTED])

    def beat(self) -> None:
        """Shows that the worker's main loop turns."""
        self._words[Live.HEARTBEAT] += 1

    def sign(self, pid: int, started: int) -> None:
        """Says which process works on the arena."""
        self._words[Live.WORKER_PID] = pid
        self._words[Live.WORKER_START] = started
