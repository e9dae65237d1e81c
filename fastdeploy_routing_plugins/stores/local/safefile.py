"""One object as the bytes of one safetensors file: composing the head, and a bounded parse.

A file is an 8-byte little-endian length, that many bytes of JSON, and the payload::

    {"__metadata__": {"fd_routing": <the header's line>},
     "routing": {"dtype": "U8", "shape": [layers, tokens, top_k], "data_offsets": [0, payload bytes]}}

The JSON is padded with blanks so that the payload starts at a multiple of 64 bytes. Seals and abort marks hold an
empty tensor of shape ``[0]``. The public ``safetensors`` library opens these files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from ...errors import CorruptDataError, InvalidRecordError

if TYPE_CHECKING:
    from ...backend import Buffer

MAX_HEAD = 100_000_000  # the format's own limit for the JSON
_ALIGN = 64
_LENGTH_BYTES = 8
_DTYPES = {"uint8": "U8", "uint16": "U16", "uint32": "U32"}
_ITEMSIZE = {"U8": 1, "U16": 2, "U32": 4}

Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Literal["U8", "U16", "U32"]
    shape: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1, max_length=3)]
    data_offsets: tuple[Size, Size]


class _Metadata(msgspec.Struct, frozen=True):
    fd_routing: str


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metadata: _Metadata = msgspec.field(name="__metadata__")
    routing: _Tensor


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True)
class Head:
    """What a file's head says.

    Attributes:
        header: The object's header, as it was put.
        start: Where the payload begins in the file; it ends with the file.
        nbytes: Bytes of the payload.
    """

    header: bytes
    start: int
    nbytes: int


def compose_head(header: bytes, payload: Buffer) -> bytes:
    """Returns everything of the file that comes before the payload.

    Raises:
        InvalidRecordError: the header is no UTF-8 text, or shape, dtype and size of the payload contradict each other.
    """
    dtype = _DTYPES.get(payload.dtype)
    shape = payload.shape or (0,)
    if dtype is None or math.prod(shape) * _ITEMSIZE[dtype] != payload.nbytes:
        raise InvalidRecordError(f"{payload.nbytes} bytes are no {payload.dtype} array of shape {payload.shape}")
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError as err:
        raise InvalidRecordError("a header must be UTF-8 text") from err
    head = _Head(_Metadata(text), _Tensor(dtype, shape, (0, payload.nbytes)))  # type: ignore[arg-type]
    json = _encoder.encode(head)
    json += b" " * (-(_LENGTH_BYTES + len(json)) % _ALIGN)
    if len(json) > MAX_HEAD:
        raise InvalidRecordError(f"a header of {len(header)} bytes is too long for a safetensors file")
    return len(json).to_bytes(_LENGTH_BYTES, "little") + json


def head_size(beginning: bytes | bytearray | memoryview, file_size: int) -> int:
    """Returns how many bytes come before the payload, from the file's first bytes.

    Raises:
        CorruptDataError: the file is shorter than that, or the length is absurd.
    """
    length = int.from_bytes(beginning[:_LENGTH_BYTES], "little")
    if file_size < _LENGTH_BYTES or len(beginning) < _LENGTH_BYTES:
        raise CorruptDataError(f"a file of {file_size} bytes is no safetensors file")
    if length > min(MAX_HEAD, file_size - _LENGTH_BYTES):
        raise CorruptDataError(f"a file of {file_size} bytes cannot have a head of {length} bytes: cut off or damaged")
    return _LENGTH_BYTES + length


def parse_head(head: bytes | bytearray | memoryview, file_size: int) -> Head:
    """Parses and checks a whole head, as long as ``head_size`` says.

    Raises:
        CorruptDataError: it is not the head of one of our files of this size.
    """
    start = len(head)
    try:
        parsed = _decoder.decode(head[_LENGTH_BYTES:])
        header = parsed.metadata.fd_routing.encode("utf-8")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as err:
        raise CorruptDataError(f"this is no safetensors file of ours: {err}") from err
    tensor, nbytes = parsed.routing, file_size - start
    if tensor.data_offsets != (0, nbytes) or math.prod(tensor.shape) * _ITEMSIZE[tensor.dtype] != nbytes:
        raise CorruptDataError(
            f"the file holds {nbytes} bytes of payload, its head says {tensor.shape} {tensor.dtype} at "
            f"{tensor.data_offsets}: cut off or damaged"
        )
    return Head(header, start, nbytes)
