"""FastDeploy 2.6's shared buffers, patched in place: filled for any NumPy, with one owner, closed without an error."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ...patterns import fill_value
from .gate import Arguments
from .segments import OwnedSegment, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence


def patch_buffer(owner: Any, prefix: str, parameters: Sequence[str]) -> None:
    """Patches a class that owns a buffer.

    What a newer FastDeploy says besides may choose where the memory lies, which is no matter here.

    Args:
        owner: The class.
        prefix: What the buffers' names begin with.
        parameters: Names of ``self``, the number of blocks, their size, layers, top_k, the dtype and the suffix.
    """
    arguments = Arguments(owner.__init__, parameters)

    @functools.wraps(owner.__init__)
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, blocks, block_size, layers, top_k, dtype, suffix = arguments.known_of(args, kwargs)
        self.shape = (blocks * block_size, layers, top_k)
        self.dtype = np.dtype(dtype)
        self.block_size = block_size
        self.shm_name = f"{prefix}.{suffix}"
        self.shm = OwnedSegment(self.shm_name, math.prod(self.shape) * self.dtype.itemsize)
        self.buffer = np.ndarray(self.shape, dtype=self.dtype, buffer=self.shm.buf)
        self.buffer.fill(fill_value(self.dtype))

    @functools.wraps(owner.close)
    def close(self: Any, *_: Any, **__: Any) -> None:
        self.buffer = None
        self.shm.close()
        self.shm.unlink()

    owner.__init__ = __init__
    owner.close = close


def patch_view(view: Any) -> None:
    """Patches a class that attaches to a buffer, made by ``(shape, dtype, shm_name)``."""
    arguments = Arguments(view.__init__, ("self", "shape", "dtype", "shm_name"))

    @functools.wraps(view.__init__)
    def __init__(*args: Any, **kwargs: Any) -> None:
        call = arguments.of(args, kwargs)
        if call.further:  # an offset, say: looking elsewhere would read other rows
            raise UnsupportedError(
                f"the routing stores do not know {', '.join(call.further)} of a view of FastDeploy's routing buffer",
                hint="upgrade fastdeploy-routing-plugins, or leave routing_stores out of FD_PLUGINS",
            )
        self, shape, dtype, name = call.known
        self.shm = Segment(name)
        self.dtype = np.dtype(dtype)
        self.buffer = np.ndarray(shape, dtype=self.dtype, buffer=self.shm.buf)

    @functools.wraps(view.close)
    def close(self: Any, *_: Any, **__: Any) -> None:
        self.buffer = None
        self.shm.close()

    view.__init__ = __init__
    view.close = close
