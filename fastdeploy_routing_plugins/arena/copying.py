"""One pass from a caller's array into the arena, transposed on the way if need be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_WORDS = [np.dtype(code) for code in ("c16", "u8", "u4", "u2")]
_BLOCK = 512  # tokens transposed at a time: their rows stay in the second-level cache, and calls are few


def copy_into(target: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
    """Copies ``[layers, tokens, top_k]`` into C-ordered memory of the same shape and width.

    The ids of a row are moved as words of 2 to 16 bytes where they lie together, which makes a transposition several
    times faster than one id at a time. Values are not looked at.

    Args:
        target: C order, native byte order.
        source: Any memory order and byte order.
    """
    if source.flags.c_contiguous or source.size == 0:
        np.copyto(target, source)
        return
    layers, tokens, top_k = source.shape
    moved = _as_words(source)
    if moved is None or abs(moved.strides[0]) >= abs(moved.strides[1]):
        np.copyto(target, source)  # layer by layer already: NumPy copies long runs
        return
    to = target.reshape(layers, tokens * top_k).view(moved.dtype).reshape(moved.shape)
    for start in range(0, tokens, _BLOCK):
        for word in range(moved.shape[2]):
            np.copyto(to[:, start : start + _BLOCK, word], moved[:, start : start + _BLOCK, word])


def _as_words(source: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Returns ``[layers, tokens, words]`` with rows as few long words, or None if a row's ids do not lie together."""
    if not source.dtype.isnative or (source.shape[2] > 1 and source.strides[2] != source.itemsize):
        return None
    row = source.shape[2] * source.itemsize
    word = next((word for word in _WORDS if row % word.itemsize == 0), None)
    if word is None or word.itemsize <= source.itemsize:
        return None
    words: npt.NDArray[Any] = source.view(word)
    return words
