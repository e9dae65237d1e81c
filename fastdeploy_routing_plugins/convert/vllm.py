"""vLLM's ``routed_experts``: an ``.npy`` file in base64, token first.

``--enable-return-routed-experts`` (vllm-project/vllm#28284, ``docs/features/routed_experts.md`` there) adds it to
every choice: ``[n-1, num_hidden_layers, top_k]`` for n tokens of prompt and completion, uint8, or uint16 over 256
experts. The request's ``routed_experts_prompt_start`` says how many leading rows are left out, which the reply does
not repeat. Python callers get the array itself.

vLLM 0.21 (``docs/training/routed_experts_replay.md``) had int16 arrays, nested lists over HTTP, of MoE layers only;
the prompt's rows stood apart in ``prompt_routed_experts``, and -1 marked tokens that came from the prefix cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .. import arrays
from ..errors import InvalidRecordError
from . import npy, payload
from .rows import ForeignRows, every_layer, placed, recorded_layers

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ..record import RoutingRecord
    from ..schema import RoutingSchema

_FILL = -1


class _Choice(msgspec.Struct):
    index: payload.Count = 0
    routed_experts: str | payload.Lists | None = None
    token_ids: list[int] | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: payload.Usage | None = None
    prompt_routed_experts: str | payload.Lists | None = None


def decode(routed_experts: object, schema: RoutingSchema, *, num_hidden_layers: int | None = None) -> npt.NDArray[Any]:
    """Returns ``[rows, MoE layers, top_k]``, a view if the MoE layers stand together.

    Args:
        routed_experts: Base64 of an ``.npy`` file, nested lists, or an array.
        schema: The model's schema.
        num_hidden_layers: The model's layers with the dense ones; None if only MoE layers are expected.

    Raises:
        InvalidRecordError: it is none of these, holds no integers in C order, or has other layers or another top_k.
    """
    if isinstance(routed_experts, (str, bytes)):
        array = npy.read(payload.from_base64(routed_experts))
    elif isinstance(routed_experts, (list, tuple)):
        array = payload.from_lists(routed_experts)
    else:
        array = arrays.as_numpy(routed_experts)
    return recorded_layers(array, schema, num_hidden_layers)


def rows(
    routed_experts: object,
    schema: RoutingSchema,
    *,
    prompt: object = None,
    num_hidden_layers: int | None = None,
    start: int = 0,
    num_tokens: int | None = None,
) -> ForeignRows:
    """Returns the routing of one choice.

    Args:
        routed_experts: See ``decode``.
        schema: See ``decode``.
        prompt: ``prompt_routed_experts`` of vLLM 0.21, which gives the completion apart; None otherwise. Then there
            may be a row for the last token, which is dropped, or rows may be missing at the end.
        num_hidden_layers: See ``decode``.
        start: The request's ``routed_experts_prompt_start``.
        num_tokens: Tokens of prompt and completion; None if not known.

    Raises:
        InvalidRecordError: as ``decode``, or rows and tokens do not match.
    """
    ids = decode(routed_experts, schema, num_hidden_layers=num_hidden_layers)
    apart = prompt is not None
    if apart:
        first = decode(prompt, schema, num_hidden_layers=num_hidden_layers)
        if first.dtype != ids.dtype:
            raise InvalidRecordError(f"prompt_routed_experts has dtype {first.dtype}, routed_experts {ids.dtype}")
        ids = np.concatenate([first, ids])
    fill = _FILL if ids.dtype.kind == "i" else None
    return placed(ids, schema, start=start, num_tokens=num_tokens, fill=fill, last_too=apart, fewer=apart)


def read(
    reply: Mapping[str, Any] | str | bytes,
    schema: RoutingSchema,
    *,
    num_hidden_layers: int | None = None,
    start: int = 0,
    num_tokens: int | None = None,
) -> list[tuple[int, ForeignRows]]:
    """Returns ``(choice, routing)`` of each choice of a reply of vLLM's servers.

    Args:
        reply: JSON text, or what was decoded from it.
        schema: See ``decode``.
        num_hidden_layers: See ``decode``.
        start: The request's ``routed_experts_prompt_start``.
        num_tokens: Instead of what the reply says of its tokens.

    Raises:
        InvalidRecordError: as ``rows``, or the reply holds no routing.
    """
    found: _Reply = payload.parsed(reply, _Reply, "reply of vLLM")
    usage = found.usage or payload.Usage()
    result = []
    for choice in found.choices:
        if choice.routed_experts is None:
            continue
        generated = None
        if choice.token_ids is not None:
            generated = len(choice.token_ids)
        elif len(found.choices) == 1:
            generated = usage.completion_tokens
        tokens = payload.total_tokens(num_tokens, usage.prompt_tokens, generated)
        how: dict[str, Any] = {"num_hidden_layers": num_hidden_layers, "start": start, "num_tokens": tokens}
        prompt = found.prompt_routed_experts
        result.append((choice.index, rows(choice.routed_experts, schema, prompt=prompt, **how)))
    if not result:
        raise InvalidRecordError(
            "this reply of vLLM holds no routed_experts", hint="the server needs --enable-return-routed-experts"
        )
    return result


def encode(record: RoutingRecord, *, num_hidden_layers: int | None = None) -> str:
    """Returns what vLLM would have put into a choice's ``routed_experts``.

    Args:
        record: Routing of all MoE layers. ``record.part.tokens[0]`` is the start, which the text does not say.
        num_hidden_layers: The model's layers with the dense ones, which become zeros; None: MoE layers only.

    Raises:
        InvalidRecordError: layers are missing, or there are more than 65,536 experts.
    """
    dtype = "|u1" if record.schema.num_experts <= 256 else "<u2"
    array = every_layer(record, dtype, num_hidden_layers)
    return payload.to_base64(np.frombuffer(npy.write(array), np.uint8))
