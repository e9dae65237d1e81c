"""Where the benchmark of ``rdma`` runs: a network that has nothing but loopback, and the servers that it needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastdeploy_routing_plugins.bench.servers import free_ports

_INSIDE = "FD_ROUTING_BENCH_NETWORK"
_LISTENING = ("p2pstore", "mooncake")  # on every interface, whatever they are told
_SERVE = "from fastdeploy_routing_plugins.cli.main import main; main()"
_PATIENCE = 20.0  # s for a server to start


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def enter() -> str:
    """Starts this program again in a network of its own, if something is installed that listens on all interfaces.

    Returns:
        Why that is needed and cannot be had; empty in such a network, and where it is not needed.
    """
    if os.environ.get(_INSIDE) or not any(map(installed, _LISTENING)):
        return ""
    missing = [command for command in ("unshare", "ip", "sh") if shutil.which(command) is None]
    if os.geteuid() != 0 or missing:
        return "listens on every interface; a network of its own needs root, unshare and ip"
    os.environ[_INSIDE] = "1"
    command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
    os.execvp(command[0], command)


@contextmanager
def service() -> Iterator[str]:
    """Runs a metadata service in a process of its own; yields its address."""
    sync, coord = free_ports(2)
    address = f"zmq://127.0.0.1:{sync},127.0.0.1:{coord}"
    command = [sys.executable, "-c", _SERVE, "serve", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("the metadata service does not start")
        yield address
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """Runs a redis-server that keeps everything in memory; yields its port, or 0 if none is installed."""
    server = shutil.which("redis-server")
    if server is None:
        yield 0
        return
    (port,) = free_ports(1)
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([server, "--port", str(port), *options], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _PATIENCE
        while not _answers(port):
            if time.monotonic() > until:
                raise SystemExit("redis-server does not start")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
