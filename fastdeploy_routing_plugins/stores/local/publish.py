"""Creating a file atomically: readers see it whole or not at all, and of several creators exactly one succeeds.

The bytes go to a temporary file, which is locked while its writer lives; then it gets its name by a hard link, which
fails if the name exists. What a dead writer leaves behind carries no lock, and the next one to open the store removes
it; this works across containers, whose process numbers mean nothing to each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import re
import stat
import time
from typing import TYPE_CHECKING

from .descriptor import duplicate, open_at, refuse_copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .descriptor import Descriptor
    from .folder import Folder

TEMPORARY = ".tmp"
_OURS = re.compile(r"[0-9a-f]{32}\.part|[0-9a-f]{40}\.claim", re.ASCII)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EINVAL, errno.EXDEV)
_NO_NOREPLACE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_RENAME_NOREPLACE = 1
_TRIES = 100  # lost races with deletes of the last object of a rollout, or with the removal of leftovers
_CLAIM_LIMIT = 10.0  # s another process may take between claiming a name and renaming a file

_libc = ctypes.CDLL(None, use_errno=True)


def publish(root: Folder, path: str, pieces: Sequence[bytes | memoryview], *, fsync: bool) -> None:
    """Creates a file from ``pieces``; missing folders are created.

    Args:
        root: The store's folder.
        path: The file's path below it, names joined by ``/``.
        pieces: The file's bytes.
        fsync: Whether to wait until the file survives a power failure.

    Raises:
        FileExistsError: the name is taken; nothing was changed.
        OSError: it cannot be done; nothing of it remains.
    """
    for _ in range(_TRIES):
        with _Temporary(root) as temporary:
            if not temporary.lock():
                continue
            temporary.write(pieces, fsync=fsync)
            for _ in range(_TRIES):
                try:
                    return _place(root, path, temporary, fsync=fsync)
                except FileNotFoundError:
                    if temporary.is_gone():
                        break
    raise FileNotFoundError(errno.ENOENT, "folders vanish as fast as they are created", path)


class _Temporary:
    """A temporary file in the store's folder, gone at the end of the ``with`` block or with the last reference."""

    _left = False  # whether there may be a file to remove
    _file: Descriptor

    def __init__(self, root: Folder) -> None:
        self.folder = root.make(TEMPORARY)
        self.name = f"{os.urandom(16).hex()}.part"
        self._left = True  # before it is, so that an interrupt in between leaves nothing behind
        try:
            self._file = self.folder.create(self.name)
        except BaseException:
            self.close()
            raise

    __reduce__ = refuse_copy

    def __enter__(self) -> _Temporary:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Removes the file and closes it; harmless when done already. What an interrupt cuts short can be repeated."""
        if self._left:
            # An error here leaves a file without a lock, which the next one to open the store removes.
            with contextlib.suppress(OSError):
                os.unlink(self.name, dir_fd=self.folder.fd)
            self._left = False
            if hasattr(self, "_file"):
                self._file.close()
            self.folder.close()

    def lock(self) -> bool:
        """Locks the file; False if somebody took it for a leftover before that."""
        return _lock(self._file.fd)

    def is_gone(self) -> bool:
        """Whether somebody removed the file."""
        return os.fstat(self._file.fd).st_nlink == 0

    def write(self, pieces: Sequence[bytes | memoryview], *, fsync: bool) -> None:
        """Writes all bytes, to where others can see them."""
        left = [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            written = os.writev(self._file.fd, left)  # at most 2 GiB at a time
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if left:
                left[0] = left[0][written:]
        if fsync:
            os.fsync(self._file.fd)
        # Network file systems send what they hold, and report a full disk, when a descriptor is closed; this one must
        # stay open for its lock.
        duplicate(self._file.fd).close()


def _place(root: Folder, path: str, temporary: _Temporary, *, fsync: bool) -> None:
    folders, _, file = path.rpartition("/")
    source = temporary.folder
    with root.make(folders or ".") as target:
        try:
            os.link(temporary.name, file, src_dir_fd=source.fd, dst_dir_fd=target.fd, follow_symlinks=False)
        except OSError as err:
            if err.errno not in _NO_LINKS:
                raise
            if not _rename_noreplace(source, temporary.name, target, file):
                with _claim(source, path):
                    _refuse_existing(target, file)
                    os.rename(temporary.name, file, src_dir_fd=source.fd, dst_dir_fd=target.fd)
        if fsync:
            _fsync_folder(target)
            while folders:  # each of them may be new
                folders = folders.rpartition("/")[0]
                with root.child(folders or ".") as folder:
                    _fsync_folder(folder)


def _fsync_folder(folder: Folder) -> None:
    try:
        os.fsync(folder.fd)
    except OSError as err:
        if err.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP):  # folders that cannot be synced alone
            raise


def _rename_noreplace(source: Folder, temporary: str, target: Folder, file: str) -> bool:
    """Renames a file unless the new name exists; False if the system or the file system cannot do that."""
    rename = getattr(_libc, "renameat2", None)
    if rename is None:
        return False
    if rename(source.fd, os.fsencode(temporary), target.fd, os.fsencode(file), _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_NOREPLACE:
        return False
    raise OSError(number, os.strerror(number), file)


def _refuse_existing(folder: Folder, file: str) -> None:
    try:
        os.stat(file, dir_fd=folder.fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)


@contextlib.contextmanager
def _claim(folder: Folder, what: str) -> Iterator[None]:
    """Holds the sole right to create a file where the file system has no atomic way; the last resort.

    A claim is a file that its owner keeps locked. The one of a dead owner can be locked, so others remove it.
    """
    name = f"{hashlib.blake2b(what.encode(), digest_size=20).hexdigest()}.claim"
    give_up = time.monotonic() + _CLAIM_LIMIT
    while True:
        try:
            file = folder.create(name)
        except FileExistsError:
            if time.monotonic() > give_up:
                raise TimeoutError(errno.ETIMEDOUT, f"{TEMPORARY}/{name} is in the way", what) from None
            with contextlib.suppress(OSError):
                _remove_unlocked(folder, name)
            time.sleep(0.001)
            continue
        with file:
            if not _lock(file.fd):
                continue
            try:
                yield
            finally:
                os.unlink(name, dir_fd=folder.fd)
            return


def _lock(fd: int) -> bool:
    """Locks a file just created; False if somebody took it for a leftover before that."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks; nobody can take the file for a leftover there either
        return True
    return os.fstat(fd).st_nlink > 0


def sweep(root: Folder) -> int:
    """Removes what dead writers left in the temporary folder; returns how many files. Living writers' files stay."""
    removed = 0
    with contextlib.suppress(OSError), root.child(TEMPORARY) as folder:
        for name in os.listdir(folder.fd):
            if _OURS.fullmatch(name):
                with contextlib.suppress(OSError):
                    removed += _remove_unlocked(folder, name)
    return removed


def _remove_unlocked(folder: Folder, name: str) -> bool:
    """Removes a file of a dead process; returns False if it is none. Raises OSError if its owner lives."""
    with open_at(folder.fd, name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(file.fd)
        # Only who holds the lock removes the file, so while it has a name, that is still this one.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink == 0:
            return False
        os.unlink(name, dir_fd=folder.fd)
    return True
