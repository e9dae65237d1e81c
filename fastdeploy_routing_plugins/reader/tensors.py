"""What a framework gets: int32 or int64 ids, with a mask beside them. Imports a framework when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidRecordError, MissingDependencyError
from ..keys import as_int, shown

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..arrays import IntArray

_INSTALL = {
    "paddle": "pip install 'fastdeploy-routing-plugins[cpu]', or Paddle's build for your GPU",
    "torch": "pip install 'fastdeploy-routing-plugins[torch]'",
}
_SHORT = {"int16", "uint16", "bfloat16", "float16"}


class BatchTensors(NamedTuple):
    """A padded batch as Paddle or torch tensors.

    Attributes:
        routing: Integers ``[batch, layers, tokens, top_k]``.
        mask: bool ``[batch, tokens]``, True where a row was recorded.
        lengths: int64 ``[batch]``, positions of each sample.
    """

    routing: Any
    mask: Any
    lengths: Any


class PackedTensors(NamedTuple):
    """A packed batch as Paddle or torch tensors.

    Attributes:
        routing: Integers ``[positions of all samples, layers, top_k]``.
        mask: bool ``[positions of all samples]``, True where a row was recorded.
        cu_seqlens: int32 ``[batch + 1]``, where each sample begins, and the end.
    """

    routing: Any
    mask: Any
    cu_seqlens: Any


def framework(name: str) -> Any:
    """Returns the module ``paddle`` or ``torch``.

    Raises:
        MissingDependencyError: It is not installed; the hint says how to install it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as err:
        if err.name != name:
            raise
        raise MissingDependencyError(f"{name} is not installed", hint=_INSTALL[name], module=name) from err


def integer_name(dtype: Any, num_experts: int) -> str:
    """Returns ``"int32"`` or ``"int64"`` for what a caller asks for: a name, or a dtype of NumPy, Paddle or torch.

    Raises:
        InvalidRecordError: it is another dtype, or does not hold the ids of so many experts.
    """
    name = np.dtype(dtype).name if isinstance(dtype, (type, np.dtype)) else str(dtype).rpartition(".")[2]
    if name in _SHORT:
        raise InvalidRecordError(
            f"dtype={name} does not hold expert ids everywhere",
            hint="Paddle's uint16 is bfloat16, int16 ends at 32,767 and torch computes little with uint16; "
            "use int32 or int64",
        )
    if name not in ("int32", "int64"):
        raise InvalidRecordError(f"dtype must be int32 or int64, which frameworks index with, got {shown(dtype)}")
    if num_experts - 1 > np.iinfo(name).max:
        raise InvalidRecordError(f"dtype={name} does not hold the ids of {num_experts} experts", hint="use int64")
    return name


def filled(routing: IntArray, recorded: npt.NDArray[np.bool_], name: str, fill: int | None) -> npt.NDArray[Any]:
    """Returns signed integers, with ``fill``, which may be negative, where nothing was recorded.

    Args:
        routing: Ids of any shape.
        recorded: A mask that broadcasts to that shape.
        name: ``"int32"`` or ``"int64"``.
        fill: The value, or None to leave the padding as it is.

    Raises:
        InvalidRecordError: ``fill`` is no integer of that dtype.
    """
    wide = routing.astype(name)
    if fill is not None:
        number, limits = as_int(fill), np.iinfo(name)
        if number is None or not limits.min <= number <= limits.max:
            raise InvalidRecordError(f"fill={shown(fill)} is no value of {name}")
        np.copyto(wide, number, where=~recorded)
    return wide
