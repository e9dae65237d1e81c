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

    Tensors are Paddle's; ``ids`` are as ``RoutingBatch.to_paddle`` gives them. ``amp.auto_cast`` has no effect here.
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


replay.documented(replay_topk)  # no decorator: paddle.jit.to_static would translate it, too, and compute otherwise


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
