"""Metadata services of ``rdma`` and producers that are registered there, as processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.stores.rdma.metadata.page import page_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVICE = """
import sys
import threading
from fastdeploy_routing_plugins.stores.rdma.address import Address
from fastdeploy_routing_plugins.stores.rdma.metadata.security import Security
from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service

service = Service(Address("127.0.0.1", 0, 0), Security(secret=sys.argv[1]))
print(service.address, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), service.stop()), daemon=True).start()
service.run()
"""
PRODUCER = """
import sys
import numpy as np
from fastdeploy_routing_plugins import RoutingSchema, open_store

options = {"server": sys.argv[1], "arena_dir": sys.argv[2], "capacity": 2 << 20, "producer": "rank-3"}
schema = RoutingSchema(num_experts=16, top_k=2, layer_ids=[0])
with open_store({"routing_store_type": "rdma", "routing_store_config": options}, schema=schema) as store:
    store.put("held", np.array([[[1, 2], [3, 4]]]))
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def _process(code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            said = process.stdout.readline().strip()
            assert said
            yield process, said
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


@contextlib.contextmanager
def service(secret: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs a service on free ports of loopback; gives its process and its address."""
    with _process(SERVICE, secret) as (process, address):
        try:
            yield process, address
        finally:
            if process.poll() is not None:  # killed: what it left is nobody's
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(page_path(address.rpartition(",")[2]))


@contextlib.contextmanager
def registered_producer(address: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs a producer, ``rank-3``, that holds one object."""
    with _process(PRODUCER, address, str(folder)) as (process, _):
        yield process
