"""NumPy's ``.npy`` files of plain integers in C order, without NumPy's own reader, which evaluates what it reads.

The format (NEP 1, and ``numpy.lib.format`` for its versions): magic bytes, two bytes of version, the length of the
header, and the header, a Python dictionary as text with the keys ``descr``, ``fortran_order`` and ``shape``.
"""

from __future__ import annotations

import io
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidRecordError

MAGIC = b"\x93NUMPY"
_MAX_AXES = 8
MAX_HEADER = 1024  # NumPy writes 118 bytes for three axes
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
_PAIR = r"""['"](descr|fortran_order|shape)['"] ?: ?('[^']*'|"[^"]*"|True|False|\([0-9, ]*\))"""
_HEADER = re.compile(rf"\{{ ?{_PAIR}, ?{_PAIR}, ?{_PAIR},? ?\}}[ \n]*", re.ASCII)
_DTYPE = re.compile(r"""['"]([|<>]?[iu][1248])['"]""", re.ASCII)
_SHAPE = re.compile(r"\(([0-9]{1,19}(?:, ?[0-9]{1,19})*),?\)", re.ASCII)


def read(raw: bytes) -> npt.NDArray[Any]:
    """Returns the array, read-only, in the memory of ``raw``.

    Raises:
        InvalidRecordError: it is no whole ``.npy`` file, or holds something else than integers in C order.
    """
    descr, shape, start = _head(raw)
    dtype = np.dtype(descr)
    if len(shape) > _MAX_AXES:
        raise InvalidRecordError(f"an .npy file of {len(shape)} axes holds no routing")
    expected, found = math.prod(shape) * dtype.itemsize, len(raw) - start
    if found != expected:
        raise InvalidRecordError(
            f"an .npy file of shape {shape} and dtype {dtype} holds {expected} bytes, here are {found}: cut off, or "
            "its header lies"
        )
    if not expected:
        if any(shape[1:]) and not shape[0]:
            return np.empty((0, *[1] * (len(shape) - 1)), dtype)  # the other axes may say anything
        raise InvalidRecordError(f"an .npy file of shape {shape} holds no routing")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape)


def write(array: npt.NDArray[Any]) -> bytes:
    """Returns the bytes of an ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _head(raw: bytes) -> tuple[str, tuple[int, ...], int]:
    """Returns dtype, shape, and where the data begins."""
    version = tuple(raw[len(MAGIC) : len(MAGIC) + 2])
    if not raw.startswith(MAGIC) or version not in _LENGTH_BYTES:
        raise InvalidRecordError("this is no .npy file" if not raw.startswith(MAGIC) else f".npy of version {version}")
    begin = len(MAGIC) + 2 + _LENGTH_BYTES[version]
    length = int.from_bytes(raw[len(MAGIC) + 2 : begin], "little")
    if length > min(MAX_HEADER, len(raw) - begin):
        raise InvalidRecordError(f"an .npy file of {len(raw)} bytes cannot have a header of {length} bytes")
    match = _HEADER.fullmatch(raw[begin : begin + length].decode("latin-1"))
    said = dict(zip(match.groups()[::2], match.groups()[1::2], strict=True)) if match else {}
    if len(said) != len(_PAIR_NAMES):
        raise InvalidRecordError("the header of this .npy file is not as NumPy writes it for an array of integers")
    dtype, shape = _DTYPE.fullmatch(said["descr"]), _SHAPE.fullmatch(said["shape"])
    if dtype is None or shape is None or said["fortran_order"] != "False":
        raise InvalidRecordError(
            "this .npy file holds no integers in C order: "
            + ", ".join(f"{name} {said[name][:40]}" for name in _PAIR_NAMES),
            hint="numpy.ascontiguousarray(...) of integers is what can be read",
        )
    return dtype[1], tuple([int(size) for size in shape[1].split(",")]), begin + length


_PAIR_NAMES = ("descr", "fortran_order", "shape")
