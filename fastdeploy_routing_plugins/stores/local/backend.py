"""The backend of ``local``: one safetensors file per object, read through memory mappings."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from ...backend import Blob, BlockingBackend, Buffer, Ranges
from ...errors import AlreadyExistsError, CorruptDataError, NotFoundError, StoreClosedError, StoreUnavailableError
from . import layout, safefile
from .descriptor import refuse_copy
from .folder import NOT_A_FOLDER, Folder, unavailable
from .mapping import file_memory, is_network, read_range
from .marker import open_folder
from .publish import publish, sweep
from .watch import Watchers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import LocalConfig

_FIRST_READ = 8192  # bytes; holds the head of all but very long parts
_TRIES = 100  # puts that meet an object which is deleted before it can be looked at


class LocalBackend(BlockingBackend):
    """Objects as files below one folder; any number of processes and machines may share it.

    New folders and files get the modes that the umask leaves, so a trainer of another user can read, and, where its
    group may write, delete. On network file systems reads copy: a mapped file that another machine deletes would kill
    the process that looks at it.
    """

    suffix = layout.SUFFIX
    """What the files' names end with."""

    def __init__(self, config: LocalConfig) -> None:
        self._path = config.path()
        self._fsync = config.fsync
        self._root: Folder | None = None
        self._mapped = True
        self._watchers = Watchers()

    __reduce__ = refuse_copy

    @property
    def path(self) -> str:
        """Absolute path of the store's folder."""
        return self._path

    def _open(self) -> None:
        root = open_folder(self._path)
        sweep(root)
        self._mapped = not is_network(root.fd)
        self._root = root

    def _close(self) -> None:
        # Calls that still run hold the folder; its descriptor is closed when the last of them ends.
        self._root = None
        self._watchers.close()

    def _opened(self) -> Folder:
        root = self._root
        if root is None:
            raise StoreClosedError(f"the store in {self._path} is not open")
        return root

    # --- writing ------------------------------------------------------------------------------------------------

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        root = self._opened()
        path = layout.place(name, self.suffix)
        pieces = self._pieces(name, header, payload)
        for _ in range(_TRIES):
            try:
                publish(root, path, pieces, fsync=self._fsync)
            except FileExistsError:
                with contextlib.suppress(NotFoundError):  # deleted meanwhile: the name is free again
                    stored = self._get(name, ()).header
                    raise AlreadyExistsError(f"{name} exists in {self._path}", header=stored) from None
            except OSError as err:
                raise self._failed(err, root, f"writing {payload.nbytes} bytes") from err
            else:
                return
        raise StoreUnavailableError(f"{name} is deleted and created again all the time", hint="who else writes it?")

    def _pieces(self, name: str, header: bytes, payload: Buffer) -> Sequence[bytes | memoryview]:
        """Returns an object's file."""
        return safefile.compose_head(header, payload), payload.data

    def _delete(self, names: Sequence[str]) -> int:
        root = self._opened()
        folders: dict[str, dict[str, list[str]]] = {}
        for name in names:
            namespace, rollout, file = layout.place(name, self.suffix).split("/")
            folders.setdefault(namespace, {}).setdefault(rollout, []).append(file)
        try:
            return sum(_delete_in(root, namespace, rollouts) for namespace, rollouts in folders.items())
        except OSError as err:
            raise self._failed(err, root, "deleting") from err

    def _clear(self, prefix: str) -> int:
        count = self._delete(self._list(prefix))
        root = self._opened()
        namespace, slash, rollout = prefix.partition("/")
        if not layout.within_rollout(prefix):  # folders that an interrupted put left empty
            for outer in [namespace] if slash else _folders(root, ".", namespace):
                for inner in _folders(root, outer, rollout):
                    with root.find(outer) as folder:
                        if folder is not None:
                            _remove_empty(folder, inner)
                _remove_empty(root, outer)
        return count

    # --- reading ------------------------------------------------------------------------------------------------

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        root = self._opened()
        path = layout.place(name, self.suffix)
        try:
            file = root.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            self._check_place(root)
            raise NotFoundError(f"{name} is not in {self._path}") from None
        except OSError as err:
            if err.errno in NOT_A_FOLDER:
                raise self._corrupt(name, "a symbolic link or a foreign file is in its place") from err
            raise self._failed(err, root, "reading") from err
        try:
            with file:
                found = os.fstat(file.fd)
                if not stat.S_ISREG(found.st_mode):
                    raise self._corrupt(name, "it is no regular file")
                return self._read(file.fd, found.st_size, ranges)
        except CorruptDataError as err:
            raise self._corrupt(name, err.message) from err
        except OSError as err:
            raise self._failed(err, root, "reading") from err

    def _head(self, fd: int, size: int) -> safefile.Head:
        """Finds an object in its file."""
        # The head is copied even if the payload is mapped: looking at a fresh mapping costs more.
        first: bytes | bytearray = os.pread(fd, _FIRST_READ, 0)
        length = safefile.head_size(first, size)
        if length > len(first):
            first = read_range(fd, 0, length)
        return safefile.parse_head(memoryview(first)[:length], size)

    def _read(self, fd: int, size: int, ranges: Ranges | None) -> Blob:
        head = self._head(fd, size)
        if ranges is None:
            memory = file_memory(fd, size, mapped=self._mapped)
            return Blob(head.header, (memory[head.start : head.start + head.nbytes],))
        if any(not 0 <= start <= stop <= head.nbytes for start, stop in ranges):
            raise CorruptDataError(f"the file holds {head.nbytes} bytes of payload, fewer than its name says")
        places = [(head.start + start, head.start + stop) for start, stop in ranges]
        if self._mapped and ranges:
            memory = file_memory(fd, size, mapped=True)
            return Blob(head.header, tuple([memory[start:stop] for start, stop in places]))
        pieces = tuple([read_range(fd, start, stop) for start, stop in places])
        if any(len(piece) != stop - start for piece, (start, stop) in zip(pieces, places, strict=True)):
            raise CorruptDataError("the file was cut off while it was read")
        return Blob(head.header, pieces)

    def _list(self, prefix: str) -> list[str]:
        root = self._opened()
        rollout = layout.within_rollout(prefix)
        try:
            names = _objects(root, *rollout, self.suffix) if rollout else _all_objects(root, prefix, self.suffix)
        except OSError as err:
            raise self._failed(err, root, "listing") from err
        if not names:
            self._check_place(root)
        return names

    def _wait(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        rollout = layout.within_rollout(prefix)
        if rollout:
            names = self._watchers.wait(self._path, rollout[0], lambda: self._list(prefix), seen, deadline)
            if names is not None:
                return names
        return super()._wait(prefix, seen, deadline)

    # --- errors -------------------------------------------------------------------------------------------------

    def _failed(self, err: OSError, root: Folder, doing: str) -> StoreUnavailableError:
        if isinstance(err, FileNotFoundError):
            self._check_place(root)
        return unavailable(err, doing, self._path)

    def _check_place(self, root: Folder) -> None:
        """Raises StoreUnavailableError if the store's folder was removed or replaced while it was open."""
        if not root.is_at(self._path):
            raise StoreUnavailableError(
                f"the store's folder {self._path} was removed or replaced", hint="open the store again"
            )

    def _corrupt(self, name: str, why: str) -> CorruptDataError:
        return CorruptDataError(
            f"{name} in {self._path}: {why}", hint="delete the rollout and produce it again", name=name
        )


def _objects(root: Folder, path: str, begin: str, suffix: str) -> list[str]:
    """Names of the objects in a rollout's folder whose part below that folder begins so, sorted."""
    found = [layout.object_of(file, suffix) for file in root.names(path)]
    return sorted([f"{path}/{name}" for name in found if name is not None and name.startswith(begin)])


def _all_objects(root: Folder, prefix: str, suffix: str) -> list[str]:
    """Names of the objects of all rollouts that match a prefix which ends before a rollout's own part."""
    namespace, slash, rollout = prefix.partition("/")
    names = []
    for outer in [namespace] if slash else _folders(root, ".", namespace):
        for inner in _folders(root, outer, rollout) if layout.is_folder(outer) else ():
            names += _objects(root, f"{outer}/{inner}", "", suffix)
    return names


def _folders(root: Folder, path: str, begin: str) -> list[str]:
    """Names of the folders of ours in ``path`` that begin so, in the order of the names of what is in them."""
    found = [name for name in root.names(path) if name.startswith(begin) and layout.is_folder(name)]
    return sorted(found, key=lambda name: f"{name}/")


def _delete_in(root: Folder, namespace: str, rollouts: dict[str, list[str]]) -> int:
    count = 0
    with root.find(namespace) as outer:
        if outer is None:
            return 0
        for rollout, files in rollouts.items():
            with outer.find(rollout) as folder:
                if folder is None:
                    continue
                count += sum([_unlink(folder, file) for file in files])
            _remove_empty(outer, rollout)
    _remove_empty(root, namespace)
    return count


def _unlink(folder: Folder, file: str) -> bool:
    try:
        os.unlink(file, dir_fd=folder.fd)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


def _remove_empty(parent: Folder, name: str) -> None:
    with contextlib.suppress(OSError):  # not empty, or another delete was faster
        os.rmdir(name, dir_fd=parent.fd)
