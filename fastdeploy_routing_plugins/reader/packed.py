"""A batch without padding, as trainers with sequence packing take it: ``PackedRouting``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..arrays import IntArray
    from ..keys import RoutingKey
    from ..schema import RoutingSchema
    from .tensors import PackedTensors


@dataclass(frozen=True, slots=True, eq=False)
class PackedRouting:
    """All samples of a batch behind one another. ``RoutingBatch.packed`` makes one.

    Attributes:
        routing: ``[positions of all samples, layers, top_k]``, C order, the stored dtype; token first, as packed
            activations are.
        mask: bool ``[positions of all samples]``, True where a row was recorded. A position of a sample that has no
            row (its last token, a missing sample) is here too, since the trainer's tokens are.
        cu_seqlens: int32 ``[batch + 1]``: sample ``i`` is ``routing[cu_seqlens[i]:cu_seqlens[i + 1]]``. Kernels for
            variable lengths take this dtype.
        keys: Which samples, in order.
        schema: The model's schema.
        layer_ids: The model's layer index of each layer.
    """

    routing: IntArray
    mask: npt.NDArray[np.bool_]
    cu_seqlens: npt.NDArray[np.int32]
    keys: tuple[RoutingKey, ...]
    schema: RoutingSchema
    layer_ids: tuple[int, ...]

    @property
    def max_seqlen(self) -> int:
        """Positions of the longest sample; 0 without any."""
        return int((self.cu_seqlens[1:] - self.cu_seqlens[:-1]).max(initial=0))

    def to_paddle(self, dtype: Any = "int64", place: Any = None, *, fill: int | None = None) -> PackedTensors:
        """Returns Paddle tensors; arguments and errors are those of ``RoutingBatch.to_paddle``."""
        from . import paddle as side  # noqa: PLC0415 - imports the framework
        from .tensors import PackedTensors  # noqa: PLC0415

        ids = side.to_tensor(self.routing, self.mask[:, None, None], self.schema.num_experts, dtype, place, fill)
        return PackedTensors(ids, side.plain(self.mask, place), side.plain(self.cu_seqlens, place))

    def to_torch(
        self, dtype: Any = "int64", device: Any = None, *, pin: bool = False, fill: int | None = None
    ) -> PackedTensors:
        """Returns torch tensors; arguments and errors are those of ``RoutingBatch.to_torch``."""
        from . import torch as side  # noqa: PLC0415 - imports the framework
        from .tensors import PackedTensors  # noqa: PLC0415

        recorded = self.mask[:, None, None]
        ids = side.to_tensor(self.routing, recorded, self.schema.num_experts, dtype, device, pin=pin, fill=fill)
        return PackedTensors(ids, side.plain(self.mask, device, pin=pin), side.plain(self.cu_seqlens, device, pin=pin))

    def __repr__(self) -> str:
        return f"PackedRouting({len(self.keys)} samples, shape={self.routing.shape}, {self.schema})"
