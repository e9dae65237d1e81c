"""Payloads as they travel: base64, flat arrays, lists and JSON, checked before anything is made of them.

What comes out is never larger than a small multiple of what came in, whatever the payload says of itself, and no
message shows what is in it.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from ..errors import InvalidRecordError

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_BYTES = 4 << 30
"""Largest payload that is looked at, decoded: int32 ids of a million tokens of 61 layers, top-8, take 2 GB."""

_Id = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Lists = list[list[list[_Id]]]
"""``[rows, layers, top_k]`` as JSON has it."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number of tokens in a reply."""


class Usage(msgspec.Struct):
    """What a reply counts. Attributes ``prompt_tokens`` and ``completion_tokens``: None if it does not say."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


def total_tokens(stated: int | None, prompt: int | None, completion: int | None) -> int | None:
    """Returns a sequence's tokens: what a caller states, else those of prompt and completion; None if not known."""
    if stated is not None or prompt is None or completion is None:
        return stated
    return prompt + completion


def too_large(nbytes: int) -> InvalidRecordError:
    """Returns the error of a payload that is not looked at."""
    return InvalidRecordError(f"a payload of {nbytes} bytes is over the limit of {MAX_BYTES}")


def from_base64(text: object) -> bytes:
    """Decodes base64 of the standard alphabet, padded, without blanks or line ends.

    Raises:
        InvalidRecordError: it is no such text, or decodes to more than ``MAX_BYTES``.
    """
    if not isinstance(text, (str, bytes)):
        raise InvalidRecordError(f"base64 is text, got {type(text).__name__}")
    if len(text) > MAX_BYTES // 3 * 4:
        raise too_large(len(text) // 4 * 3)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise InvalidRecordError(f"{len(text)} characters are no base64", hint=_why_not_base64(text))


def _why_not_base64(text: str | bytes) -> str:
    head = text[:4096] if isinstance(text, str) else text[:4096].decode("latin-1")
    if not head.isascii() or any(ch in head for ch in "!#$%&()*;<>?@^`{|}~"):
        return "it may be another encoding, such as base85, or no text of an engine at all"
    if "-" in head or "_" in head:
        return "it looks like the variant for URLs: translate - to + and _ to / first"
    return "it was cut off, or something was put in between" if head.strip() == head else "there are blanks around it"


def to_base64(array: npt.NDArray[Any]) -> str:
    """Returns base64 of an array's bytes in C order, little-endian."""
    return base64.b64encode(array.tobytes()).decode("ascii")


def flat(raw: bytes | memoryview, dtype: str, columns: int, top_k: int, *, first: str) -> npt.NDArray[Any]:
    """Returns flat ids as a read-only view with three axes; how many tokens there are follows from the size.

    Args:
        raw: The bytes, C order.
        dtype: What they are, with its byte order, such as ``"<i4"``.
        columns: Number of layers.
        top_k: Experts per token and layer.
        first: ``"tokens"`` for ``[tokens, layers, top_k]``, ``"layers"`` for ``[layers, tokens, top_k]``.

    Raises:
        InvalidRecordError: the size is no multiple of one token's.
    """
    ids = np.dtype(dtype)
    nbytes, row = len(raw), columns * top_k * ids.itemsize
    if nbytes > MAX_BYTES:
        raise too_large(nbytes)
    if nbytes % row:
        raise InvalidRecordError(
            f"{nbytes} bytes are no whole number of tokens: one takes {row}, {columns} layers x top-{top_k} x "
            f"{ids.itemsize} bytes ({ids.name})",
            hint="another number of layers (with dense ones among them, num_hidden_layers, or --hidden-layers, is how "
            "many there are), another top_k or dtype, or it was cut off",
        )
    if columns * top_k > MAX_BYTES:
        raise InvalidRecordError(f"a token of {columns} layers x top-{top_k} ids is none")
    rows = nbytes // row
    shape = (rows, columns, top_k) if first == "tokens" else (columns, rows, top_k)
    array: npt.NDArray[Any] = np.frombuffer(raw, ids).reshape(shape) if rows else np.empty(shape, ids)
    array.flags.writeable = False
    return array


def from_lists(value: object) -> npt.NDArray[np.int32]:
    """Returns ``[rows, layers, top_k]`` from lists in lists in lists of integers.

    Raises:
        InvalidRecordError: they are something else, or of unequal lengths.
    """
    lists: Lists = parsed(value, Lists, "list of rows")
    widths = {len(row) for row in lists}
    depths = {len(ids) for row in lists for ids in row}
    if len(widths) > 1 or len(depths) > 1:
        raise InvalidRecordError("nested lists of unequal lengths are no [rows, layers, top_k]")
    shape = len(lists), widths.pop() if widths else 0, depths.pop() if depths else 0
    every = itertools.chain.from_iterable(itertools.chain.from_iterable(lists))
    return np.fromiter(every, np.int32, shape[0] * shape[1] * shape[2]).reshape(shape)


def parsed(reply: object, model: Any, what: str) -> Any:
    """Returns the fields of an engine's reply that matter here; others are passed over without being kept.

    Args:
        reply: JSON text, or what was decoded from it.
        model: The type of what is looked for, for msgspec.
        what: How error messages call it.

    Returns:
        An object of the type ``model``.

    Raises:
        InvalidRecordError: it is no JSON, or a field has another type.
    """
    try:
        if not isinstance(reply, (str, bytes)):
            return msgspec.convert(reply, model)
        if len(reply) > MAX_BYTES // 3 * 4:
            raise too_large(len(reply))
        return msgspec.json.decode(reply, type=model)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as err:
        raise InvalidRecordError(f"this is no {what}: {str(err)[:300]}") from err
