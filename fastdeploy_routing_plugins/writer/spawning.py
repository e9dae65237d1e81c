"""A store worker's process, started with its arena and one end of a socket: ``spawn``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys

from ..errors import WorkerError
from .messages import MAX_PACKET, Channel

_MODULE = "fastdeploy_routing_plugins.writer.worker"


def spawn(arena: int, arguments: list[str], output: int, cwd: str) -> tuple[subprocess.Popen[bytes], Channel]:
    """Starts a worker and returns its process and the channel to it.

    Args:
        arena: File descriptor of the arena.
        arguments: The worker's arguments after the descriptors of arena and socket.
        output: File descriptor for its stdout and stderr.
        cwd: What relative paths in the store's options start from.

    Raises:
        WorkerError: it cannot be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * MAX_PACKET)
    # Below 3 they would be in the place of the worker's streams; an engine may have closed its own.
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (arena, theirs.fileno())]
    # What the engine can import, the worker can; nothing is imported from the current folder because of -m.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        process = subprocess.Popen(  # noqa: S603 - this Python, on a module of this package
            [sys.executable, "-m", _MODULE, *map(str, fds), *arguments],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            cwd=cwd if os.path.isdir(cwd) else None,
            start_new_session=True,  # signals for the engine's group are not for who must finish after it
        )
    except OSError as err:
        ours.close()
        raise WorkerError(f"the store worker cannot be started: {err}") from err
    finally:
        theirs.close()
        for fd in fds:
            os.close(fd)
    return process, Channel(ours)


def ended(status: int) -> str:
    """Returns how a process with this ``returncode`` ended, for people."""
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"
