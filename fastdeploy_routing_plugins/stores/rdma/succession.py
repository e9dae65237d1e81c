"""Taking over what a dead producer held: its shelf outlives it in shared memory.

A store worker that was killed is replaced by one that writes as the same producer to the same service. What the dead
one had copied to its shelf is copied to the new one, so that dead shelves do not add up; what finds no room there
stays where it is and gets a new card. What was lent to it from the engine's arena, the engine hands over again.

A dead producer's shelf goes only when the service knows its heir: whoever has to take over from an heir that died
before that finds both shelves, and so knows whose names it may take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ...arena import file as files
from ...arena.layout import State
from ...arena.view import ArenaView
from ...backend import Buffer, LentBlock
from ...errors import ArenaError, CorruptDataError
from .card import decode_card
from .shelf import ShelfText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...arena.file import ArenaFile
    from ...arena.layout import BlockHead


@dataclass(frozen=True, slots=True)
class Heirloom:
    """An object on a dead producer's shelf.

    Attributes:
        name: Its full name.
        header: Its header.
        payload: Its payload, lent from the dead producer's shelf.
    """

    name: str
    header: bytes
    payload: Buffer


class Estate:
    """A dead producer's shelf, in the hand of who took it over. Once settled, it goes with the last object on it.

    Args:
        file: The shelf, locked.
        text: What it says about itself.
    """

    def __init__(self, file: ArenaFile, text: ShelfText) -> None:
        self.owner = text.owner
        self._file = file
        self._view = ArenaView(file)
        self._left: set[int] = set()
        self._settled = False
        self._left_alone = False

    def heirlooms(self) -> list[Heirloom]:
        """Returns the objects whose payload lies on the shelf itself, in the order in which they were put."""
        found = []
        for block in self._view.scan():
            try:
                card = decode_card(block.meta)
            except CorruptDataError:
                continue
            if card.inline and card.payload_bytes == block.payload_bytes:
                self._left.add(block.page)
                place = LentBlock(self._file, block.page, block.generation, block.payload_at)
                payload = Buffer(self._view.payload(block), on_release=self._releaser(block), block=place)
                found.append(Heirloom(card.name, card.header, payload))
        return found

    def settle(self) -> None:
        """Takes note that the service knows who took this over."""
        self._settled = True
        self._tidy()

    def _releaser(self, block: BlockHead) -> _Releaser:
        return _Releaser(self, block)

    def leave(self) -> None:
        """Leaves it to another one as it is; harmless after ``settle``."""
        if not self._settled:
            self._left_alone = True
            self._file.close()

    def release(self, block: BlockHead) -> None:
        """Marks a block as free."""
        if self._left_alone:
            return
        self._view.mark(block, State.FREE)
        self._left.discard(block.page)
        self._tidy()

    def _tidy(self) -> None:
        """Removes the shelf if nothing is left on it; who still looks at it keeps what it sees."""
        if self._settled and not self._left:
            self._file.remove()
            self._file.close()


class _Releaser:
    """Gives one block of an estate back; harmless when called again."""

    __slots__ = ("_block", "_estate")

    def __init__(self, estate: Estate, block: BlockHead) -> None:
        self._estate = estate
        self._block = block

    def __call__(self) -> None:
        self._estate.release(self._block)


def awaits_heir(folder: str, like: ShelfText) -> bool:
    """Returns whether a shelf of a dead producer that wrote as this one does lies in a folder. See ``estates``."""
    for found in files.find(folder, kind=files.SHELF):
        if found.used:
            continue
        try:
            file = files.peek(found.path)
        except (ArenaError, OSError):
            continue
        try:
            text = read_text(file)
        finally:
            file.close()
        if text is not None and text.line == like.line:
            return True
    return False


def estates(folder: str, like: ShelfText) -> Iterator[Estate]:
    """Takes over the shelves of dead producers that wrote as this one does.

    Args:
        folder: Where shelves are.
        like: What ours says about itself; the owner does not count.
    """
    for found in files.find(folder, kind=files.SHELF):
        if found.used:
            continue
        try:
            file = files.take(found.path)
        except ArenaError:
            continue
        if file is None:
            continue
        text = read_text(file)
        if text is None or text.line != like.line:
            file.close()
            continue
        yield Estate(file, text)


def read_text(file: ArenaFile) -> ShelfText | None:
    """Returns what a shelf says about itself; None if it is nothing that this version reads."""
    try:
        return msgspec.json.decode(file.text, type=ShelfText)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
