"""An arena from the worker's, an adopter's or a reader's side: published blocks, in order, and marks on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .layout import BLOCK_MAGIC, PAGE, WORD, BlockHead, Live, State, Word, read_block

if TYPE_CHECKING:
    from .file import ArenaFile


class ArenaView:
    """Blocks of an arena that somebody else allocates."""

    def __init__(self, file: ArenaFile) -> None:
        self.file = file
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
        """Returns a block's state; FREE if the pages were given to another block."""
        first = block.page * PAGE // WORD
        same = self._words[first + Word.GENERATION] == block.generation
        return int(self._words[first + Word.STATE]) if same else State.FREE

    def mark(self, block: BlockHead, state: State) -> None:
        """Sets a block's state; only for who works on it."""
        self._words[block.page * PAGE // WORD + Word.STATE] = state

    def set_starts(self, block: BlockHead, starts: int) -> None:
        """Notes how often a worker began this block without an end."""
        self._words[block.page * PAGE // WORD + Word.STARTS] = starts

    def starts(self, block: BlockHead) -> int:
        """Returns how often a worker began this block without an end."""
        return int(self._words[block.page * PAGE // WORD + Word.STARTS])

    def published(self) -> list[BlockHead]:
        """Takes what was published since the last call, in order."""
        head = self._words[Live.RING_HEAD]
        found = []
        while self._taken < head:
            page = self._words[self._ring + self._taken % self._slots]
            self._taken += 1
            block = self.block(page)
            if block is not None:
                found.append(block)
        self._words[Live.RING_TAIL] = self._taken
        return found

    def scan(self, below: int | None = None, *, retained: bool = False) -> list[BlockHead]:
        """Returns every whole block that was published and is not done, by sequence; for a fresh start.

        Args:
            below: Only sequences below this; later ones come through ``published``.
            retained: Also the blocks that a backend kept in place, and lost with its process.
        """
        table = np.frombuffer(self.file.map, dtype="<u8").reshape(-1, PAGE // WORD)
        states = table[:, Word.STATE]
        wanted = (states == State.READY) | (states == State.RETAINED) if retained else states == State.READY
        ready = (table[:, Word.MAGIC] == BLOCK_MAGIC) & wanted
        ready[: self.file.head.heap_page] = False
        found = []
        end = 0
        for page in np.flatnonzero(ready).tolist():
            block = self.block(page) if page >= end else None
            if block is not None:
                end = page + block.pages
                if below is None or block.sequence < below:
                    found.append(block)
        return sorted(found, key=lambda block: block.sequence)

    def beat(self) -> None:
        """Shows that the worker's main loop turns."""
        self._words[Live.HEARTBEAT] += 1

    def sign(self, pid: int, started: int) -> None:
        """Says which process works on the arena."""
        self._words[Live.WORKER_PID] = pid
        self._words[Live.WORKER_START] = started
