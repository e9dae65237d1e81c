"""Routing as files for others: ``.npy``, and ``.safetensors`` in the format of the store ``local``."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_routing_plugins.backend import Buffer
from fastdeploy_routing_plugins.cli.failures import Failure, UsageProblem
from fastdeploy_routing_plugins.envelope import PartHeader, digest_payload, encode_header, payload_of
from fastdeploy_routing_plugins.stores.local.safefile import compose_head

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from fastdeploy_routing_plugins.record import RoutingRecord


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


def check_target(path: Path, force: bool) -> None:
    """Checks, before anything is read, that a file can be written there.

    Raises:
        UsageProblem: the ending is unknown, the folder is missing, or the file exists.
    """
    if path.suffix not in _WRITERS:
        raise UsageProblem(f"{str(path)!r} must end in {' or '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise UsageProblem(f"there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise UsageProblem(f"{str(path)!r} is a folder")
    if not force and os.path.lexists(path):
        raise _exists(path)


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
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        try:
            with open(temporary, "xb") as file:
                _WRITERS[path.suffix](file, record, namespace)
            if force:
                os.replace(temporary, path)
            else:
                _rename_new(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as err:
        raise Failure("write", f"cannot write {str(path)!r}: {err.strerror or err}") from err


def _rename_new(temporary: Path, path: Path) -> None:
    """Renames without replacing what appeared meanwhile."""
    try:
        os.link(temporary, path)
    except OSError as err:
        if err.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        # A file system without hard links: taking the name first leaves an empty file for a moment.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        os.replace(temporary, path)


def _exists(path: Path) -> UsageProblem:
    return UsageProblem(f"{str(path)!r} exists", "--force overwrites it")
