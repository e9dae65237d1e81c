"""SGLang's ``meta_info["routed_experts"]``: base64 of flat int32, token first.

The request's ``return_routed_experts`` asks for it (sgl-project/sglang#12162), and ``routed_experts_start_len`` says
with which token, absolute, it begins; the reply does not repeat that. It covers ``[start, n-1)`` of n tokens, all
hidden layers, dense ones as zeros, without shared experts (``RoutedExpertsCapturer`` and
``extract_routed_experts_from_meta_info`` in ``srt/state_capturer/routed_experts.py``). The OpenAI-like server has the
same text in ``choices[i].sgl_ext.routed_experts``. A row of -1 was not captured. A ``routed_experts_dtype`` beside it,
proposed in sgl-project/sglang#31219, is believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import InvalidRecordError
from ..keys import shown
from . import payload
from .rows import ForeignRows, check_hidden, every_layer, placed, recorded_layers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..record import RoutingRecord
    from ..schema import RoutingSchema

_DTYPES = {"int32": "<i4", "uint16": "<u2", "uint8": "|u1"}
_FILL = -1


class _Meta(payload.Usage):
    routed_experts: str | None = None
    routed_experts_dtype: str = "int32"


class _Answer(msgspec.Struct):
    meta_info: _Meta


class _Choice(msgspec.Struct):
    index: payload.Count = 0
    sgl_ext: _Meta | None = None


class _Reply(msgspec.Struct):
    meta_info: _Meta | None = None
    choices: list[_Choice] = []
    usage: payload.Usage | None = None


def decode(
    text: str | bytes, schema: RoutingSchema, *, num_hidden_layers: int | None = None, dtype: str = "int32"
) -> npt.NDArray[Any]:
    """Returns ``[rows, MoE layers, top_k]``, a view of the decoded bytes if the MoE layers stand together.

    Args:
        text: The base64 text.
        schema: The model's schema.
        num_hidden_layers: The model's layers with the dense ones, as SGLang counts; None if the text has MoE layers
            only.
        dtype: Of the ids: int32, uint16 or uint8.

    Raises:
        InvalidRecordError: it is no base64, or its size is no whole number of tokens.
    """
    if not isinstance(dtype, str) or dtype not in _DTYPES:  # type: ignore[redundant-expr]
        raise InvalidRecordError(f"routed_experts_dtype must be one of {', '.join(_DTYPES)}, got {shown(dtype)}")
    columns = check_hidden(schema, num_hidden_layers) or schema.num_layers
    flat = payload.flat(payload.from_base64(text), _DTYPES[dtype], columns, schema.top_k, first="tokens")
    return recorded_layers(flat, schema, num_hidden_layers)


def rows(
    text: str | bytes,
    schema: RoutingSchema,
    *,
    num_hidden_layers: int | None = None,
    start: int = 0,
    num_tokens: int | None = None,
    dtype: str = "int32",
) -> ForeignRows:
    """Returns the routing of one answer.

    Args:
        text: See ``decode``.
        schema: See ``decode``.
        num_hidden_layers: See ``decode``.
        start: The request's ``routed_experts_start_len``.
        num_tokens: Tokens of prompt and completion; None if not known.
        dtype: See ``decode``.

    Raises:
        InvalidRecordError: as ``decode``, or there are not ``num_tokens - 1 - start`` rows.
    """
    ids = decode(text, schema, num_hidden_layers=num_hidden_layers, dtype=dtype)
    fill = None if dtype.startswith("u") else _FILL
    return placed(ids, schema, start=start, num_tokens=num_tokens, fill=fill)


def read(
    reply: Mapping[str, Any] | Sequence[Any] | str | bytes,
    schema: RoutingSchema,
    *,
    num_hidden_layers: int | None = None,
    start: int = 0,
    num_tokens: int | None = None,
) -> list[tuple[int, ForeignRows]]:
    """Returns ``(choice, routing)`` of each answer in a reply of ``/generate`` or of the OpenAI-like server.

    Args:
        reply: JSON text, or what was decoded from it: an answer, a list of answers, or an object with ``choices``.
        schema: See ``decode``.
        num_hidden_layers: See ``decode``.
        start: The request's ``routed_experts_start_len``.
        num_tokens: Instead of what the reply says of its tokens.

    Raises:
        InvalidRecordError: as ``rows``, or the reply holds no routing.
    """
    found: _Reply | list[_Answer] = payload.parsed(reply, _Reply | list[_Answer], "reply of SGLang")
    result = []
    for choice, meta, counts in _answers(found):
        if meta.routed_experts is None:
            continue
        tokens = payload.total_tokens(num_tokens, counts.prompt_tokens, counts.completion_tokens)
        how: dict[str, Any] = {"num_hidden_layers": num_hidden_layers, "start": start, "num_tokens": tokens}
        result.append((choice, rows(meta.routed_experts, schema, dtype=meta.routed_experts_dtype, **how)))
    if not result:
        raise InvalidRecordError(
            "this reply of SGLang holds no routed_experts",
            hint="the server's --enable-return-routed-experts and the request's return_routed_experts ask for them",
        )
    return result


def _answers(found: _Reply | list[_Answer]) -> list[tuple[int, _Meta, payload.Usage]]:
    """Returns, for each answer, its choice, what holds its routing, and what counts its tokens."""
    if isinstance(found, list):
        return [(index, answer.meta_info, answer.meta_info) for index, answer in enumerate(found)]
    if found.meta_info is not None:
        return [(0, found.meta_info, found.meta_info)]
    # The usage counts all choices together.
    counts = found.usage if found.usage is not None and len(found.choices) == 1 else payload.Usage()
    return [(choice.index, choice.sgl_ext, counts) for choice in found.choices if choice.sgl_ext is not None]


def encode(record: RoutingRecord, *, num_hidden_layers: int | None = None) -> str:
    """Returns what SGLang would have put into ``meta_info["routed_experts"]``.

    Args:
        record: Routing of all MoE layers. ``record.part.tokens[0]`` is the start, which the text does not say.
        num_hidden_layers: The model's layers with the dense ones, which become zeros; None: MoE layers only.

    Raises:
        InvalidRecordError: layers are missing.
    """
    return payload.to_base64(every_layer(record, "<i4", num_hidden_layers))
