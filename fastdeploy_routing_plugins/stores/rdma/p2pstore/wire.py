"""What this package's objects are in p2pstore: under which key, and as which value.

FastDeploy puts a rollout under its id, or each layer under ``ID_N``, N counted from 0 among the MoE layers. Whole
rollouts of choice 0 are put just so, and whole layers. What FastDeploy has no key for (further choices, parts of a
rollout) gets a key of this package's own, which only this package asks for.

A value is ``[layers, tokens, top_k]`` as bytes, or an array; of one layer it is an array ``[tokens, top_k]``. Its
dtype is the one that FastDeploy would choose, and with ``pad_to`` rows of -1 follow, as FastDeploy pads.
"""

from __future__ import annotations

import io
import pickletools
from typing import TYPE_CHECKING, Any

import numpy as np

from ....convert.fastdeploy import dtype_bytes
from ....envelope import PartHeader, decode_header
from ....errors import CorruptDataError, UnsupportedError
from ....keys import DEFAULT_KIND
from ....names import PartName, parse_name
from ....patterns import fill_value

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..config import RdmaConfig

OWN_PREFIX = "fd-routing/"
SENTINEL = "88888888"
"""p2pstore says of a key that contains this that it was stored, and does not store it."""
_RESERVED = ("index", "multipart:")  # p2p:files:index and p2p:files:multipart:... are p2pstore's own records
_PICKLED = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "STOP"}
_BYTES = {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}


def public_header(name: str, header: bytes) -> PartHeader | None:
    """Returns the header of an object that FastDeploy has a key for; None if it has none for it.

    Raises:
        CorruptDataError: it has one, but the header is none.
    """
    parsed = parse_name(name)
    what = parsed.object
    if not isinstance(what, PartName) or parsed.choice or parsed.kind != DEFAULT_KIND:
        return None
    if what.part.tokens != (0, what.total_tokens) or what.part.num_layers not in (1, what.total_layers):
        return None
    decoded = decode_header(header, name=name)
    assert isinstance(decoded, PartHeader)
    return decoded


def public_key(header: PartHeader) -> str:
    """Returns FastDeploy's key of a whole rollout or a whole layer."""
    if is_layer(header):
        return f"{header.rollout_id}_{header.layers[0]}"
    return header.rollout_id


def is_layer(header: PartHeader) -> bool:
    """Whether a part is one layer of several."""
    return header.layers[1] - header.layers[0] < len(header.layer_ids)


def own_key(name: str) -> str:
    """Returns the key of an object that FastDeploy has none for; injective, and never one that p2pstore drops."""
    return OWN_PREFIX + name.replace("8888", "888!8")  # "!" is in no name


def check_key(key: str) -> None:
    """Raises UnsupportedError for keys that p2pstore would drop, or take for its own."""
    if SENTINEL in key:
        raise UnsupportedError(
            f"p2pstore says that it stores keys with {SENTINEL} in them, and drops them ({key!r:.100})",
            hint="choose other ids, or another store",
        )
    if key == _RESERVED[0] or key.startswith(_RESERVED[1]) or key.startswith(OWN_PREFIX):
        raise UnsupportedError(f"p2pstore's key {key!r:.100} is taken", hint="choose other ids, or another store")


# --- values -------------------------------------------------------------------------------------------------------


def encode(payload: memoryview, header: PartHeader, config: RdmaConfig) -> tuple[bytes | npt.NDArray[Any], str]:
    """Returns the value of a whole rollout or layer, in memory of its own, and its dtype's code.

    Raises:
        UnsupportedError: ``dtype`` does not hold the model's ids.
    """
    schema = header.schema()
    code = dtype_bytes(config.dtype or None, schema)
    if schema.num_experts - 1 > np.iinfo(code).max:
        raise UnsupportedError(
            f"dtype {config.dtype} does not hold ids of {schema.num_experts} experts", hint="choose a wider dtype"
        )
    part = header.part()
    given: npt.NDArray[Any] = np.frombuffer(payload, _little(header.dtype)).reshape(
        part.num_layers, part.num_tokens, schema.top_k
    )
    if config.pad_to > part.num_tokens:
        value = np.full((part.num_layers, config.pad_to, schema.top_k), fill_value(np.dtype(code)), code)
        value[:, : part.num_tokens] = given
    else:
        value = given.astype(code)
    if is_layer(header):
        return value[0], code
    return (value if config.value == "array" else value.tobytes()), code


def decode(raw: memoryview, header: PartHeader, code: str) -> memoryview:
    """Returns the payload in a value that ``encode`` made.

    Raises:
        CorruptDataError: it has another size, or ids that the model does not have.
    """
    part, schema = header.part(), header.schema()
    row = part.num_layers * schema.top_k * np.dtype(code).itemsize
    if raw.nbytes % row:
        raw = memoryview(unpickled(raw))
    tokens = raw.nbytes // row
    if raw.nbytes % row or tokens < part.num_tokens:
        raise CorruptDataError(f"p2pstore's value has {raw.nbytes} bytes, which do not hold {part}")
    if np.dtype(code) == _little(header.dtype) and tokens == part.num_tokens:
        return raw
    rows = np.frombuffer(raw, code).reshape(part.num_layers, tokens, schema.top_k)[:, : part.num_tokens]
    if rows.size and not (int(rows.min()) >= 0 and int(rows.max()) < schema.num_experts):
        raise CorruptDataError(f"p2pstore's value has ids that {schema} does not have")
    return memoryview(rows.astype(_little(header.dtype)).reshape(-1).view(np.uint8).data)


def unpickled(raw: memoryview) -> bytes | memoryview:
    """Returns the bytes in a pickle of bytes, which is what p2pstore up to 0.1.13 makes of them; else ``raw``.

    The pickle is looked at, never run.
    """
    if bytes(raw[:1]) != b"\x80" or bytes(raw[-1:]) != b".":
        return raw
    found: list[bytes] = []
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(raw)):
            if opcode.name in _BYTES and isinstance(argument, bytes):
                found.append(argument)
            elif opcode.name not in _PICKLED:
                return raw
    except (ValueError, IndexError):
        return raw
    return found[0] if len(found) == 1 else raw


def _little(dtype: str) -> np.dtype[Any]:
    little: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    return little
