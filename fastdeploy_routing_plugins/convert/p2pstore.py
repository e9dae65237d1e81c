"""What FastDeploy puts into p2pstore: the bytes of ``[MoE layers, tokens, top_k]``, or of one layer, and no more.

``RoutingStoreRDMA`` of FastDeploy puts ``ndarray.tobytes()`` of all layers under the rollout's id (``use_fused_put``),
and otherwise arrays of one layer under the id and ``_N``. p2pstore keeps neither shape nor dtype of bytes, so the
reader has to know the model, and how many tokens there are follows from the size. FastDeploy pads to the longest
length of its model with -1, or what that wraps to; those rows are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidRecordError
from ..keys import as_int, shown
from . import payload
from .fastdeploy import dtype_bytes, from_the_start, ids_of
from .rows import ForeignRows, every_layer

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..record import RoutingRecord
    from ..schema import RoutingSchema


def rows(
    data: bytes | bytearray | memoryview | npt.NDArray[Any],
    schema: RoutingSchema,
    *,
    dtype: str | None = None,
    layer: int | None = None,
) -> ForeignRows:
    """Returns the routing in a value of p2pstore, without padding at the end.

    Args:
        data: What ``P2PClient.get`` gives: bytes, or an array of them.
        schema: The model's schema.
        dtype: Of the ids, a name of ``convert.fastdeploy.DTYPES``; None: what FastDeploy chooses for
            ``schema.num_experts``. A model with shared experts may have a wider one.
        layer: Which layer (position) it is, if it is one; None: all.

    Raises:
        InvalidRecordError: the size is no whole number of tokens, there is no such layer, or nothing but padding.
    """
    layers = layer_range(layer, schema)
    raw = _bytes_of(data)
    code = dtype_bytes(dtype, schema)
    array = payload.flat(raw, code, layers[1] - layers[0], schema.top_k, first="layers")
    ids, fill = ids_of(array.transpose(1, 0, 2), schema)
    return ForeignRows(ids, schema, fill=fill, layers=layers).unpadded()


def _bytes_of(data: object) -> memoryview:
    if isinstance(data, np.ndarray) and data.flags.c_contiguous and not data.dtype.hasobject:
        return memoryview(data.reshape(-1).view(np.uint8).data)
    if isinstance(data, (bytes, bytearray)):
        return memoryview(data)
    if isinstance(data, memoryview) and data.c_contiguous:
        return data.cast("B") if data.nbytes else memoryview(b"")
    raise InvalidRecordError(f"a value of p2pstore is bytes in one piece, got {type(data).__name__}")


def encode(record: RoutingRecord, *, dtype: str | None = None) -> bytes:
    """Returns what FastDeploy would have put, without padding.

    Args:
        record: Routing of all MoE layers, from token 0 on.
        dtype: See ``rows``.

    Raises:
        InvalidRecordError: layers or leading tokens are missing.
    """
    array = every_layer(from_the_start(record), dtype_bytes(dtype, record.schema))
    return np.ascontiguousarray(array.transpose(1, 0, 2)).tobytes()


def layer_range(layer: int | None, schema: RoutingSchema) -> tuple[int, int]:
    """Returns the positions of one layer, or of all; raises InvalidRecordError if there is no such layer."""
    if layer is None:
        return 0, schema.num_layers
    number = as_int(layer)
    if number is None or not 0 <= number < schema.num_layers:
        raise InvalidRecordError(f"there is no layer at position {shown(layer)}: {schema}")
    return number, number + 1
