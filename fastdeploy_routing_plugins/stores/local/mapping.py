"""Files as read-only memory, without a descriptor per mapping.

``mmap.mmap`` keeps a duplicate of the descriptor for as long as the mapping lives, so a trainer that holds a thousand
records would run out of descriptors. Here the mapping is owned by the memory's views alone.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

import numpy as np

from .descriptor import refuse_copy

_SMALL = 64 << 10  # bytes; below, copying is faster than mapping, and mappings are limited per process
_FAILED = ctypes.c_void_p(-1).value
# Where a file that another machine deletes or cuts vanishes under the mapping, which kills the process (SIGBUS).
_NETWORK = frozenset(
    {
        0x6969,  # NFS
        0xFF534D42,  # CIFS
        0xFE534D42,  # SMB2
        0x517B,  # SMB
        0x65735546,  # FUSE
        0x0BD00BD0,  # Lustre
        0x00C36400,  # Ceph
        0x01021997,  # 9P
        0x47504653,  # GPFS
        0x19830326,  # BeeGFS
        0x5346414F,  # AFS
    }
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class _Mapping:
    """Owner of a mapping: NumPy keeps it alive as the base of the array that shows the memory."""

    __slots__ = ("__array_interface__", "_unmap")

    def __init__(self, address: int, size: int) -> None:
        self._unmap = _libc.munmap
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, True),
        }

    __reduce__ = refuse_copy

    def __del__(self) -> None:
        interface = getattr(self, "__array_interface__", None)  # None: an interrupt came before
        if interface is not None:
            self._unmap(interface["data"][0], interface["shape"][0])


def file_memory(fd: int, size: int, *, mapped: bool) -> memoryview:
    """Returns a file's bytes, read-only; the descriptor may be closed afterwards.

    Args:
        fd: The file, open for reading.
        size: Its size in bytes.
        mapped: Whether it may be mapped; otherwise, and if it is small, the bytes are copied.

    Raises:
        OSError: it cannot be read.
    """
    if not mapped or size <= _SMALL:
        return memoryview(read_range(fd, 0, size))
    # Without MAP_POPULATE: pages come in as they are read, which costs a full read nothing and spares a partial one.
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        if number in (errno.ENOMEM, errno.ENODEV, errno.EAGAIN):  # too many mappings, or a file system without
            return memoryview(read_range(fd, 0, size))
        raise OSError(number, os.strerror(number))
    return np.asarray(_Mapping(address, size)).data


def read_range(fd: int, start: int, stop: int) -> bytes | bytearray:
    """Returns a range of a file's bytes; fewer if the file ends before."""
    first = os.pread(fd, stop - start, start)
    if len(first) == stop - start or not first:
        return first
    data = bytearray(first)  # one call moves at most 2 GiB
    while len(data) < stop - start:
        piece = os.pread(fd, stop - start - len(data), start + len(data))
        if not piece:
            break
        data += piece
    return data


def is_network(fd: int) -> bool:
    """Whether a folder is on a file system that other machines change, as far as the kernel tells."""
    buffer = ctypes.create_string_buffer(512)
    if _libc.fstatfs(fd, buffer) != 0:
        return True
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF in _NETWORK  # f_type comes first
