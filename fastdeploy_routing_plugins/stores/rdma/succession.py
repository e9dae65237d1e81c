"""Taking over what a dead producer held: its shelf outlives it in shared memory.

A store worker that was killed is replaced by one that writes as the same producer to the same service. What the dead
one had copied to its shelf stays where it is and gets new cards; what was lent to it from the engine's arena, the
engine hands over again.
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
    """A dead producer's shelf, in the hand of who took it over. It is removed when the last object of it goes.

    Args:
        file: The shelf, locked.
        text: What it says about itself.
    """

    def __init__(self, file: ArenaFile, text: ShelfText) -> None:
        self.owner = text.owner
        self._file = file
        self._view = ArenaView(file)
        self._left: set[int] = set()

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
        if not self._left:
            self.remove()
        return found

    def _releaser(self, block: BlockHead) -> _Releaser:
        return _Releaser(self, block)

    def release(self, block: BlockHead) -> None:
        """Marks a block as free, and removes the shelf after the last one."""
        self._view.mark(block, State.FREE)
        self._left.discard(block.page)
        if not self._left:
            self.remove()

    def remove(self) -> None:
        """Removes the shelf; who still looks at it keeps what it sees."""
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
        if text is None or (text.producer, text.namespace, text.server) != (
            like.producer,
            like.namespace,
            like.server,
        ):
            file.close()
            continue
        yield Estate(file, text)


def read_text(file: ArenaFile) -> ShelfText | None:
    """Returns what a shelf says about itself; None if it is nothing that this version reads."""
    try:
        return msgspec.json.decode(file.text, type=ShelfText)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
