"""Folders held open by descriptor: what is opened below them cannot be led elsewhere by a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from ...errors import StoreUnavailableError
from .descriptor import Descriptor, open_at, open_below, refuse_copy

if TYPE_CHECKING:
    from types import TracebackType

_HINTS = {
    errno.ENOSPC: "the file system is full: delete rollouts that are no longer needed, or choose another store_dir",
    errno.EDQUOT: "the disk quota is used up: delete rollouts that are no longer needed",
    errno.EFBIG: "the process may not write files of this size: see ulimit -f",
    errno.EIO: "the device or the network file system reports an error: see the kernel's log",
    errno.ESTALE: "the network file system lost the folder: is it still exported?",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "this user may not do that in the store's folder: compare its owner and mode",
    errno.EPERM: "this user may not do that in the store's folder: compare its owner and mode",
    errno.EMFILE: "the process has too many open files: see ulimit -n",
    errno.ENFILE: "the machine has too many open files",
    errno.ETIMEDOUT: "another process holds its claim on this name; if none lives, remove the .claim file in .tmp",
}
NOT_A_FOLDER = (errno.ENOTDIR, errno.ELOOP)

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# The system call is unknown, forbidden by a sandbox, or was interrupted: the long way tells.
_TRY_STEPS = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EINTR, errno.EAGAIN)


class Folder:
    """An open folder. Closed at the end of a ``with`` block, or with the last reference, whichever is first."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: Descriptor) -> None:
        """Takes over a descriptor."""
        self._descriptor = descriptor

    __reduce__ = refuse_copy

    @classmethod
    def at(cls, path: str) -> Folder:
        """Opens a folder by its absolute path; symbolic links are followed. Raises OSError."""
        return cls(open_at(-1, path, os.O_RDONLY | os.O_DIRECTORY))

    @property
    def fd(self) -> int:
        """The descriptor's number; -1 when closed."""
        return self._descriptor.value

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the descriptor; harmless when closed."""
        self._descriptor.close()

    def open(self, path: str, flags: int) -> Descriptor:
        """Opens what ``path`` leads to below this folder, without following any symbolic link.

        Args:
            path: Names joined by ``/``, none of them ``..``.
            flags: For ``os.open``; nothing is created.

        Returns:
            A descriptor, not inherited by other programs.

        Raises:
            OSError: it is missing (``FileNotFoundError``), or something on the way, or a symbolic link, is in its
                place (``errno`` in ``NOT_A_FOLDER``).
        """
        flags |= os.O_NOFOLLOW
        try:
            return open_below(self.fd, path, flags)
        except OSError as err:
            if err.errno not in _TRY_STEPS:
                raise
        *folders, last = path.split("/")
        with contextlib.ExitStack() as stack:
            folder = self.fd
            for name in folders:
                folder = stack.enter_context(open_at(folder, name, _FOLDER_FLAGS)).fd
            return open_at(folder, last, flags)

    def create(self, name: str) -> Descriptor:
        """Creates a file in this folder, with the mode that the umask leaves, for reading and writing.

        Raises:
            OSError: there is something of this name (``FileExistsError``), or it cannot be created.
        """
        return open_at(self.fd, name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)

    def child(self, path: str) -> Folder:
        """Opens a folder below this one; raises like ``open``."""
        return Folder(self.open(path, _FOLDER_FLAGS))

    def make(self, path: str) -> Folder:
        """Opens a folder below this one; what is missing is created with the mode that the umask leaves.

        Raises:
            OSError: as ``open``, or it cannot be created. ``FileNotFoundError`` if others delete it meanwhile.
        """
        try:
            return self.child(path)
        except FileNotFoundError:
            pass
        parent, _, name = path.rpartition("/")
        with self.make(parent) if parent else self.child(".") as outer:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=outer.fd)
            return outer.child(name)

    def names(self, path: str) -> list[str]:
        """Returns what is in a folder below this one, in any order: nothing if it is missing or no folder.

        Each call has a descriptor of its own, since threads must not share one that they list.
        """
        with self.find(path) as folder:
            return [] if folder is None else os.listdir(folder.fd)

    def find(self, path: str) -> Folder | contextlib.nullcontext[None]:
        """Opens a folder below this one, for a ``with`` block; the block gets None if it is missing or no folder."""
        try:
            return self.child(path)
        except OSError as err:
            if err.errno == errno.ENOENT or err.errno in NOT_A_FOLDER:
                return contextlib.nullcontext()
            raise

    def is_at(self, path: str) -> bool:
        """Whether ``path`` still leads to this folder."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.stat(path), os.fstat(self.fd))
        return False


def unavailable(err: OSError, doing: str, store_dir: str) -> StoreUnavailableError:
    """Returns what callers get for an error of the operating system."""
    what = os.strerror(err.errno) if err.errno else str(err)
    hint = "something is in the way of the store's own folder: move it away" if err.errno in NOT_A_FOLDER else ""
    hint = hint or _HINTS.get(err.errno or 0, "")
    return StoreUnavailableError(f"{doing} in {store_dir}: {what}", hint=hint, errno=err.errno)
