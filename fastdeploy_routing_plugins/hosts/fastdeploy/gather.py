"""Gathering a request's rows out of FastDeploy's block-wise buffer, in one pass, straight into shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidRecordError
from ...patterns import decoded
from .arrays import filled, nothing_captured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

_CHUNK = 512  # tokens looked at at a time; 180 KB for 45 layers and top-8


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
        """Writes the rows into ``[tokens, layers, top_k]`` of the buffer's dtype, C order."""
        whole = self.tokens // self._size
        held = self._held()
        taken = target[: whole * self._size].reshape(whole, held.shape[1])
        np.take(held, self._blocks[:whole], axis=0, out=taken, mode="clip")  # "raise", tested above, is slow
        for token in range(whole * self._size, self.tokens, self._size):  # the last block, if it is not full
            first = int(self._blocks[whole]) * self._size
            target[token:] = self._buffer[first : first + self.tokens - token]

    def decode_into(self, target: npt.NDArray[Any]) -> None:
        """Writes the integers that the rows' bfloat16 bit patterns stand for into ``[tokens, layers, top_k]``.

        Raises:
            InvalidRecordError: a pattern is no id.
        """
        for first, rows in self._pieces():
            target[first : first + len(rows)] = decoded(rows)

    def peak(self) -> int:
        """Returns the largest value in the rows; 0 if there are none."""
        return max((int(rows.max()) for _, rows in self._pieces()), default=0)

    def _held(self) -> npt.NDArray[Any]:
        """Returns the buffer's blocks, each as one row."""
        slots = len(self._buffer) // self._size * self._size
        return self._buffer[:slots].reshape(slots // self._size, -1)

    def _pieces(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yields the number of a first token and ``[tokens, layers, top_k]`` from there on, for all rows."""
        held = self._held()
        row = self._buffer.shape[1:]
        each = max(1, _CHUNK // self._size)
        for start in range(0, -(-self.tokens // self._size), each):
            rows = held[self._blocks[start : start + each]].reshape(-1, *row)
            first = start * self._size
            yield first, rows[: self.tokens - first]
