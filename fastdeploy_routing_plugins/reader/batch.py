"""Many rollouts as one array: ``RoutingBatch``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..arena.copying import copy_into
from ..errors import AbsentError, InvalidRecordError
from .building import build
from .packed import PackedRouting
from .tensors import BatchTensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..arrays import IntArray
    from ..errors import StoreError
    from ..keys import RoutingKey
    from ..record import RoutingRecord, WeightSpan
    from ..schema import RoutingSchema
    from .alignment import Rows
    from .share import RoutingShare

Side = Literal["right", "left"]


@dataclass(frozen=True, slots=True, eq=False)
class RoutingBatch:
    """Routing of several rollouts, padded to one length; ``RoutingBatch.build`` makes one. No method shows the data.

    The arrays are the batch's own memory, in C order and writable. A value of ``routing`` means something only where
    ``mask`` is True; elsewhere lies padding that a trainer can dispatch without harm: distinct ids in each row, and
    every expert as often as any other.

    Attributes:
        routing: ``[batch, layers, tokens, top_k]``, logical expert ids, uint8, uint16 or uint32 by ``schema``.
        mask: bool ``[batch, tokens]``, True where a row was recorded.
        lengths: int64 ``[batch]``, how many positions belong to the sample, those without a row included.
        starts: int64 ``[batch]``, the sample's token, absolute, that its first position is; 0 where missing.
        keys: Which samples, in order.
        schema: The schema that all of them follow.
        layer_ids: The model's layer index of each layer of ``routing``.
        attempts: The attempt that was read of each sample; -1 where the sample is missing.
        weight_versions: Spans of weight versions of each sample, absolute; empty where missing or not stated.
        missing: Why a sample is missing, by its index; such a sample has no row in ``mask``.
        side: Where the padding is: ``"right"`` of the samples or ``"left"`` of them.
    """

    routing: IntArray
    mask: npt.NDArray[np.bool_]
    lengths: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    keys: tuple[RoutingKey, ...]
    schema: RoutingSchema
    layer_ids: tuple[int, ...]
    attempts: tuple[int, ...]
    weight_versions: tuple[tuple[WeightSpan, ...], ...]
    missing: Mapping[int, StoreError]
    side: Side = "right"

    @classmethod
    def build(
        cls,
        items: Sequence[RoutingRecord | RoutingShare | StoreError],
        keys: Sequence[str | RoutingKey] | None = None,
        *,
        schema: RoutingSchema | None = None,
        layer_ids: Sequence[int] | None = None,
        num_tokens: Sequence[int] | None = None,
        rows: Rows = "n",
        tokens: slice | Sequence[slice] | None = None,
        pad_to: int | None = None,
        side: Side = "right",
        fill: int | None = None,
    ) -> RoutingBatch:
        """Makes a batch of records, and of errors in the place of records that could not be had.

        Args:
            items: The records and errors, in the order of the batch. A rank's shares of records take the place of
                records: they have the rank's tokens in the rank's order, and as many positions as they say.
            keys: Which sample each item is. Needed if there are errors, which do not know; records must agree.
            schema: What the records must follow; needed if there is no record.
            layer_ids: The model's layers that the records must hold. None: all hold the same ones.
            num_tokens: Tokens of each sample as the trainer counts them, before it cuts any off. None: as many as
                its record has rows, and none where it is missing. A share's counts are its own.
            rows: How rows belong to tokens, see ``align``; needs ``num_tokens`` unless it is ``"n"``.
            tokens: Which tokens the trainer keeps, see ``align``: a slice for all samples, or one for each; needs
                ``num_tokens``.
            pad_to: Positions of the batch. None: those of the longest sample.
            side: Where padding goes.
            fill: An id to pad with. None: distinct ids, spread over the experts.

        Raises:
            InvalidRecordError: Records and arguments do not fit each other; the message has both numbers.
            SchemaMismatchError: A record follows another schema than stated, or than the first record.
        """
        return cls(
            **build(
                items,
                keys,
                schema=schema,
                layer_ids=layer_ids,
                num_tokens=num_tokens,
                rows=rows,
                tokens=tokens,
                pad_to=pad_to,
                side=side,
                fill=fill,
            )
        )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def missing_fraction(self) -> float:
        """Share of samples that are missing, 0 to 1; 0 for an empty batch."""
        return len(self.missing) / len(self.keys) if self.keys else 0.0

    def check_missing(self, max_missing: float = 0.0) -> RoutingBatch:
        """Returns this batch if few enough samples are missing.

        Args:
            max_missing: The share of samples that may be missing, 0 to 1.

        Raises:
            AbsentError: More are; fact ``missing`` has the errors by index, and the first one is chained.
        """
        if self.missing_fraction <= max_missing:
            return self
        index, first = min(self.missing.items())
        raise AbsentError(
            f"{len(self.missing)} of {len(self)} samples are missing, allowed is {max_missing:.2%}; "
            f"first {self.keys[index]}: {first.message}",
            hint=first.hint,
            missing=dict(self.missing),
        ) from first

    def columns(self, index: int) -> slice:
        """Returns which positions of the batch belong to a sample."""
        width, length = self.mask.shape[1], int(self.lengths[index])
        return slice(width - length, width) if self.side == "left" else slice(0, length)

    def sample(self, index: int) -> IntArray:
        """Returns ``[layers, positions, top_k]`` of one sample without its padding, a view."""
        rows: IntArray = self.routing[index, :, self.columns(index)]
        return rows

    def layer(self, layer_id: int) -> IntArray:
        """Returns ``[batch, tokens, top_k]`` of one model layer, by the model's own index, a view.

        Raises:
            InvalidRecordError: the batch does not hold that layer.
        """
        if layer_id not in self.layer_ids:
            raise InvalidRecordError(f"layer {layer_id} is not in this batch, only {self.layer_ids}")
        rows: IntArray = self.routing[:, self.layer_ids.index(layer_id)]
        return rows

    def packed(self) -> PackedRouting:
        """Returns all samples behind one another, without padding between them.

        Raises:
            InvalidRecordError: they have more than 2**31 - 1 positions, which int32 does not count.
        """
        ends = np.cumsum(self.lengths)
        total = int(ends[-1]) if len(ends) else 0
        if total > np.iinfo(np.int32).max:
            raise InvalidRecordError(f"{total} positions do not fit cu_seqlens, which is int32")
        cu_seqlens = np.zeros(len(ends) + 1, np.int32)
        cu_seqlens[1:] = ends
        _, layers, _, top_k = self.routing.shape
        routing = np.empty((total, layers, top_k), self.routing.dtype)
        mask = np.empty(total, np.bool_)
        for index in range(len(self)):
            to = slice(cu_seqlens[index], cu_seqlens[index + 1])
            copy_into(routing[to], self.sample(index).transpose(1, 0, 2))
            mask[to] = self.mask[index, self.columns(index)]
        return PackedRouting(routing, mask, cu_seqlens, self.keys, self.schema, self.layer_ids)

    def to_paddle(self, dtype: Any = "int64", place: Any = None, *, fill: int | None = None) -> BatchTensors:
        """Returns Paddle tensors, copies of this batch: routing, mask and lengths.

        Args:
            dtype: ``"int64"`` or ``"int32"``. Paddle has no uint16 (its ``uint16`` is bfloat16), so that no 16-bit
                tensor is ever made.
            place: Where they go, as ``paddle.to_tensor`` takes it; ``paddle.CUDAPinnedPlace()`` is pinned memory.
                None: Paddle's current device.
            fill: A value for ids where nothing was recorded, for example -1. None: padding stays as it is.

        Raises:
            MissingDependencyError: Paddle is not installed.
            InvalidRecordError: ``dtype`` or ``fill`` cannot be.
            UnsupportedError: This build of Paddle has no such place.
        """
        from . import paddle as side  # noqa: PLC0415 - imports the framework

        recorded = self.mask[:, None, :, None]
        ids = side.to_tensor(self.routing, recorded, self.schema.num_experts, dtype, place, fill)
        return BatchTensors(ids, side.plain(self.mask, place), side.plain(self.lengths, place))

    def to_torch(
        self, dtype: Any = "int64", device: Any = None, *, pin: bool = False, fill: int | None = None
    ) -> BatchTensors:
        """Returns torch tensors, copies of this batch: routing, mask and lengths.

        Args:
            dtype: ``torch.int64`` or ``torch.int32``, or their names.
            device: Where they go. None: the host. Ids travel in their stored width and are widened there.
            pin: Whether the host's memory is pinned; a copy to a device then does not wait for it.
            fill: A value for ids where nothing was recorded, for example -1. None: padding stays as it is.

        Raises:
            MissingDependencyError: torch is not installed.
            InvalidRecordError: ``dtype`` or ``fill`` cannot be.
            UnsupportedError: There is no accelerator that memory could be pinned for.
        """
        from . import torch as side  # noqa: PLC0415 - imports the framework

        recorded = self.mask[:, None, :, None]
        ids = side.to_tensor(self.routing, recorded, self.schema.num_experts, dtype, device, pin=pin, fill=fill)
        return BatchTensors(ids, side.plain(self.mask, device, pin=pin), side.plain(self.lengths, device, pin=pin))

    def __dlpack__(self, **how: Any) -> Any:
        """Exports ``routing`` without a copy; raises BufferError for 16-bit ids, which Paddle does not have."""
        if self.routing.dtype.itemsize == 2:
            raise BufferError("16-bit ids are not handed out: use to_paddle() or to_torch(), or export batch.routing")
        return self.routing.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.routing.__dlpack_device__()
        return int(kind), int(number)

    def __repr__(self) -> str:
        return (
            f"RoutingBatch({len(self)} samples, {len(self.missing)} missing, shape={self.routing.shape}, "
            f"dtype={self.routing.dtype}, {self.schema})"
        )
