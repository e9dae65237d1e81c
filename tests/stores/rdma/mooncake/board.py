"""Where a producer writes what it holds at the moment, for a reader that wants to know it at once."""

from __future__ import annotations

import mmap
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

_BYTES = 1 << 16


class Entry(NamedTuple):
    """An object whose payload is one word again and again, so that any wrong byte is found fast."""

    name: str
    seed: int
    nbytes: int
    place: Place

    @property
    def word(self) -> bytes:
        return (self.seed * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "little")

    def content(self) -> bytes:
        return self.word * (self.nbytes // 8)

    def fits(self, pieces: Sequence[bytes | bytearray | memoryview], ranges: Sequence[tuple[int, int]] | None) -> bool:
        """Whether pieces are those of this object. Ranges are of whole words."""
        sizes = [stop - start for start, stop in (ranges or ((0, self.nbytes),))]
        word = np.frombuffer(self.word, np.uint64)
        return [len(piece) for piece in pieces] == sizes and all(
            bool((np.frombuffer(piece, np.uint64) == word).all()) for piece in pieces
        )


class Board:
    """A file that one process writes and others read; a number before and after says whether it is whole."""

    def __init__(self, path: str, *, create: bool = False) -> None:
        if create:
            Path(path).write_bytes(bytes(_BYTES))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._words = memoryview(self._map).cast("Q")

    def write(self, entries: Sequence[Entry], info: OwnerInfo) -> None:
        raw = pickle.dumps((list(entries), info))
        self._words[0] += 1
        self._words[1] = len(raw)
        self._map[16 : 16 + len(raw)] = raw
        self._words[0] += 1

    def read(self) -> tuple[list[Entry], OwnerInfo]:
        while True:
            number = self._words[0]
            raw = self._map[16 : 16 + self._words[1]]
            if number > 0 and number % 2 == 0 and self._words[0] == number:
                return pickle.loads(raw)  # type: ignore[no-any-return]
