"""torch tensors of a batch, and replay for routers in torch. Importing this module imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from . import replay
from .tensors import filled, framework, integer_name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..arrays import IntArray

torch = framework("torch")

_INTEGERS = ("int64", "int32", "uint8", "int16", "int8", "uint16", "uint32")


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

    Tensors are torch's; ``ids`` are as ``RoutingBatch.to_torch`` gives them. Autocast has no effect here.
    """
    options: dict[str, Any] = {"norm": norm, "scoring": scoring, "scale": scale}
    replay.check_arguments(scores, ids, mask, live_ids, bias, tensor=torch.Tensor, integers=_INTEGERS, **options)
    # Nothing below is an operation that autocast rounds; float32 goes in and stays.
    logits = scores if scores.dtype == torch.float64 else scores.float()
    chosen = ids.long()
    if mask is not None:
        live = _select(logits, bias, scoring, chosen.shape[-1]) if live_ids is None else live_ids.long()
        chosen = torch.where(mask.unsqueeze(-1), chosen, live)
    if check and chosen.numel():
        low, high = torch.aminmax(chosen)
        replay.check_range(int(low), int(high), logits.shape[-1])
    weights = _weights(logits, chosen, norm, scoring)
    return (weights if scale == 1.0 else weights * scale), chosen


replay.documented(replay_topk)


def _select(logits: Any, bias: Any, scoring: str, top_k: int) -> Any:
    with torch.no_grad():
        if bias is not None:  # without a bias logits are in the order of their scores, and have fewer ties
            if scoring != "none":
                logits = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
            logits = logits + bias.to(logits.dtype)
        return logits.topk(top_k, dim=-1).indices


def _weights(logits: Any, chosen: Any, norm: str, scoring: str) -> Any:
    if scoring == "softmax" and norm == "none":
        return logits.softmax(-1).gather(-1, chosen)
    picked = logits.gather(-1, chosen)
    if norm == "softmax" or (norm == "sum" and scoring == "softmax"):
        return picked.softmax(-1)
    if scoring == "sigmoid":
        return picked.sigmoid() if norm == "none" else torch.nn.functional.logsigmoid(picked).softmax(-1)
    return picked if norm == "none" else picked / picked.sum(-1, keepdim=True)


def to_tensor(
    routing: IntArray,
    recorded: npt.NDArray[np.bool_],
    num_experts: int,
    dtype: Any,
    device: Any,
    *,
    pin: bool = False,
    fill: int | None = None,
) -> Any:
    """Returns ids as an int32 or int64 tensor of its own memory; ``RoutingBatch.to_torch`` says what the rest means.

    Raises:
        InvalidRecordError: ``dtype`` or ``fill`` cannot be.
        UnsupportedError: There is no accelerator that memory could be pinned for.
    """
    name = integer_name(dtype, num_experts)
    wanted = getattr(torch, name)
    if fill is not None:
        return _moved(torch.from_numpy(filled(routing, recorded, name, fill)), device, pin)
    if device is None:
        return _moved(_widened(_narrow(routing), wanted, routing.dtype.itemsize), None, pin)
    # Ids travel in their stored width, an eighth of int64 up to 256 experts.
    return _widened(_moved(_narrow(routing), device, pin), wanted, routing.dtype.itemsize)


def plain(array: npt.NDArray[Any], device: Any, *, pin: bool = False) -> Any:
    """Returns a tensor of the array's dtype and of its own memory."""
    return _moved(torch.from_numpy(array.copy()), device, pin)


def _narrow(routing: IntArray) -> Any:
    # torch moves and casts its signed types everywhere; the bits are put right by _widened.
    array = routing if routing.flags.writeable else routing.copy()
    return torch.from_numpy(array if array.itemsize == 1 else array.view(f"i{array.itemsize}"))


def _widened(tensor: Any, wanted: Any, itemsize: int) -> Any:
    wide = tensor.to(wanted)
    if itemsize == 1 or (itemsize == 4 and wanted == torch.int32):  # int32 was only granted if ids fit
        return wide.clone() if wide is tensor else wide
    return wide.bitwise_and_(0xFFFF if itemsize == 2 else 0xFFFFFFFF)


def _moved(tensor: Any, device: Any, pin: bool) -> Any:
    if pin:
        try:
            tensor = tensor.pin_memory()
        except RuntimeError as err:
            raise UnsupportedError(
                f"torch cannot pin memory here: {err}", hint="pin=True needs a build for an accelerator, and one"
            ) from err
    return tensor if device is None else tensor.to(device, non_blocking=pin)
