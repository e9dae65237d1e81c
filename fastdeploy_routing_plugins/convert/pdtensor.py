"""FastDeploy's file tree: ``ID/ID.pdtensor``, ``ID/layer_N.pdtensor``, or ``ID.pdtensor``, written by ``paddle.save``.

``RoutingStoreLocal`` of FastDeploy writes all layers of a request, ``[layers, tokens, top_k]``, into one file
(``use_fused_put``; the first trees with it had no folder), or ``[tokens, top_k]`` of each layer, numbered from 0 among
the MoE layers. The store ``local`` of this package writes the same with ``layout="pdtensor"``. Some versions of
FastDeploy pad with rows of -1, or what that wraps to; those at the end are dropped.

The files are pickles and are never run, see ``paddlepickle``. Symbolic links are not followed.
"""

from __future__ import annotations

import io
import os
import re
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidRecordError, MissingDependencyError, StoreUnavailableError
from ..stores.local.folder import NOT_A_FOLDER, Folder
from ..stores.local.pdtensor import is_footer
from . import paddlepickle
from .fastdeploy import from_the_start, ids_of
from .p2pstore import layer_range
from .payload import MAX_BYTES, too_large
from .rows import ForeignRows, every_layer

if TYPE_CHECKING:
    from ..record import RoutingRecord
    from ..schema import RoutingSchema

SUFFIX = ".pdtensor"
_LAYER = re.compile(r"layer_(0|[1-9][0-9]{0,4})\.pdtensor", re.ASCII)
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # a named pipe would wait for its writer


@dataclass(frozen=True, slots=True)
class Files:
    """One request's files.

    Attributes:
        rollout_id: The rollout's id, which names them.
        whole: Path of the file of all layers, below the tree; empty if there is none.
        layers: Paths of the files of single layers, by position.
    """

    rollout_id: str
    whole: str = ""
    layers: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tree:
    """What is in a folder.

    Attributes:
        rollouts: In the order of their ids.
        skipped: Paths that do not belong to such a tree; hidden ones are not listed.
    """

    rollouts: tuple[Files, ...]
    skipped: tuple[str, ...]


def decode(data: bytes, schema: RoutingSchema, *, layer: int | None = None) -> ForeignRows:
    """Returns the routing in one file, without padding at the end.

    Args:
        data: The file's bytes.
        schema: The model's schema.
        layer: Which layer (position) it is, if it is one; None: all.

    Raises:
        InvalidRecordError: it is no array of ``paddle.save``, or does not fit the schema.
    """
    return _rows([_array(data, layer)], [layer_range(layer, schema)], schema)[0]


def find(path: str | os.PathLike[str]) -> Tree:
    """Returns what is in a tree, from names alone.

    Raises:
        StoreUnavailableError: the folder cannot be listed.
    """
    rollouts, skipped = [], []
    try:
        with _opened(path) as tree:
            for name in sorted(tree.names(".")):
                if name.startswith("."):
                    continue
                files, others = _files(name, tree.names(name))
                if name.endswith(SUFFIX) and files is None:
                    rollouts.append(Files(name.removesuffix(SUFFIX), whole=name))
                elif files is not None:
                    rollouts.append(files)
                    skipped += [f"{name}/{other}" for other in others]
                else:
                    skipped.append(name)
    except OSError as err:
        raise _unreadable(path, err) from err
    return Tree(tuple(sorted(rollouts, key=lambda files: files.rollout_id)), tuple(skipped))


def sole(path: str | os.PathLike[str]) -> tuple[str, Tree] | None:
    """Returns the folder above and a tree of one rollout, if a folder holds nothing but that one's files.

    Raises:
        StoreUnavailableError: the folder cannot be listed.
    """
    above, rollout_id = os.path.split(os.path.realpath(path))
    try:
        with _opened(path) as folder:
            files, others = _files(rollout_id, folder.names("."))
    except OSError as err:
        raise _unreadable(path, err) from err
    return None if files is None or others else (above, Tree((files,), ()))


def _files(rollout_id: str, names: list[str]) -> tuple[Files | None, list[str]]:
    """Returns what a folder's names say, None if they are no request's, and those that do not belong there."""
    whole, layers, others = "", {}, []
    for name in sorted(names):
        if name == rollout_id + SUFFIX:
            whole = f"{rollout_id}/{name}"
        elif match := _LAYER.fullmatch(name):
            layers[int(match[1])] = f"{rollout_id}/{name}"
        elif not name.startswith("."):
            others.append(name)
    return (Files(rollout_id, whole, layers) if whole or layers else None), others


def load(path: str | os.PathLike[str], files: Files, schema: RoutingSchema) -> list[ForeignRows]:
    """Returns one request's routing: one item if all layers are there, else one for each run of layers.

    Args:
        path: The tree's folder.
        files: From ``find``.
        schema: The model's schema.

    Raises:
        InvalidRecordError: a file is no array of ``paddle.save``, does not fit the schema or the other layers, or the
            request has both kinds of files.
        StoreUnavailableError: a file cannot be read.
    """
    if files.whole and files.layers:
        raise InvalidRecordError(
            f"beside {files.whole!r}, of all layers, there are files of single layers",
            hint="they are of two runs; remove what is out of date",
        )
    with _opened(path) as tree:
        if files.whole:
            return _rows([_array(_read(tree, files.whole), None)], [(0, schema.num_layers)], schema)
        places = [layer_range(layer, schema) for layer in sorted(files.layers)]
        return _rows([_array(_read(tree, files.layers[start]), start) for start, _ in places], places, schema)


