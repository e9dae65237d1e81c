"""FastDeploy 2.6's shared buffers, patched in place: filled for any NumPy, with one owner, closed without an error."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import numpy as np

from .arrays import fill_value
from .segments import OwnedSegment, Segment


def patch_buffer(owner: Any, prefix: str) -> None:
    """Patches a class that owns a buffer, made by ``(blocks, block_size, layers, top_k, dtype, dp_suffix)``."""
    signature = inspect.signature(owner.__init__)

    @functools.wraps(owner.__init__)
    def __init__(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self, blocks, block_size, layers, top_k, dtype, suffix = bound.arguments.values()
        self.shape = (blocks * block_size, layers, top_k)
        self.dtype = np.dtype(dtype)
        self.block_size = block_size
        self.shm_name = f"{prefix}.{suffix}"
        self.shm = OwnedSegment(self.shm_name, math.prod(self.shape) * self.dtype.itemsize)
        self.buffer = np.ndarray(self.shape, dtype=self.dtype, buffer=self.shm.buf)
        self.buffer.fill(fill_value(self.dtype))

    @functools.wraps(owner.close)
    def close(self: Any) -> None:
        self.buffer = None
        self.shm.close()
        self.shm.unlink()

    owner.__init__ = __init__
    owner.close = close


def patch_view(view: Any) -> None:
    """Patches a class that attaches to a buffer, made by ``(shape, dtype, shm_name)``."""

    def __init__(self: Any, shape: tuple[int, ...], dtype: str, shm_name: str) -> None:
        self.shm = Segment(shm_name)
        self.dtype = np.dtype(dtype)
        self.buffer = np.ndarray(shape, dtype=self.dtype, buffer=self.shm.buf)

    def close(self: Any) -> None:
        self.buffer = None
        self.shm.close()

    view.__init__ = functools.wraps(view.__init__)(__init__)
    view.close = functools.wraps(view.close)(close)
