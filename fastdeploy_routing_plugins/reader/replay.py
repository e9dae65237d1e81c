"""What ``replay_topk`` of both frameworks agrees on: its words, its arguments, and what they raise. Free of both."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InvalidRecordError
from ..keys import shown

if TYPE_CHECKING:
    from collections.abc import Callable

Norm = Literal["none", "sum", "softmax"]
Scoring = Literal["softmax", "sigmoid", "none"]

NORMS = ("none", "sum", "softmax")
SCORINGS = ("softmax", "sigmoid", "none")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_WORDS = """
With ``p = scoring(scores)``, the weights are ``scale * p[ids]``, normalised as ``norm`` says. Gradients flow through
the weights into ``scores`` as they do in a router that chose these experts itself. Everything is computed in float32
(float64 if ``scores`` are), and without waiting for the device. Sums are normalised in log space, so that experts
which the live router thinks little of still get weights and gradients.

Args:
    scores: The live router's output, float ``[..., experts]``: logits, or with ``scoring="none"`` weights of any kind.
    ids: The recorded experts of this layer, integers ``[..., top_k]``.
    mask: bool ``[...]``, False where nothing was recorded: the live selection is used there. None: replay all.
    norm: ``"none"``; ``"sum"``: the weights of a token sum up to ``scale``; ``"softmax"``: the weights are a softmax
        over the chosen experts' ``scores`` (for ``scoring="softmax"`` that is the same as ``"sum"``).
    scoring: ``"softmax"`` over all experts, ``"sigmoid"``, or ``"none"``.
    bias: Float ``[experts]``, added to ``p`` for the live selection only; it enters neither weights nor gradients
        (DeepSeek-V3's ``e_score_correction_bias``).
    scale: Factor of the weights (``routed_scaling_factor``).
    live_ids: The live selection, integers ``[..., top_k]``, for routers whose selection is more than a top-k of
        ``p + bias`` (expert groups, for example). Only used where ``mask`` is False.
    check: Whether ids are compared with the number of experts, which waits for the device.

Returns:
    Weights, float32 or float64 ``[..., top_k]``, and the experts used, int64 ``[..., top_k]``.

Raises:
    InvalidRecordError: Shapes, dtypes or options do not fit, or, with ``check``, an id is out of range.
"""


def documented(replay_topk: Callable[..., Any]) -> None:
    """Completes the words of a framework's ``replay_topk`` by those that hold for both."""
    replay_topk.__doc__ = f"{inspect.cleandoc(replay_topk.__doc__ or '')}\n{_WORDS}"


def check_arguments(
    scores: Any,
    ids: Any,
    mask: Any,
    live_ids: Any,
    bias: Any,
    *,
    norm: str,
    scoring: str,
    scale: float,
    tensor: type[Any],
    integers: tuple[str, ...],
) -> None:
    """Checks what can be checked without looking at values, which would hold up the device.

    Args:
        scores: Floats ``[..., experts]``.
        ids: Integers ``[..., top_k]``.
        mask: bool ``[...]``, or None.
        live_ids: Integers ``[..., top_k]``, or None.
        bias: Floats ``[experts]``, or None.
        norm: One of ``NORMS``.
        scoring: One of ``SCORINGS``.
        scale: A finite number.
        tensor: The framework's class of tensors.
        integers: Names of the dtypes that ids may have.

    Raises:
        InvalidRecordError: a shape, dtype or option does not fit; the message has both sides.
    """
    for what, value, known in (("norm", norm, NORMS), ("scoring", scoring, SCORINGS)):
        if value not in known:
            raise InvalidRecordError(f"{what} must be one of {', '.join(known)}, got {shown(value)}")
    number: object = scale
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) < math.inf:
        raise InvalidRecordError(f"scale must be a finite number, got {shown(scale)}")
    for what, given in (("scores", scores), ("ids", ids), ("mask", mask), ("live_ids", live_ids), ("bias", bias)):
        if not isinstance(given, tensor) and (given is not None or what in ("scores", "ids")):
            raise InvalidRecordError(
                f"{what} must be a {tensor.__module__.partition('.')[0]} tensor, got {type(given).__name__}",
                hint="batch.to_paddle() and batch.to_torch() make tensors of a batch",
            )
    _check_dtype("scores", scores, _FLOATS)
    _check_dtype("ids", ids, integers)
    tokens, experts = _shape(scores)[:-1], _shape(scores)[-1:]
    top_k = _shape(ids)[-1:]
    if not experts or _shape(ids) != tokens + top_k or not 0 < top_k[0] <= experts[0]:
        raise InvalidRecordError(
            f"ids {list(_shape(ids))} do not fit scores {list(_shape(scores))}: [..., top_k] and [..., experts]",
            hint="ids of one layer, a row for each token of the router's scores",
        )
    if mask is not None:
        _check_dtype("mask", mask, ("bool",))
        _check_shape("mask", mask, tokens)
    if live_ids is not None:
        _check_dtype("live_ids", live_ids, integers)
        _check_shape("live_ids", live_ids, tokens + top_k)
    if bias is not None:
        _check_dtype("bias", bias, _FLOATS)
        _check_shape("bias", bias, experts)


def check_range(low: int, high: int, num_experts: int) -> None:
    """Checks the lowest and the highest id that would be used.

    Raises:
        InvalidRecordError: one of them is no expert of the live router.
    """
    if low < 0 or high >= num_experts:
        wrong = low if low < 0 else high
        raise InvalidRecordError(
            f"id {wrong} is not in 0..{num_experts - 1}, the experts of the live router",
            hint="rows without a record need mask=False; otherwise the routing is of another model",
        )


def dtype_name(tensor: Any) -> str:
    """Returns ``"float32"`` for a tensor of ``paddle.float32`` or ``torch.float32``."""
    return str(tensor.dtype).rpartition(".")[2]


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _check_shape(what: str, tensor: Any, expected: tuple[int, ...]) -> None:
    if _shape(tensor) != expected:
        raise InvalidRecordError(f"{what} has shape {list(_shape(tensor))}, expected {list(expected)}")


def _check_dtype(what: str, tensor: Any, names: tuple[str, ...]) -> None:
    name = dtype_name(tensor)
    if name not in names:
        hint = "expert ids are integers; Paddle's uint16 is bfloat16" if what in ("ids", "live_ids") else ""
        raise InvalidRecordError(f"{what} must be {' or '.join(names)}, got {name}", hint=hint)