def encode(record: RoutingRecord, *, layer: int | None = None) -> bytes:
    """Returns what ``paddle.save`` writes of a record; int32 over 256 experts, since Paddle has no uint16.

    Args:
        record: Routing of all MoE layers, from token 0 on.
        layer: Which layer (position) alone; None: all.

    Raises:
        InvalidRecordError: layers or leading tokens are missing.
        MissingDependencyError: Paddle is not installed.
    """
    try:
        import paddle  # noqa: PLC0415 - takes seconds, and reading needs none
    except ImportError as err:
        raise MissingDependencyError(
            "Paddle writes these files and is not installed",
            hint="pip install 'fastdeploy-routing-plugins[cpu]'",
            module="paddle",
        ) from err
    start, stop = layer_range(layer, record.schema)
    dtype = "uint8" if record.schema.num_experts <= 256 else "int32"
    array: Any = np.ascontiguousarray(every_layer(from_the_start(record), dtype).transpose(1, 0, 2)[start:stop])
    file = io.BytesIO()
    paddle.save(array if layer is None else array[0], file)
    return file.getvalue()


def _array(data: bytes, layer: int | None) -> paddlepickle.Loaded:
    """Returns what is in a file, as ``[layers, tokens, top_k]``."""
    loaded = paddlepickle.load(data)
    if loaded.end < len(data) and not is_footer(data[loaded.end :]):
        raise InvalidRecordError(
            f"{len(data) - loaded.end} bytes stand behind the end of what paddle.save wrote",
            hint="they belong to something else, so the file is not trusted",
        )
    axes = "[layers, tokens, top_k]" if layer is None else "[tokens, top_k]"
    if loaded.array.ndim != (3 if layer is None else 2):
        raise InvalidRecordError(f"shape {loaded.array.shape} is not that of {axes}")
    return loaded if layer is None else replace(loaded, array=loaded.array[np.newaxis])


def _rows(
    loaded: list[paddlepickle.Loaded], places: list[tuple[int, int]], schema: RoutingSchema
) -> list[ForeignRows]:
    """Returns routing of some layers: one item for each run of layers, all of the same tokens, without padding."""
    first = loaded[0]
    for each, (start, stop) in zip(loaded, places, strict=True):
        layers, tokens, top_k = each.array.shape
        if (layers, top_k) != (stop - start, schema.top_k):
            raise InvalidRecordError(f"shape {each.array.shape} does not fit {schema}")
        if (tokens, each.array.dtype, each.tensor) != (first.array.shape[1], first.array.dtype, first.tensor):
            raise InvalidRecordError(
                f"layer {start} has {tokens} tokens of {each.array.dtype}, layer {places[0][0]} has "
                f"{first.array.shape[1]} of {first.array.dtype}",
                hint="the files are of two runs, or one is not finished",
            )
    together = first.array if len(loaded) == 1 else np.concatenate([each.array for each in loaded])
    ids, fill = ids_of(together.transpose(1, 0, 2), schema, bfloat16=first.tensor and first.array.dtype.kind == "u")
    ids = ForeignRows(ids, schema, fill=fill).unpadded().rows
    found, at = [], 0
    for start, stop in _runs(places):
        rows = ids[:, at : at + stop - start]
        found.append(ForeignRows(rows, schema, total_tokens=len(ids), layers=(start, stop), fill=fill))
        at += stop - start
    return found


def _runs(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns ascending ranges with those that touch joined."""
    runs: list[tuple[int, int]] = []
    for start, stop in places:
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        else:
            runs.append((start, stop))
    return runs


def _opened(path: str | os.PathLike[str]) -> Folder:
    try:
        return Folder.at(os.path.abspath(path))
    except OSError as err:
        raise _unreadable(path, err) from err


def _read(tree: Folder, path: str) -> bytes:
    try:
        with tree.open(path, _FLAGS) as opened:
            found = os.fstat(opened.fd)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidRecordError(f"{path!r} is no file")
            if found.st_size > MAX_BYTES:
                raise too_large(found.st_size)
            with open(opened.fd, "rb", closefd=False) as file:
                return file.read(found.st_size)
    except OSError as err:
        raise _unreadable(path, err) from err


def _unreadable(path: str | os.PathLike[str], err: OSError) -> Exception:
    if err.errno in NOT_A_FOLDER:
        return InvalidRecordError(
            f"{os.fspath(path)!r} is a symbolic link, or no folder", hint="links are not followed"
        )
    return StoreUnavailableError(f"{os.fspath(path)!r} cannot be read: {os.strerror(err.errno or 0)}")
