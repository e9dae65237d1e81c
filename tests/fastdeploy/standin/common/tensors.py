"""Stand-in for the few things of Paddle that routing replay needs, bfloat16 under the name uint16 included."""

import numpy as np


def to_bits(values):
    """Rounds integers to bfloat16 and returns the bit patterns."""
    return (np.asarray(values, np.float32).view(np.uint32) + 0x8000 >> 16).astype(np.uint16)


class Tensor:
    def __init__(self, array, dtype):
        self._array = array
        self.dtype = "paddle.bfloat16" if dtype == "uint16" else f"paddle.{dtype}"

    @classmethod
    def full(cls, shape, fill_value, dtype):
        made = cls(np.empty(shape, np.uint16 if dtype == "uint16" else dtype), dtype)
        made.fill_(fill_value)
        return made

    @property
    def shape(self):
        return list(self._array.shape)

    def numpy(self):
        return self._array.copy()

    def fill_(self, value):
        self[...] = np.full(self._array.shape, value)

    def transpose(self, axes):
        return self._like(self._array.transpose(axes))

    def __getitem__(self, index):
        return self._like(self._array[index])

    def __setitem__(self, index, values):
        if "bfloat16" in self.dtype:
            self._array[index] = to_bits(values)
        else:
            self._array[index] = np.asarray(values).astype(self._array.dtype)  # wraps, as Paddle does

    def _like(self, array):
        made = Tensor.__new__(Tensor)
        made._array, made.dtype = array, self.dtype
        return made
