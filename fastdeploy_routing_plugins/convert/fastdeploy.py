"""FastDeploy's ``response`` mode: ``routed_experts`` of the reply, base64 of ``[tokens, MoE layers, top_k]``.

What the engine gathers from its buffer (``RoutingCacheManager.on_request_finished`` of FastDeploy 2.6) travels as
``ndarray.tobytes()`` in base64 (``serving_chat.py``, ``serving_completion.py``), with neither shape nor dtype. The
dtype follows from the number of experts, shared ones included (``RoutingReplayConfig.postprocess``); it is int64 where
the array became lists on its way, and in debug mode. Rows that nothing was written to are -1, or what that wraps to.
The rows are of all tokens but an end-of-sequence token; after an end by length there is one for the last token too,
which never went through the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import InvalidRecordError
from ..keys import shown
from ..patterns import MAX_BFLOAT16_EXPERTS, MINUS_ONE, decoded, fill_value, rounded, shows_bfloat16
from . import payload
from .rows import ForeignRows, every_layer, filled_with, placed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ..record import RoutingRecord
    from ..schema import RoutingSchema

DTYPES = {"uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
"""Names of the dtypes that FastDeploy's routing may have, and what they are as bytes."""


class _Choice(msgspec.Struct):
    index: payload.Count = 0


class _Reply(msgspec.Struct):
    routed_experts: str | None = None
    choices: list[_Choice] = []
    usage: payload.Usage | None = None


def routing_dtype(num_experts: int, num_shared_experts: int = 0) -> str:
    """Returns the dtype that FastDeploy keeps ids in: one more value than there are experts must fit below the top."""
    values = num_experts + num_shared_experts + 1
    return "uint8" if values <= 255 else "uint16" if values <= 65_535 else "uint32"


def dtype_bytes(dtype: str | None, schema: RoutingSchema) -> str:
    """Returns a dtype with its byte order; without a name the one that FastDeploy would choose.

    Raises:
        InvalidRecordError: FastDeploy has no such dtype.
    """
    name = routing_dtype(schema.num_experts) if dtype is None else dtype
    if not isinstance(name, str) or name not in DTYPES:  # type: ignore[redundant-expr]
        raise InvalidRecordError(f"dtype must be one of {', '.join(DTYPES)}, got {shown(dtype)}")
    return DTYPES[name]


def ids_of(
    array: npt.NDArray[Any], schema: RoutingSchema, *, bfloat16: bool = False
) -> tuple[npt.NDArray[Any], int | None]:
    """Returns FastDeploy's ``[tokens, layers, top_k]`` as integers, and the id that fills rows that are not known.

    Args:
        array: Integers, or the bit patterns of bfloat16, which is what Paddle calls uint16.
        schema: The model's schema.
        bfloat16: Whether they are known to be bit patterns; otherwise that shows, up to 256 experts.

    Raises:
        InvalidRecordError: there are bit patterns that are no ids, or that were rounded.
    """
    fill = fill_value(array.dtype.newbyteorder("="))
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:
        missing = filled_with(array, fill) | filled_with(array, MINUS_ONE)
        known = array[~missing] if missing.any() else array
        if bfloat16 and schema.num_experts > MAX_BFLOAT16_EXPERTS:
            raise rounded(schema)
        if bfloat16 or shows_bfloat16(known, schema):
            ids = np.full(array.shape, -1, np.int16)
            ids[~missing] = decoded(known.astype(np.uint16))
            return ids, -1
    return array, None if 0 <= fill < schema.num_experts else fill


def rows(
    text: str | bytes, schema: RoutingSchema, *, dtype: str | None = None, num_tokens: int | None = None
) -> ForeignRows:
    """Returns the routing of one reply.

    Args:
        text: The base64 text.
        schema: The model's schema.
        dtype: Of the ids, a name of ``DTYPES``; None: what FastDeploy chooses for ``schema.num_experts``. A model with
            shared experts may have a wider one.
        num_tokens: Tokens of prompt and completion; None if not known, which keeps a row for the last one.

    Raises:
        InvalidRecordError: it is no base64, or its size does not fit.
    """
    raw = payload.from_base64(text)
    try:
        flat = payload.flat(raw, dtype_bytes(dtype, schema), schema.num_layers, schema.top_k, first="tokens")
        ids, fill = ids_of(flat, schema)
        found = placed(ids, schema, start=0, num_tokens=num_tokens, fill=fill, last_too=True)
    except InvalidRecordError as err:
        fits = [name for name in DTYPES if num_tokens is not None and _fits(len(raw), name, schema, num_tokens)]
        hint = f"with dtype {' or '.join(fits)} the size would fit" if fits else err.hint
        raise InvalidRecordError(err.message, hint=hint) from err
    return found.unpadded() if num_tokens is None else found


def _fits(nbytes: int, dtype: str, schema: RoutingSchema, num_tokens: int) -> bool:
    row = schema.num_layers * schema.top_k * np.dtype(DTYPES[dtype]).itemsize
    return nbytes in (num_tokens * row, (num_tokens - 1) * row)


def read(
    reply: Mapping[str, Any] | str | bytes,
    schema: RoutingSchema,
    *,
    dtype: str | None = None,
    num_tokens: int | None = None,
) -> list[tuple[int, ForeignRows]]:
    """Returns ``(choice, routing)`` of a reply of FastDeploy's servers, which has routing once, for one choice.

    Args:
        reply: JSON text, or what was decoded from it.
        schema: The model's schema.
        dtype: See ``rows``.
        num_tokens: Instead of what the reply says of its tokens.

    Raises:
        InvalidRecordError: as ``rows``; the reply holds no routing; or it has several choices, of which FastDeploy
            does not say whose routing it is.
    """
    found: _Reply = payload.parsed(reply, _Reply, "reply of FastDeploy")
    if found.routed_experts is None:
        raise InvalidRecordError(
            "this reply of FastDeploy holds no routed_experts",
            hint='the engine needs routing_store_type "response" in --routing-replay-config; streams have none',
        )
    if len(found.choices) > 1:
        raise InvalidRecordError(
            f"the reply has {len(found.choices)} choices and the routing of one, without saying of which",
            hint="send requests with n=1, or give the engine a store",
        )
    usage = found.usage or payload.Usage()
    num_tokens = payload.total_tokens(num_tokens, usage.prompt_tokens, usage.completion_tokens)
    choice = found.choices[0].index if found.choices else 0
    return [(choice, rows(found.routed_experts, schema, dtype=dtype, num_tokens=num_tokens))]


def encode(record: RoutingRecord, *, dtype: str | None = None) -> str:
    """Returns what FastDeploy would have put into ``routed_experts``.

    Args:
        record: Routing of all MoE layers, from token 0 on.
        dtype: See ``rows``.

    Raises:
        InvalidRecordError: layers or leading tokens are missing.
    """
    return payload.to_base64(every_layer(from_the_start(record), dtype_bytes(dtype, record.schema)))


def from_the_start(record: RoutingRecord) -> RoutingRecord:
    """Returns the record; raises InvalidRecordError if leading tokens are missing, which the format cannot say."""
    if record.part.tokens[0]:
        raise InvalidRecordError(f"FastDeploy's formats begin with token 0, the record holds {record.part}")
    return record
