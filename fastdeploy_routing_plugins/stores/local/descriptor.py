"""Open descriptors that have an owner from the system call on, so that no interrupt leaves one open.

Between ``os.open`` and the assignment of the number that it returns, Python may run a signal handler, and what that
raises (``KeyboardInterrupt``) loses the number for good. ctypes makes the owner here within the call itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import UnsupportedError

if TYPE_CHECKING:
    from types import TracebackType

_OPENAT2 = 437  # the same on all architectures that Linux gained it on (5.6)
_NO_SYMLINKS = 0x04


def refuse_copy(owner: object) -> NoReturn:
    """Serves as ``__reduce__`` of what owns a descriptor or a mapping: a copy would close it under the original."""
    raise UnsupportedError(
        f"a {type(owner).__name__.lstrip('_')} holds files open, so it cannot be copied or pickled",
        hint="pickle store.resolved instead, and open the store again there: open_store(resolved)",
    )


class Descriptor(ctypes.c_int):
    """An open descriptor. Closed at the end of a ``with`` block, or with the last reference, whichever is first.

    Only the functions of this module make one: a fresh ``c_int`` is 0, and 0 is somebody's descriptor.
    """

    def __new__(cls, *_: object) -> NoReturn:
        """Raises TypeError; ctypes goes another way."""
        raise TypeError("descriptors are made by open_at, open_below and duplicate")

    @property
    def fd(self) -> int:
        """Its number; -1 when closed."""
        return self.value

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes it; harmless when closed. Raises OSError if a network file system could not keep what was written."""
        fd, self.value = self.value, -1
        if fd >= 0:
            os.close(fd)

    __reduce__ = refuse_copy


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_SIZE = ctypes.c_size_t(ctypes.sizeof(_How))

_libc = ctypes.CDLL(None, use_errno=True)
_libc.openat.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int)
_libc.openat.restype = Descriptor
_libc.fcntl.argtypes = (ctypes.c_int, ctypes.c_int)
_libc.fcntl.restype = Descriptor
_libc.syscall.restype = Descriptor


@lru_cache(maxsize=8)
def _how(flags: int) -> Any:
    return ctypes.byref(_How(flags, 0, _NO_SYMLINKS))


def open_at(folder: int, path: str, flags: int, mode: int = 0o666) -> Descriptor:
    """Opens a file; not inherited by other programs.

    Args:
        folder: Descriptor of the folder where ``path`` starts; of no meaning if it is absolute.
        path: Without NUL.
        flags: As for ``os.open``.
        mode: Of a file that is created; the umask is taken off.

    Raises:
        OSError: it cannot be opened.
    """
    raw = os.fsencode(path)
    while True:
        opened: Descriptor = _libc.openat(folder, raw, flags | os.O_CLOEXEC, mode)
        if opened.value >= 0:
            return opened
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def open_below(folder: int, path: str, flags: int) -> Descriptor:
    """Opens what ``path`` leads to below a folder, following no symbolic link on the way, in one system call.

    Raises:
        OSError: as ``open_at``; also if the system call is not to be had here.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)
    opened: Descriptor = _libc.syscall(_OPENAT2, folder, os.fsencode(path), _how(flags | os.O_CLOEXEC), _HOW_SIZE)
    if opened.value >= 0:
        return opened
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), path)


def duplicate(fd: int) -> Descriptor:
    """Returns a second descriptor of the same open file. Raises OSError."""
    copy: Descriptor = _libc.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
    if copy.value >= 0:
        return copy
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
