"""Folders held open by descriptor: what is opened below them cannot be led elsewhere by a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from ...errors import StoreUnavailableError

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


class Folder:
    """An open folder. Closed at the end of a ``with`` block, or with the last reference, whichever is first.

    Attributes:
        fd: The descriptor.
    """

    __slots__ = ("fd",)

    def __init__(self, path: str, parent: Folder | None = None) -> None:
        """Opens a folder: by any path, or, below ``parent``, by one name that must not be a symbolic link."""
        self.fd = -1
        if parent is None:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        else:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent.fd)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes the descriptor; harmless when closed."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def child(self, name: str, *, create: bool = False) -> Folder:
        """Opens a folder in this one; creates it, if asked and missing, with the mode that the umask leaves.

        Raises:
            OSError: it is missing (``FileNotFoundError``), or no folder (``errno`` in ``NOT_A_FOLDER``).
        """
        try:
            return Folder(name, self)
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=self.fd)
        return Folder(name, self)

    def find(self, name: str) -> Folder | contextlib.nullcontext[None]:
        """Opens a folder in this one, for a ``with`` block; the block gets None if it is missing or no folder."""
        try:
            return Folder(name, self)
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
    hint = "it is in the way of the store's own folder: move it away" if err.errno in NOT_A_FOLDER else ""
    hint = hint or _HINTS.get(err.errno or 0, "")
    return StoreUnavailableError(f"{doing} in {store_dir}: {what}", hint=hint, errno=err.errno)
