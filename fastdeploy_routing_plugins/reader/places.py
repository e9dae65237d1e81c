"""Where in a batch the rows of its rollouts will lie, told before they have come: ``Places``.

Told only for the usual batch, whose samples are rollouts as recorded. ``building`` decides: what lies where it would
have put it is not copied again.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..arena.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..arrays import IntArray
    from ..schema import RoutingSchema
    from .wanting import Wanted


class Places:
    """The memory of a batch that is about to be read.

    Args:
        schema: The model's schema.
        count: Samples of the batch; 0 if nothing can be told of it.
        layers: Layers of the batch.
        pad_to: To how many positions samples are padded; None: to those of the longest one.
        side: Where padding goes.

    Attributes:
        routing: ``[batch, layers, positions, top_k]``, filled where rollouts have settled; None if nothing was told.
    """

    def __init__(self, schema: RoutingSchema, count: int, layers: int, pad_to: int | None, side: object) -> None:
        self._schema = schema
        self._count = count
        self._layers = layers
        self._width = pad_to
        self._left = side == "left"
        self._settled: dict[int, tuple[IntArray, int]] = {}
        self._rooms: dict[int, memoryview] = {}
        self._memory: memoryview | None = None  # the batch's, if payloads may lie there as they come
        self._shape = 0, 0  # layers and positions of a sample, and its bytes
        self._nbytes = 0
        self.routing: IntArray | None = None

    def know(self, rollouts: Iterable[Wanted]) -> None:
        """Takes note of how long the rollouts are."""
        longest = max([each.what.part.tokens[1] for each in rollouts], default=0)
        width = longest if self._width is None else self._width
        if self._count and width:
            self.routing = new_batch(self._schema, self._count, self._layers, width)
            if sys.byteorder == "little" and self.routing.size:
                self._memory = self.routing.data.cast("B")
                self._shape, self._nbytes = (self._layers, width), self.routing.strides[0]

    def room(self, each: Wanted) -> memoryview | None:
        """Returns where a rollout's payload may be put as it comes; None if it has to be spread, or cut.

        Args:
            each: The rollout, one piece.
        """
        memory, piece = self._memory, each.pieces[0][0]
        rect = piece.rect
        if memory is None or each.length is not None or piece.read is not rect:
            return None
        (start, stop), (first, last) = rect.tokens, rect.layers
        if (last - first, stop - start) != self._shape:
            return None
        at = each.index * self._nbytes
        room = self._rooms[each.index] = memory[at : at + self._nbytes]
        return room

    def lying(self, index: int, came: object) -> IntArray | None:
        """Returns the routing of a sample, which was checked, if the memory where its payload came is its room."""
        batch = self.routing
        if batch is None or came is not self._rooms.get(index, self):
            return None
        array: IntArray = batch[index]
        self._settled[index] = array, 0
        return array

    def settle(self, index: int, array: IntArray) -> IntArray:
        """Copies the routing of a sample, which was checked, to its place, if it has one; returns where it lies."""
        batch = self.routing
        tokens = array.shape[1]
        if batch is None or array.shape[0] != batch.shape[1] or tokens > batch.shape[2]:
            return array
        first = batch.shape[2] - tokens if self._left else 0
        place: IntArray = batch[index, :, first : first + tokens]
        place[...] = array
        shown: IntArray = place.view()
        self._settled[index] = shown, first
        return shown

    def lies(self, index: int, array: IntArray, first: int) -> bool:
        """Whether that settled as the sample of that index, and begins at that position."""
        settled = self._settled.get(index)
        return settled is not None and settled[0] is array and settled[1] == first


def new_batch(schema: RoutingSchema, count: int, layers: int, width: int) -> IntArray:
    """Returns memory for a batch, not filled in."""
    dtype, shape = np.dtype(schema.dtype), (count, layers, width, schema.top_k)
    batch: IntArray = np.frombuffer(_memory().take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    return batch


@lru_cache(maxsize=1)
def _memory() -> Pool:
    """Memory of batches that nothing refers to any more; in fresh memory a batch takes several times as long."""
    return Pool()
