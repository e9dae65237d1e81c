"""Paddle tensors of a batch, and replay for routers in Paddle. Importing this module imports Paddle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from . import replay
from .tensors import filled, framework, integer_name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..arrays import IntArray

paddle = framework("paddle")

_INTEGERS = ("int64", "int32", "uint8", "int16", "int8")


def replay_topk(
    scores: Any,
    ids: Any,
    mask: Any = None,
    *,
    norm: replay.Norm = "none",
    scoring: replay.Scoring = "softmax",
    bias: Any = None,
    scale: float = 1.0,
    live_ids: Any = None,
    check: bool = False,
) -> tuple[Any, Any]:
    """Uses the recorded experts, with weights that the live router gives them; replaces a router's own top-k.

    With ``p = scoring(scores)``, the weights are ``scale * p[ids]``, normalised as ``norm`` says. Gradients flow
    through the weights into ``scores`` as they do in a router that chose these experts itself. Everything is computed
    in float32 (float64 if ``scores`` are), whatever ``amp.auto_cast`` says, and without waiting for the device. Sums
    are normalised in log space, so that experts which the live router thinks little of still get weights and
    gradients.

    Args:
        scores: The live router's output, float ``[..., experts]``: logits, or with ``scoring="none"`` weights of
            any kind.
        ids: The recorded experts of this layer, integers ``[..., top_k]``, as ``RoutingBatch.to_paddle`` gives them.
        mask: bool ``[...]``, False where nothing was recorded: the live selection is used there. None: replay all.
        norm: ``"none"``; ``"sum"``: the weights of a token sum up to ``scale``; ``"softmax"``: the weights are a
            softmax over the chosen experts' ``scores`` (for ``scoring="softmax"`` that is the same as ``"sum"``).
        scoring: ``"softmax"`` over all experts, ``"sigmoid"``, or ``"none"``.
        bias: Float ``[experts]``, added to ``p`` for the live selection only; it enters neither weights nor
            gradients (DeepSeek-V3's ``e_score_correction_bias``).
        scale: Factor of the weights (``routed_scaling_factor``).
        live_ids: The live selection, integers ``[..., top_k]``, for routers whose selection is more than a top-k of
            ``p + bias`` (expert groups, for example). Only used where ``mask`` is False.
        check: Whether ids are compared with the number of experts, which waits for the device.

    Returns:
        Weights, float32 or float64 ``[..., top_k]``, and the experts used, int64 ``[..., top_k]``.

    Raises:
        InvalidRecordError: Shapes, dtypes or options do not fit, or, with ``check``, an id is out of range.
    """
    if paddle.in_dynamic_mode():  # while to_static traces, shapes may be open
        options: dict[str, Any] = {"norm": norm, "scoring": scoring, "scale": scale}
        replay.check_arguments(scores, ids, mask, live_ids, bias, tensor=paddle.Tensor, integers=_INTEGERS, **options)
    with paddle.amp.auto_cast(enable=False):
        logits = scores if scores.dtype == paddle.float64 else scores.astype("float32")
        chosen = ids.astype("int64")
        if mask is not None:
            live = _select(logits, bias, scoring, chosen.shape[-1]) if live_ids is None else live_ids.astype("int64")
            chosen = paddle.where(mask.unsqueeze(-1), chosen, live)
        if check and chosen.size:
            replay.check_range(int(chosen.min()), int(chosen.max()), logits.shape[-1])
        # Paddle counts negative indices from the end, so that a forgotten -1 would be the last expert.
        index = paddle.where(chosen < 0, paddle.full_like(chosen, logits.shape[-1]), chosen)
        weights = _weights(logits, index, norm, scoring)
        return (weights if scale == 1.0 else weights * scale), chosen


def _select(logits: Any, bias: Any, scoring: str, top_k: int) -> Any:
    with paddle.no_grad():
        if bias is not None:  # without a bias logits are in the order of their scores, and have fewer ties
            if scoring != "none":
                functional = paddle.nn.functional
                logits = functional.softmax(logits, -1) if scoring == "softmax" else functional.sigmoid(logits)
            logits = logits + bias.astype(logits.dtype)
        return paddle.topk(logits, top_k, axis=-1)[1]


def _weights(logits: Any, chosen: Any, norm: str, scoring: str) -> Any:
    functional = paddle.nn.functional
    if scoring == "softmax" and norm == "none":
        return paddle.take_along_axis(functional.softmax(logits, -1), chosen, -1, broadcast=False)
    picked = paddle.take_along_axis(logits, chosen, -1, broadcast=False)
    if norm == "softmax" or (norm == "sum" and scoring == "softmax"):
        return functional.softmax(picked, -1)
    if scoring == "sigmoid":
        return functional.sigmoid(picked) if norm == "none" else functional.softmax(functional.log_sigmoid(picked), -1)
    return picked if norm == "none" else picked / picked.sum(-1, keepdim=True)


def to_tensor(
    routing: IntArray,
    recorded: npt.NDArray[np.bool_],
    num_experts: int,
    dtype: Any,
    place: Any,
    fill: int | None = None,
) -> Any:
    """Returns ids as an int32 or int64 tensor of its own memory; ``RoutingBatch.to_paddle`` says what the rest means.

    Raises:
        InvalidRecordError: ``dtype`` or ``fill`` cannot be.
        UnsupportedError: This build of Paddle has no such place.
    """
    return plain(filled(routing, recorded, integer_name(dtype, num_experts), fill), place)


def plain(array: npt.NDArray[Any], place: Any) -> Any:
    """Returns a tensor of the array's dtype and of its own memory.

    Raises:
        UnsupportedError: This build of Paddle has no such place.
    """
    try:
        return paddle.to_tensor(array, place=place)
    except (AttributeError, RuntimeError, ValueError) as err:  # all three are what a CPU build says to a GPU place
        lines = str(err).strip().splitlines() or [type(err).__name__]
        raise UnsupportedError(
            f"Paddle does not make a tensor at {place}: {lines[-1].strip()}",
            hint="pinned memory and GPUs need Paddle's build for them",
        ) from err
