"""Servers that a benchmark starts for itself on loopback, and ends: redis-server and the metadata service."""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SERVE = "from fastdeploy_routing_plugins.cli.main import main; main()"
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of prctl.h
_PATIENCE = 20.0  # s to start, and to end


def free_ports(count: int) -> list[int]:
    """Returns ports of loopback that nobody uses."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def metadata_service() -> Iterator[str]:
    """Runs a metadata service in a process of its own; yields its address.

    Raises:
        StoreUnavailableError: it does not start.
    """
    sync, coord = free_ports(2)
    address = f"zmq://127.0.0.1:{sync},127.0.0.1:{coord}"
    command = [sys.executable, "-c", _SERVE, "serve", address]
    process = _start(command)
    try:
        _wait_for(process, coord, b"", "the metadata service")
        yield address
    finally:
        _end(process)


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """Runs a redis-server that keeps everything in memory; yields its port.

    Raises:
        StoreUnavailableError: it does not start.
    """
    server = shutil.which("redis-server")
    assert server is not None, "whoever needs it looks whether it is there"
    (port,) = free_ports(1)
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = _start([server, *options])
    try:
        _wait_for(process, port, b"PING\r\n", "redis-server")
        yield port
    finally:
        _end(process)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Starts a server that ends with this process, however that ends."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it

    def tie() -> None:
        if prctl is not None:
            prctl(_PARENT_DEATH, signal.SIGTERM)

    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=tie)  # noqa: S603


def _wait_for(process: subprocess.Popen[bytes], port: int, ping: bytes, what: str) -> None:
    until = time.monotonic() + _PATIENCE
    while not _answers(port, ping):
        if process.poll() is not None or time.monotonic() > until:
            raise StoreUnavailableError(f"{what} does not start", hint="run the benchmark with --debug, or again")
        time.sleep(0.05)


def _answers(port: int, ping: bytes) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
        if not ping:
            return True
        connection.sendall(ping)
        return connection.recv(16).startswith(b"+PONG")
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
