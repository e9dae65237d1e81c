"""Folders held open by descriptor: what is opened below them cannot be led elsewhere by a symbolic link."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

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

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2 = 437  # the same on all architectures that Linux gained it on (5.6)
_NO_SYMLINKS = 0x04
# The system call is unknown, forbidden by a sandbox, or was interrupted: the long way tells.
_TRY_STEPS = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EINTR, errno.EAGAIN)

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_SIZE = ctypes.c_size_t(ctypes.sizeof(_How))


@lru_cache(maxsize=8)
def _how(flags: int) -> Any:
    return ctypes.byref(_How(flags, 0, _NO_SYMLINKS))


class Folder:
    """An open folder. Closed at the end of a ``with`` block, or with the last reference, whichever is first.

    Attributes:
        fd: The descriptor.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        """Takes over a descriptor."""
        self.fd = fd

    @classmethod
    def at(cls, path: str) -> Folder:
        """Opens a folder by path; symbolic links are followed. Raises OSError."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY))

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

    def open(self, path: str, flags: int) -> int:
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
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        if sys.platform == "linux":
            fd: int = _libc.syscall(_OPENAT2, self.fd, path.encode(), _how(flags), _HOW_SIZE)
            if fd >= 0:
                return fd
            number = ctypes.get_errno()
            if number not in _TRY_STEPS:
                raise OSError(number, os.strerror(number), path)
        return self._open_in_steps(path, flags)

    def _open_in_steps(self, path: str, flags: int) -> int:
        *folders, last = path.split("/")
        with contextlib.ExitStack() as stack:
            folder = self
            for name in folders:
                folder = stack.enter_context(Folder(os.open(name, _FOLDER_FLAGS, dir_fd=folder.fd)))
            return os.open(last, flags, dir_fd=folder.fd)

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
        try:
            fd = self.open(path, _FOLDER_FLAGS)
        except OSError as err:
            if err.errno == errno.ENOENT or err.errno in NOT_A_FOLDER:
                return []
            raise
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

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
