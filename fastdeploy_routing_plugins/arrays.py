"""Arrays in: any integer array of a caller becomes canonical bytes, or a clear error. Values are never changed."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidRecordError
from .keys import shown

if TYPE_CHECKING:
    from .names import Part
    from .schema import RoutingSchema

IntArray = npt.NDArray[np.unsignedinteger[Any]]

LAYOUTS = ("layer_first", "token_first")
_SAMPLED_ROWS = 128  # rows looked at for repeated ids; a buffer that was never filled repeats in all of them


def as_numpy(routing: Any) -> npt.NDArray[Any]:
    """Returns the caller's NumPy array, or its Paddle or torch tensor as one, without changing a value.

    Raises:
        InvalidRecordError: it is no array, or an array of floats, objects or bfloat16.
    """
    if not isinstance(routing, np.ndarray):
        routing = _from_tensor(routing)
    if isinstance(routing, np.ma.MaskedArray):
        raise InvalidRecordError("masked arrays have holes", hint="put the present rows as parts of their own")
    array = np.asarray(routing)
    if array.dtype.kind not in "iu":
        raise InvalidRecordError(
            f"routing must hold integers, got dtype {array.dtype}",
            hint="expert ids are integers; convert where they are made, before anything is rounded",
        )
    return array


def _from_tensor(routing: Any) -> npt.NDArray[Any]:
    module = type(routing).__module__.partition(".")[0]
    if module == "paddle":
        if "bfloat16" in str(routing.dtype):
            raise InvalidRecordError(
                "this Paddle tensor is bfloat16, not integers", hint='Paddle\'s dtype "uint16" is bfloat16; use int32'
            )
        routing = routing.numpy()
    elif module == "torch":
        if routing.dtype.is_floating_point:
            raise InvalidRecordError(f"routing must hold integers, got {routing.dtype}")
        routing = routing.detach().cpu().numpy()
    elif hasattr(routing, "__array__"):
        try:
            routing = np.asarray(routing)
        except (TypeError, ValueError, RuntimeError) as err:
            raise InvalidRecordError(f"{type(routing).__name__} does not become an array: {err}") from err
    if not isinstance(routing, np.ndarray):
        raise InvalidRecordError(
            f"routing must be a NumPy array or a Paddle or torch tensor, got {type(routing).__name__}",
            hint="numpy.asarray(...) with an explicit integer dtype",
        )
    return routing


def layer_first(array: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """Returns a view with axes ``[layers, tokens, top_k]``; two axes are one layer.

    Raises:
        InvalidRecordError: the rank or the layout's name is wrong.
    """
    turned = is_token_first(layout)
    if array.ndim == 2:
        return array[np.newaxis]
    if array.ndim != 3:
        raise InvalidRecordError(f"routing must have 3 axes [layers, tokens, top_k], got shape {array.shape}")
    return array.transpose(1, 0, 2) if turned else array


def is_token_first(layout: str) -> bool:
    """Whether a layout's name means ``[tokens, layers, top_k]``; raises InvalidRecordError if it is no layout's."""
    given: object = layout
    if not isinstance(given, str) or given not in LAYOUTS:
        raise InvalidRecordError(f"layout must be one of {', '.join(LAYOUTS)}, got {shown(layout)}")
    return layout == "token_first"


def canonical(array: npt.NDArray[Any], schema: RoutingSchema, part: Part, *, validate: bool = True) -> IntArray:
    """Returns ``[layers, tokens, top_k]`` in C order and the schema's dtype; the same memory if it already is.

    Args:
        array: Integers with axes ``[layers, tokens, top_k]``, any memory order, byte order and width.
        schema: What the ids must satisfy.
        part: Which rectangle of the rollout it is.
        validate: Whether ids are checked against ``schema``. Wider input is always checked, since narrowing
            unchecked ids would change them.

    Raises:
        InvalidRecordError: shape, or an id out of range, or an expert chosen twice for a token (in sampled rows).
    """
    expected = (part.num_layers, part.num_tokens, schema.top_k)
    if array.shape != expected:
        raise InvalidRecordError(
            f"shape {array.shape} does not fit {expected} = [layers, tokens, top_k] of {part}",
            hint="rows must equal the tokens stated; layout='token_first' takes [tokens, layers, top_k]",
        )
    dtype = np.dtype(schema.dtype)
    if validate or array.dtype != dtype:
        check_range(array, schema)
    result: IntArray = np.ascontiguousarray(array, dtype=dtype)
    if validate:
        check_repeats(result, schema)
    return result


def check_range(array: npt.NDArray[Any], schema: RoutingSchema) -> None:
    """Raises InvalidRecordError, with place and cause, if any id is not ``0 <= id < num_experts``."""
    if array.size == 0:
        return
    lowest, highest = _limits(array.dtype)
    low = int(array.min()) if lowest < 0 else 0
    high = int(array.max()) if highest >= schema.num_experts else 0
    if low >= 0 and high < schema.num_experts:
        return
    bad = (array < 0) | (array > schema.num_experts - 1)
    layer, token, slot = (int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
    value = int(array[layer, token, slot])
    raise InvalidRecordError(
        f"id {value} at layer position {layer}, token {token}, slot {slot} is not in 0..{schema.num_experts - 1}",
        hint=_why_out_of_range(array, value, schema),
    )


@lru_cache(maxsize=32)
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _why_out_of_range(array: npt.NDArray[Any], value: int, schema: RoutingSchema) -> str:
    if value < 0:
        return "negative ids mark padding in some engines; put only the rows that exist"
    if array.dtype.itemsize == 2:
        floats = (array.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(invalid="ignore"):  # integers may be the patterns of anything
            whole = np.all(floats == np.floor(floats)) and 0 <= floats.min() <= floats.max() < schema.num_experts
        if whole:
            return 'the values are bfloat16 bit patterns: Paddle\'s dtype "uint16" is bfloat16; use int32 for ids'
    return "ids must be logical expert ids; physical ids of an expert balancer go further"


def check_repeats(array: IntArray, schema: RoutingSchema, *, every_row: bool = False) -> None:
    """Raises InvalidRecordError if a token chose an expert twice, in evenly spaced rows or in every row."""
    layers, tokens, top_k = array.shape
    if top_k < 2 or tokens == 0:
        return
    step = 1 if every_row else max(1, -(-tokens * layers // _SAMPLED_ROWS))
    sample = array[:, ::step].copy()
    sample.sort(axis=-1)
    repeated = sample[..., 1:] == sample[..., :-1]
    if repeated.any() if every_row else b"\x01" in repeated.tobytes():  # for few rows sooner done than ``any``
        layer, row = (int(i) for i in np.argwhere(repeated)[0][:2])
        token = row * step
        raise InvalidRecordError(
            f"layer position {layer}, token {token} names an expert twice",
            hint="top-k chooses distinct experts; this looks like a buffer that was never filled",
        )
