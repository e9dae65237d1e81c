"""Gathering a request's rows out of FastDeploy's block-wise buffer, in one pass, straight into shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidRecordError
from .arrays import decoded, filled, nothing_captured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

_WORDS = tuple(np.dtype(code) for code in ("c16", "u8", "u4", "u2"))
_CHUNK = 512  # tokens at a time; 180 KB for 45 layers and top-8


class Rows:
    """A request's rows in a buffer of ``[slots, layers, top_k]`` whose slots come in blocks.

    Args:
        buffer: The buffer, C order.
        block_table: The request's blocks, in order.
        block_size: Slots of a block.
        tokens: How many rows the request has.

    Attributes:
        tokens: How many rows there are without those at the end that nobody filled.

    Raises:
        InvalidRecordError: the blocks do not hold so many rows, or nobody filled any.
    """

    def __init__(self, buffer: npt.NDArray[Any], block_table: Sequence[int], block_size: int, tokens: int) -> None:
        self._buffer = buffer
        self._size = block_size
        needed = -(-tokens // block_size)
        self._blocks = np.asarray(block_table, dtype=np.int64)[:needed]
        held = len(buffer) // block_size
        if tokens < 0 or len(self._blocks) < needed:
            raise InvalidRecordError(f"{tokens} tokens do not fit {len(self._blocks)} blocks of {block_size}")
        if needed and int(self._blocks.view(np.uint64).max()) >= held:  # negative ones are very large
            raise InvalidRecordError(f"the block table names a block outside of 0..{held - 1}")
        self.tokens = self._without_padding(tokens)

    def _without_padding(self, tokens: int) -> int:
        left = tokens
        while left and not filled(self._row(left - 1)):
            left -= 1
        if tokens and not left:
            raise nothing_captured(tokens)
        return left

    def _row(self, token: int) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = self._buffer[int(self._blocks[token // self._size]) * self._size + token % self._size]
        return row

    def copy_into(self, target: npt.NDArray[Any]) -> None:
        """Writes the rows into ``[layers, tokens, top_k]`` of the buffer's dtype, C order."""
        word = _word(target)
        to = target.view(word)
        for first, rows in self._pieces(word):
            for index in range(to.shape[2]):
                to[:, first : first + len(rows), index] = rows[:, :, index].T

    def decode_into(self, target: npt.NDArray[Any]) -> None:
        """Writes the integers that the rows' bfloat16 bit patterns stand for.

        Raises:
            InvalidRecordError: a pattern is no id.
        """
        for first, rows in self._pieces(self._buffer.dtype):
            target[:, first : first + len(rows)] = decoded(rows).transpose(1, 0, 2)

    def peak(self) -> int:
        """Returns the largest value in the rows; 0 if there are none."""
        return max((int(rows.max()) for _, rows in self._pieces(self._buffer.dtype)), default=0)

    def _pieces(self, word: np.dtype[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yields the number of a first token and ``[tokens, layers, words]`` from there on, until all rows were had.

        Blocks are copied to a place that stays in the cache, since transposing out of memory costs twice as much.
        """
        slots = len(self._buffer) // self._size * self._size
        source = self._buffer[:slots].view(word)
        row = source.shape[1:]
        each = max(1, _CHUNK // self._size)
        rows = np.empty((each * self._size, *row), word)
        blocks = rows.reshape(each, -1)
        source = source.reshape(-1, blocks.shape[1])
        for start in range(0, -(-self.tokens // self._size), each):
            chosen = self._blocks[start : start + each]
            np.take(source, chosen, axis=0, out=blocks[: len(chosen)], mode="clip")  # "raise", tested above, is slow
            first = start * self._size
            yield first, rows[: min(len(chosen) * self._size, self.tokens - first)]


def _word(array: npt.NDArray[Any]) -> np.dtype[Any]:
    """Returns the longest word that a row's ids can be moved as."""
    row = array.shape[2] * array.itemsize
    fitting = (word for word in _WORDS if row % word.itemsize == 0 and word.itemsize > array.itemsize)
    return next(fitting, array.dtype)
