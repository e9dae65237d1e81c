"""What a rank with a part of the layers or tokens reads: ``RoutingShare``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidRecordError
from ..store.stating import unstated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..arrays import IntArray
    from ..keys import RoutingKey
    from ..record import RoutingRecord, WeightSpan
    from ..schema import RoutingSchema
    from .splits import Range


@dataclass(frozen=True, slots=True, eq=False)
class RoutingShare:
    """One rank's share of a rollout, put together from the ranges that it has. No method shows the data in logs.

    Attributes:
        routing: ``[layers of the rank, tokens of the rank, top_k]``, both in the rank's order, read-only, without
            padding. It may be a view of the store's memory; ``routing.copy()`` is yours.
        key: Which sample.
        schema: The model's schema.
        layer_ids: The model's layer index of each row of ``routing``.
        token_ranges: Which tokens these are, absolute, in the rank's order.
        length: How many tokens the rank has of this sample, padding included; the padding comes last.
        total_tokens: Recorded tokens of the whole rollout; None if the rank has no layer with a router, and so asked
            nothing.
        attempt: The attempt that was read; -1 if nothing was asked.
        weight_versions: Spans of weight versions over these tokens, absolute, as far as the producer stated them.
        producers: Who wrote it.
        unstated: Ranges of tokens, absolute, of which some layers' producer stated no weights while others did.
    """

    routing: IntArray
    key: RoutingKey
    schema: RoutingSchema
    layer_ids: tuple[int, ...]
    token_ranges: tuple[Range, ...]
    length: int
    total_tokens: int | None
    attempt: int = -1
    weight_versions: tuple[WeightSpan, ...] = ()
    producers: tuple[str, ...] = ()
    unstated: tuple[Range, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens in ``routing``."""
        return int(self.routing.shape[1])

    def positions(self) -> npt.NDArray[np.int64]:
        """Returns which token, absolute, each token of ``routing`` is: int64 ``[tokens]``."""
        ranges = [np.arange(start, stop, dtype=np.int64) for start, stop in self.token_ranges]
        return np.concatenate(ranges) if ranges else np.empty(0, np.int64)

    def layer(self, layer_id: int) -> IntArray:
        """Returns ``[tokens, top_k]`` of one model layer, by the model's own index.

        Raises:
            InvalidRecordError: that layer was not recorded, or is not this rank's.
        """
        self.schema.position(layer_id)
        if layer_id not in self.layer_ids:
            raise InvalidRecordError(f"layer {layer_id} is not this rank's, only {self.layer_ids}")
        layer: IntArray = self.routing[self.layer_ids.index(layer_id)]
        return layer

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False and dtype is not None and np.dtype(dtype) != self.routing.dtype:
            raise ValueError("a conversion of dtype needs a copy")
        return np.array(self.routing, dtype=dtype, copy=True) if copy else np.asarray(self.routing, dtype=dtype)

    def __repr__(self) -> str:
        tokens = ", ".join(f"{start}:{stop}" for start, stop in self.token_ranges) or "none"
        return (
            f"RoutingShare({self.key}, shape={self.routing.shape}, dtype={self.routing.dtype}, "
            f"attempt={self.attempt}, tokens {tokens} of {self.total_tokens})"
        )


def nothing(key: RoutingKey, schema: RoutingSchema, length: int) -> RoutingShare:
    """Returns the share of a rank without a layer that has a router."""
    return RoutingShare(np.empty((0, 0, schema.top_k), schema.dtype), key, schema, (), (), length, None)


def joined(pieces: Sequence[Sequence[RoutingRecord]], length: int) -> RoutingShare:
    """Puts a rank's rectangles together; one rectangle is not copied.

    Args:
        pieces: One list for each range of layers, with a record for each range of tokens; all of one attempt.
        length: See ``RoutingShare``.
    """
    every = [piece for row in pieces for piece in row]
    rows = [_along([piece.routing for piece in row], 1) for row in pieces]
    routing = _along(rows, 0).view()
    routing.flags.writeable = False
    spans = {span for piece in every for span in piece.weight_versions}
    silent = unstated((piece.part, bool(piece.weight_versions)) for piece in every if piece.num_tokens)
    return RoutingShare(
        routing=routing,
        key=every[0].key,
        schema=every[0].schema,
        layer_ids=tuple(layer for row in pieces for layer in row[0].layer_ids),
        token_ranges=tuple(piece.part.tokens for piece in pieces[0] if piece.num_tokens),
        length=length,
        total_tokens=every[0].total_tokens,
        attempt=every[0].attempt,
        weight_versions=tuple(sorted(spans, key=lambda span: (span.start, span.stop, str(span.version)))),
        producers=tuple(dict.fromkeys(name for piece in every for name in piece.producers)),
        unstated=tuple(sorted({*silent, *[each for piece in every for each in piece.unstated]})),
    )


def _along(arrays: list[IntArray], axis: int) -> IntArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=axis)
