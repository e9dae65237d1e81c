"""Routing as files for others: ``.npy``, and ``.safetensors`` in the format of the store ``local``, read back too."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_routing_plugins.backend import Blob, Buffer
from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.files import write_whole
from fastdeploy_routing_plugins.cli.output import show_bytes
from fastdeploy_routing_plugins.digests import digest_payload, payload_of
from fastdeploy_routing_plugins.envelope import PartHeader, decode_header, encode_header
from fastdeploy_routing_plugins.errors import CorruptDataError, InvalidRecordError, UnsupportedError
from fastdeploy_routing_plugins.record import RoutingRecord
from fastdeploy_routing_plugins.store.reading import Piece, decode_piece
from fastdeploy_routing_plugins.stores.local.safefile import compose_head, head_size, parse_head

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

_LENGTH_BYTES = 8  # what a file begins with


@dataclass(frozen=True, slots=True)
class _Stream:
    file: BinaryIO

    def write(self, data: Any) -> int:
        return self.file.write(data)


def write_npy(file: BinaryIO, record: RoutingRecord, namespace: str) -> None:
    """Writes what ``numpy.load`` reads."""
    # Given a real file, NumPy writes by itself, and its errors do not say what is wrong.
    np.save(_Stream(file), record.routing, allow_pickle=False)


def write_safetensors(file: BinaryIO, record: RoutingRecord, namespace: str) -> None:
    """Writes what the store ``local`` would hold for this range."""
    routing = np.ascontiguousarray(record.routing)
    payload = payload_of(routing)
    header = PartHeader(
        namespace=namespace,
        rollout_id=record.key.rollout_id,
        choice=record.key.choice,
        kind=record.key.kind,
        attempt=record.attempt,
        producer=", ".join(record.producers),
        time_ns=time.time_ns(),
        num_experts=record.schema.num_experts,
        top_k=record.schema.top_k,
        layer_ids=record.schema.layer_ids,
        dtype=record.schema.dtype,
        layers=record.part.layers,
        tokens=record.part.tokens,
        total_tokens=record.total_tokens,
        digests=digest_payload(payload, record.part, record.schema.row_bytes),
        weight_versions=tuple((span.start, span.stop, span.version) for span in record.weight_versions),
    )
    file.write(compose_head(encode_header(header), Buffer(payload, routing.shape, record.schema.dtype)))
    file.write(payload)


_WRITERS: dict[str, Callable[[BinaryIO, RoutingRecord, str], None]] = {
    ".npy": write_npy,
    ".safetensors": write_safetensors,
}
ENDINGS = tuple(_WRITERS)
"""How the names of such files end."""


def write_file(path: Path, record: RoutingRecord, namespace: str, force: bool) -> None:
    """Writes a file that appears whole or not at all; its ending decides the format.

    Args:
        path: Where to.
        record: The routing.
        namespace: Where the routing was stored.
        force: Whether an existing file is replaced.

    Raises:
        UsageProblem: the file exists.
        Failure: it cannot be written.
    """
    write_whole(path, force, lambda file: _WRITERS[path.suffix](file, record, namespace))


def about(record: RoutingRecord) -> dict[str, Any]:
    """Returns what documents say of a record that was saved."""
    return {
        "shape": list(record.routing.shape),
        "dtype": str(record.routing.dtype),
        "layers": list(record.part.layers),
        "tokens": list(record.part.tokens),
        "total_tokens": record.total_tokens,
        "bytes": record.routing.nbytes,
    }


def summary(record: RoutingRecord) -> str:
    """Returns the same for people."""
    shape = " x ".join(map(str, record.routing.shape))
    return f"{shape} (layers x tokens x top-k), {record.routing.dtype}, {show_bytes(record.routing.nbytes)}"


def read_safetensors(path: Path) -> RoutingRecord:
    """Reads a file that ``write_file`` wrote, or a part's file of the store ``local``; every digest is compared.

    Raises:
        UsageProblem: the file cannot be read.
        CorruptDataError: it is no such file, or damaged.
        UnsupportedError: a newer version of this package wrote it.
        InvalidRecordError: it holds no routing, but a mark of the store.
    """
    try:
        with open(path, "rb") as file:
            return _read(file)
    except OSError as err:
        raise UsageProblem(f"cannot read {str(path)!r}: {err.strerror or err}") from err
    except (CorruptDataError, UnsupportedError, InvalidRecordError) as err:
        err.message = f"{str(path)!r}: {err.message}"
        raise


def _read(file: BinaryIO) -> RoutingRecord:
    size = os.fstat(file.fileno()).st_size
    beginning = file.read(_LENGTH_BYTES)
    head = parse_head(beginning + file.read(head_size(beginning, size) - _LENGTH_BYTES), size)
    header = decode_header(head.header)
    if not isinstance(header, PartHeader):
        raise InvalidRecordError("this file of a store holds no routing, but says that a rollout is over")
    what = header.what()
    payload = memoryview(file.read(head.nbytes))
    _, routing = decode_piece(
        Piece(header.name(), what, what.part, what.part), Blob(head.header, (payload,)), verify=True
    )
    return RoutingRecord(
        routing=routing,
        key=header.key(),
        schema=header.schema(),
        part=header.part(),
        total_tokens=header.total_tokens,
        attempt=header.attempt,
        weight_versions=header.spans(),
        producers=(header.producer,),
    )
