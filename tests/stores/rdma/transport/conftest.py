"""A folder of shared memory, producers, and ways to them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest

from fastdeploy_routing_plugins.arena.pool import Pool
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo
from fastdeploy_routing_plugins.stores.rdma.transport.base import Source
from fastdeploy_routing_plugins.stores.rdma.transport.shm import ShmSource
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import TcpSource
from fastdeploy_routing_plugins.stores.rdma.transport.tcp_server import TcpServer

from .process import Process
from .producing import OWNER, Producer

Opener = Callable[[OwnerInfo], Source]


@pytest.fixture(scope="session")
def shared_folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="fd-transport-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def folder(shared_folder: str) -> Iterator[str]:
    """A folder on a tmpfs, which must be empty at the end."""
    path = tempfile.mkdtemp(dir=shared_folder)
    yield path
    left = os.listdir(path)
    shutil.rmtree(path)
    assert left == []


@pytest.fixture
def producer(folder: str) -> Iterator[Producer]:
    """A producer in this process."""
    made = Producer(folder)
    yield made
    made.close()


@pytest.fixture
def server(producer: Producer) -> Iterator[TcpServer]:
    """Its TCP server."""
    made = TcpServer(producer, "127.0.0.1", owner=OWNER)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def other(shared_folder: str) -> Iterator[Process]:
    """A producer in another process, which all tests share."""
    folder = tempfile.mkdtemp(dir=shared_folder)
    with Process(folder) as made:
        yield made
    assert os.listdir(folder) == []


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@pytest.fixture
def opened(pool: Pool) -> Iterator[Callable[[str, OwnerInfo], Source]]:
    """Opens a way to a producer by a transport's name."""
    made: list[Source] = []

    def opener(kind: str, info: OwnerInfo) -> Source:
        made.append(ShmSource(info, pool) if kind == "shm" else TcpSource(info, "", pool))
        return made[-1]

    yield opener
    for each in made:
        each.close()
