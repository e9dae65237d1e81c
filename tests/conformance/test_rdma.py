"""`rdma` keeps the contract of a backend over shared memory and TCP; over Mooncake see ``tests/stores/rdma``."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile

import pytest

from fastdeploy_routing_plugins.testing import BackendConformance, PluginConformance


def free_ports(count):
    """Returns ports of the loopback interface that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Kit:
    store = "rdma"
    persistent = False  # objects go with the process that put them
    transport = ""
    folder = ""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _folder(cls):
        """What killed processes leave in shared memory goes with the folder."""
        with tempfile.TemporaryDirectory(prefix="fd-routing-kit-", dir="/dev/shm") as cls.folder:
            yield

    def config(self, tmp_path):
        return {"transport": self.transport, "arena_dir": self.folder, "capacity": 48 << 20}


class TestRdmaPlugin(PluginConformance):
    store = "rdma"
    heavy = ("zmq", "sortedcontainers", "mooncake")


class TestRdmaOverSharedMemory(Kit, BackendConformance):
    transport = "shm"


class TestRdmaOverTcp(Kit, BackendConformance):
    transport = "tcp"
    address = ""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _service(cls):
        sync, coord = free_ports(2)
        address = f"zmq://127.0.0.1:{sync},127.0.0.1:{coord}"
        command = [
            sys.executable,
            "-c",
            "from fastdeploy_routing_plugins.cli.main import main; main()",
            "serve",
            address,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                assert "listening" in service.stdout.readline()
                cls.address = address
                yield
            finally:
                service.terminate()

    def config(self, tmp_path):
        return {**super().config(tmp_path), "server": self.address}
