"""The arenas that a producer serves from: its shelf first, then those that payloads were lent from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .place import SHELF

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...arena.file import ArenaFile
    from .held import Held
    from .place import ArenaInfo


class Arenas:
    """Which arenas these are, and how much of the lent ones is held. What changes is called under the shelf's lock.

    Args:
        shelf: The shelf's own file.
        exposed: Called with each arena once; returns how it is described.

    Attributes:
        infos: Their descriptions, by index.
    """

    def __init__(self, shelf: ArenaFile, exposed: Callable[[ArenaFile], ArenaInfo]) -> None:
        self._exposed = exposed
        self._lent: dict[str, int] = {}  # index by path
        self._held_bytes: Counter[int] = Counter()
        self._returned_bytes: Counter[int] = Counter()
        self.infos: list[ArenaInfo] = [exposed(shelf)]

    def add(self, file: ArenaFile) -> int:
        """Returns the index of an arena that something is lent from."""
        index = self._lent.get(file.path)
        if index is None:
            index = self._lent[file.path] = len(self.infos)
            self.infos.append(self._exposed(file))
        return index

    def find(self, file: ArenaFile) -> int | None:
        """Returns the index of an arena; None if nothing ever was lent from it."""
        return self._lent.get(file.path)

    def took(self, held: Held) -> None:
        """Counts what is held now."""
        if held.place.arena != SHELF:
            self._held_bytes[held.place.arena] += held.block_bytes

    def gave_back(self, held: Held) -> None:
        """Counts what is held no longer."""
        if held.place.arena != SHELF:
            self._held_bytes[held.place.arena] -= held.block_bytes
            self._returned_bytes[held.place.arena] += held.block_bytes

    def held_bytes(self, index: int) -> int:
        """Bytes of the blocks of a lent arena that hold what is held."""
        return self._held_bytes[index]

    def returned_bytes(self, index: int) -> int:
        """Bytes of such blocks that were let go of, ever."""
        return self._returned_bytes[index]
