"""``local`` with ``layout="pdtensor"``: FastDeploy's own file tree, for trainers that read it.

A rollout whose layers come together is ``<id>/<id>.pdtensor``, one whose layers come one by one is
``<id>/layer_<n>.pdtensor``; both are what ``paddle.save`` writes of an array. Files appear whole. They hold exactly
the rows that there are, as uint8 up to 256 experts, else as int32: Paddle would read uint16 as bfloat16.

Behind the pickle stands what this package knows of the object, which ``paddle.load`` does not look at. A hard link in
the folder ``.fd-routing`` carries the object's name, so everything works as with the other layout, reading included,
and no pickle is ever loaded here. What the tree has no place for is refused: choices other than 0, ids that are no
file names, parts that are neither whole nor one layer.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backend import Blob
from ...envelope import PartHeader, decode_header
from ...errors import AbsentError, AlreadyExistsError, CorruptDataError, UnsupportedError
from ...names import PartName, parse_name
from . import layout, safefile
from .backend import LocalBackend
from .folder import Folder
from .mapping import read_range
from .marker import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...backend import Buffer, Ranges
    from .config import LocalConfig

_SUFFIX = ".pdtensor"
_FOOTER = struct.Struct(
    "<8sQQIBB2x"
)  # magic, payload's start and bytes, header's bytes, id's bytes here and canonical
_MAGIC = b"FDRPDT01"
_MAX_FILE_NAME = 255


@dataclass(frozen=True, slots=True)
class _Footer:
    """The last bytes of a file: where payload and header are, how wide ids are here, and how wide canonical ones."""

    start: int
    nbytes: int
    header: int
    width: int
    canonical: int


class PdtensorBackend(LocalBackend):
    """See the module. The folder itself may hold whatever else there is; only files of this backend are touched."""

    suffix = _SUFFIX

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        self._tree = self._path
        self._path = os.path.join(self._tree, HIDDEN)

    # --- writing ------------------------------------------------------------------------------------------------

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        public = _public(name, header)
        try:
            super()._put(name, header, payload)
        except AlreadyExistsError:
            if public:
                self._show(name, public)  # its writer may have died before it did
            raise
        if public:
            self._show(name, public)

    def _pieces(self, name: str, header: bytes, payload: Buffer) -> Sequence[bytes | memoryview]:
        if not payload.shape:
            return header, _FOOTER.pack(_MAGIC, 0, 0, len(header), 1, 1)
        array: Any = np.frombuffer(payload.data, payload.dtype).reshape(payload.shape)
        canonical = array.itemsize
        part = parse_name(name).object
        if isinstance(part, PartName) and part.part.num_layers != part.total_layers:
            array = array[0]  # [tokens, top_k], as FastDeploy has single layers
        if canonical > 1:
            array = array.astype("int32")
        pickled = _saved(array)
        start = pickled.rfind(array.tobytes())
        footer = _FOOTER.pack(_MAGIC, start, array.nbytes, len(header), array.itemsize, canonical)
        return pickled, header, footer

    def _show(self, name: str, public: str) -> None:
        """Gives an object its place in FastDeploy's tree, atomically, instead of an older attempt's."""
        folder, _, file = public.partition("/")
        source = layout.place(name, _SUFFIX)
        temporary = f".{os.urandom(16).hex()}.new"
        try:
            with Folder.at(self._tree) as tree, tree.make(folder) as target:
                os.link(source, temporary, src_dir_fd=self._opened().fd, dst_dir_fd=target.fd, follow_symlinks=False)
                try:
                    os.rename(temporary, file, src_dir_fd=target.fd, dst_dir_fd=target.fd)
                finally:
                    with contextlib.suppress(FileNotFoundError):  # renaming one link of a file to another does nothing
                        os.unlink(temporary, dir_fd=target.fd)
        except FileNotFoundError:
            return  # deleted meanwhile
        except OSError as err:
            raise self._failed(err, self._opened(), f"writing {public}") from err

    def _delete(self, names: Sequence[str]) -> int:
        shown = dict([place for name in names if (place := self._shown(name)) is not None])
        count = super()._delete(names)
        for public, rollout in shown.items():
            self._hide(public, rollout)
        return count

    def _shown(self, name: str) -> tuple[str, str] | None:
        """Returns an object's place in FastDeploy's tree, if it is what stands there, and its rollout's prefix."""
        try:
            public = _public(name, self._get(name, ()).header)
            ours = os.stat(layout.place(name, _SUFFIX), dir_fd=self._opened().fd, follow_symlinks=False)
            if public and os.path.samestat(ours, os.stat(os.path.join(self._tree, public), follow_symlinks=False)):
                return public, "/".join(name.split("/")[:4]) + "/"
        except (AbsentError, CorruptDataError, UnsupportedError, OSError):
            pass
        return None

    def _hide(self, public: str, rollout: str) -> None:
        """Removes a deleted object's file from FastDeploy's tree, or puts the newest attempt that is left there."""
        for name in reversed(self._list(rollout)):
            with contextlib.suppress(AbsentError, CorruptDataError, UnsupportedError):
                if _public(name, self._get(name, ()).header) == public:
                    self._show(name, public)
                    return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._tree, public))
        with contextlib.suppress(OSError):  # other layers are still there
            os.rmdir(os.path.join(self._tree, os.path.dirname(public)))

    # --- reading ------------------------------------------------------------------------------------------------

    def _head(self, fd: int, size: int) -> safefile.Head:
        footer = _footer(fd, size)
        end = size - _FOOTER.size
        header = read_range(fd, end - footer.header, end)
        return safefile.Head(bytes(header), footer.start, footer.nbytes)

    def _read(self, fd: int, size: int, ranges: Ranges | None) -> Blob:
        footer = _footer(fd, size)
        if footer.width == footer.canonical:
            return super()._read(fd, size, ranges)
        whole = super()._read(fd, size, None)
        narrow = np.frombuffer(whole.payload[0], f"<i{footer.width}").astype(f"<u{footer.canonical}").tobytes()
        if ranges is None:
            return Blob(whole.header, (narrow,))
        if any(not 0 <= start <= stop <= len(narrow) for start, stop in ranges):
            raise CorruptDataError(f"the file holds {len(narrow)} bytes of payload, fewer than its name says")
        return Blob(whole.header, tuple([narrow[start:stop] for start, stop in ranges]))


