"""A network of its own, with loopback only, and a process in it that forks agents.

Mooncake listens on every interface; forking an interpreter that has everything imported starts an agent at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

TESTS = Path(__file__).parents[3]
PATIENCE = 60.0  # s
_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
# The tests' folder comes last on the path: names of its packages must not hide others'.
_CALL = "import sys; sys.path.append(sys.argv[1]); from stores.rdma.mooncake import stage; stage.main(*sys.argv[2:])"


def leave_network() -> None:
    """Moves this process, which must have one thread only, into a network that has nothing but loopback."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNET if user == 0 else _NEWNET | _NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))
    # Ports are free again at once: a producer that starts again can get the one that it had.
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv4/tcp_max_tw_buckets").write_text("0")


def main(fd: str, own_network: str) -> None:
    """Forks agents on demand, until the socket is closed. Returns in the agents too, when they are done."""
    control = socket.socket(fileno=int(fd))
    try:
        if own_network == "1":
            leave_network()
    except OSError as err:
        control.sendall(str(err).encode())
        return
    from . import agent  # only now: what it imports may start threads

    control.sendall(b"ready")
    while True:
        raw, fds, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not raw:
            return
        order: Any = msgspec.json.decode(raw)
        if isinstance(order, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(order, 0)[1])
        elif (answer := os.fork()) == 0:
            control.close()
            os.environ.update(order)
            os.dup2(fds[1], 2)
            agent.main(fds[0])
            return
        for each in fds:
            os.close(each)
        control.sendall(str(answer).encode())


class Stage:
    """The process that forks agents.

    Args:
        own_network: Whether they get a network of their own.

    Attributes:
        why: Why there is no such process; empty if there is.
    """

    def __init__(self, own_network: bool) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(PATIENCE)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CALL, str(TESTS), str(theirs.fileno()), str(int(own_network))],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        theirs.close()
        said = self._control.recv(1 << 16).decode()
        self.why = "" if said == "ready" else said or "its process ended"

    def start(self, connection: int, words: int, environ: dict[str, str]) -> int:
        """Starts an agent; returns its process id.

        Args:
            connection: Descriptor of the socket through which it is told what to do.
            words: Descriptor that it writes errors to.
            environ: Additions to its environment.
        """
        socket.send_fds(self._control, [msgspec.json.encode(environ)], [connection, words])
        return int(self._control.recv(64))

    def wait(self, pid: int) -> int:
        """Returns the exit code of an agent, which is killed if it does not end."""
        self._control.sendall(msgspec.json.encode(pid))
        try:
            return int(self._control.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._control.recv(64)
            return -1000

    def close(self) -> None:
        self._control.close()
        self._process.wait(10)
