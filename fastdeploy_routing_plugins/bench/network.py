"""A network that has nothing but loopback, for what listens on every interface whatever it is told."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEW_NETWORK = 0x4000_0000  # CLONE_NEWNET of sched.h
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS of sockios.h, IFF_UP of if.h
_REQUEST = struct.Struct("16sh14x")  # struct ifreq


def obstacle() -> str:
    """Returns why this process cannot have a network of its own; empty: nothing speaks against it."""
    if not sys.platform.startswith("linux"):
        return "a network of its own needs Linux"
    return "" if os.geteuid() == 0 else "a network of its own needs root"


@contextmanager
def own_network() -> Iterator[str]:
    """While it lasts, this thread and the processes that it starts are in a network with nothing but loopback.

    Yields:
        Why that cannot be had, and everything is as it was; empty: they are.
    """
    why = obstacle()
    if why:
        yield why
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_NEW_NETWORK) != 0:
            yield f"a network of its own is refused: {os.strerror(ctypes.get_errno())}"
            return
        try:
            _loopback_up()
            yield ""
        finally:
            libc.setns(before, _NEW_NETWORK)
    finally:
        os.close(before)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = _REQUEST.unpack(fcntl.ioctl(any_socket, _GET_FLAGS, _REQUEST.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, _SET_FLAGS, _REQUEST.pack(name, flags | _UP))