def _saved(array: Any) -> bytes:
    import paddle  # noqa: PLC0415 - takes seconds, and who only reads needs none

    file = io.BytesIO()
    paddle.save(array, file)
    return file.getvalue()


def is_footer(tail: bytes) -> bool:
    """Whether the bytes behind a file's pickle are what this package writes there."""
    return len(tail) >= _FOOTER.size and tail.startswith(_MAGIC, len(tail) - _FOOTER.size)


def _footer(fd: int, size: int) -> _Footer:
    """Reads what stands at the end of a file.

    Raises:
        CorruptDataError: it is not one of ours, or was cut off.
    """
    end = size - _FOOTER.size
    raw = os.pread(fd, _FOOTER.size, max(end, 0))
    if end < 0 or len(raw) != _FOOTER.size:
        raise CorruptDataError(f"a file of {size} bytes is none of ours")
    magic, start, nbytes, header, width, canonical = _FOOTER.unpack(raw)
    if magic != _MAGIC or start + nbytes + header > end or (width, canonical) not in ((1, 1), (4, 2), (4, 4)):
        raise CorruptDataError("the file's end is not as this package writes it: cut off, or written by another")
    return _Footer(start, nbytes, header, width, canonical)


def _public(name: str, header: bytes) -> str:
    """Returns an object's place in FastDeploy's tree, ``folder/file``; nothing for seals and abort marks.

    Raises:
        UnsupportedError: the tree has no place for it.
    """
    part = parse_name(name).object
    if not isinstance(part, PartName):
        return ""
    stored = decode_header(header, name=name)
    assert isinstance(stored, PartHeader)
    rollout_id = stored.rollout_id
    if stored.choice:
        raise _no_place(rollout_id, f"choice {stored.choice}", "one answer a request, n=1")
    if part.part.tokens != (0, part.total_tokens):
        raise _no_place(rollout_id, f"a part ({part.part})", "whole rollouts, or whole layers")
    if part.part.num_layers == part.total_layers:
        file = f"{rollout_id}{_SUFFIX}"
    elif part.part.num_layers == 1:
        file = f"layer_{part.part.layers[0]}{_SUFFIX}"
    else:
        raise _no_place(rollout_id, f"a part ({part.part})", "all layers at once, or one by one")
    if "/" in rollout_id or "\0" in rollout_id or rollout_id.startswith("."):
        raise _no_place(rollout_id, "an id that is no plain file name", "ids without a slash or a leading dot")
    if len(os.fsencode(rollout_id)) + len(_SUFFIX) > _MAX_FILE_NAME:
        raise _no_place(rollout_id, "so long an id", f"at most {_MAX_FILE_NAME - len(_SUFFIX)} bytes")
    return f"{rollout_id}/{file}"


def _no_place(rollout_id: str, what: str, instead: str) -> UnsupportedError:
    return UnsupportedError(
        f"FastDeploy's file tree has no place for {what} ({rollout_id!r:.100})",
        hint=f"{instead}; or leave layout='pdtensor' and read with this package",
    )
