"""What ``paddle.save`` writes of one array or tensor, read without running it.

Such a file is a pickle, which ``paddle.load`` runs: whatever it names is imported and called. Here ``opcodes`` follows
it over symbols, and nothing is imported and nothing called. Nine names belong there; what their calls would make is
worked out from their arguments, which must be exactly those of an array of integers. Any other opcode, name, argument
or state is an error. This is safe because no value in the file reaches ``import``, ``getattr`` or a call: values are
compared, sizes are checked, and at the end ``numpy.frombuffer`` looks at the file's own bytes.

The names and states are those of NumPy's ``ndarray.__reduce__`` and ``dtype.__reduce__``; a ``paddle.Tensor`` is
``tuple((name, array))`` (``paddle/framework/io.py``, ``_pickle_save``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..names import MAX_LAYERS
from .opcodes import follow, refused

if TYPE_CHECKING:
    import numpy.typing as npt

_Meaning = Literal["reconstruct", "ndarray", "dtype", "encode", "tuple", "bytes"]
_NAMES: dict[tuple[str, str], _Meaning] = {
    ("numpy.core.multiarray", "_reconstruct"): "reconstruct",  # NumPy 1
    ("numpy._core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    ("builtins", "tuple"): "tuple",
    ("__builtin__", "tuple"): "tuple",  # protocol 2 calls modules as Python 2 did
    ("builtins", "bytes"): "bytes",
    ("__builtin__", "bytes"): "bytes",
}
_INTEGERS = re.compile(r"[iu][1248]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file holds.

    Attributes:
        array: The array, read-only, in the memory of the file's bytes where these are bytes in the pickle too.
        tensor: Whether it was a ``paddle.Tensor``; 16 unsigned bits are then bfloat16, since Paddle has no uint16.
        end: Where the pickle ends; ``paddle.load`` does not look at what comes then.
    """

    array: npt.NDArray[Any]
    tensor: bool
    end: int


@dataclass(frozen=True, slots=True)
class _Name:
    means: _Meaning


@dataclass(slots=True)
class _Dtype:
    code: str
    order: str = ""


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Bytes as protocol 2 has them, text in Latin-1. They are made once, when the array is."""

    text: str


@dataclass(slots=True)
class _Array:
    array: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class _Tensor:
    made: _Array


def load(data: bytes | memoryview) -> Loaded:
    """Returns the array of integers, of at most three axes, in a file of ``paddle.save``.

    Raises:
        InvalidRecordError: the file is cut off, or is anything else than that.
    """
    result, end = follow(memoryview(data), _ArrayOnly())
    made = result.made if isinstance(result, _Tensor) else result
    if not isinstance(made, _Array) or made.array is None:
        raise refused("it holds something else")
    return Loaded(made.array, isinstance(result, _Tensor), end)


class _ArrayOnly:
    """What the pickle of an array means."""

    def __init__(self) -> None:
        self._built = False

    def name(self, module: str, name: str) -> object:
        means = _NAMES.get((module, name))
        if means is None:
            raise refused(f"it names {f'{module:.60} {name:.60}'!r}, which does not belong in one")
        return _Name(means)

    def call(self, function: object, arguments: tuple[Any, ...]) -> object:
        match function, arguments:
            case _Name("reconstruct"), (_Name("ndarray"), tuple((0,)), code) if _is_b(code):
                return _Array()
            case _Name("dtype"), (str(code), False, True) if _INTEGERS.fullmatch(code):
                return _Dtype(code)
            case _Name("encode"), (str(text), "latin1"):
                return _Encoded(text)
            case _Name("bytes"), ():
                return memoryview(b"")
            case _Name("tuple"), (tuple((str(), _Array() as made)),):
                return _Tensor(made)
        raise refused("a call in it is none that an array of integers needs")

    def build(self, made: object, state: object) -> None:
        if isinstance(made, _Dtype) and not made.order:
            made.order = _byte_order(state)
        elif isinstance(made, _Array) and not self._built:
            self._built = True  # one array a file, or its bytes could be asked for again and again
            made.array = _array(state)
        else:
            raise refused("it changes what is no new array")


def _is_b(code: object) -> bool:
    return bytes(code) == b"b" if isinstance(code, memoryview) and len(code) == 1 else code == _Encoded("b")


def _byte_order(state: object) -> str:
    match state:
        case tuple((3, ("<" | ">" | "|") as order, None, None, None, -1, -1, 0)):
            return str(order)
    raise refused("its dtype is no plain integer")


def _array(state: object) -> npt.NDArray[Any]:
    match state:
        case tuple(
            (1, tuple(shape), _Dtype(code, str(order)), bool(fortran), (memoryview() | _Encoded()) as held)
        ) if order:
            raw = held if isinstance(held, memoryview) else _latin1(held.text)
        case _:
            raise refused("the state of its array is another")
    most = max(len(raw), MAX_LAYERS)  # without tokens there are no bytes, and still layers
    if not 1 <= len(shape) <= 3 or not all(type(size) is int and 0 <= size <= most for size in shape):
        raise refused("its shape does not fit its bytes")
    ids = np.dtype(order + code)
    if math.prod(shape) * ids.itemsize != len(raw):
        raise refused(f"shape {shape} and dtype {ids} do not fit {len(raw)} bytes")
    if not len(raw):
        return np.empty(shape, ids)
    array: npt.NDArray[Any] = np.frombuffer(raw, ids).reshape(shape, order="F" if fortran else "C")
    array.flags.writeable = False
    return array


def _latin1(text: str) -> memoryview:
    try:
        return memoryview(text.encode("latin-1"))
    except UnicodeEncodeError as err:
        raise refused("a text in it stands for no bytes") from err
