"""Services, clients and producers for the tests of the metadata service."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.stores.rdma.address import Address
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient, Security
from fastdeploy_routing_plugins.stores.rdma.metadata.limits import Limits
from fastdeploy_routing_plugins.stores.rdma.metadata.page import page_path
from fastdeploy_routing_plugins.stores.rdma.metadata.producer import ProducerLink
from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

COMMAND = Path(sys.executable).with_name("fd-routing")
CHILD = Path(__file__).with_name("child.py")
LOOPBACK = Address("127.0.0.1", 0, 0)
PATIENT = 20.0  # s that something may take on a busy machine


def name(rollout: str = "x=3a1", what: str = "x", *, attempt: int = 0, namespace: str = "ns") -> str:
    """Returns an object's full name; the rollout's component is given encoded."""
    return f"{prefix(rollout, namespace)}{attempt:019d}/{what}"


def prefix(rollout: str = "x=3a1", namespace: str = "ns") -> str:
    """Returns the prefix of a rollout's names."""
    return f"{namespace}/{rollout}/000000/routing/"


def until(condition: Callable[[], Any], within: float = PATIENT) -> Any:
    """Waits until something is true, and returns it."""
    end = time.monotonic() + within
    while True:
        found = condition()
        if found or time.monotonic() > end:
            assert found, f"still not so after {within} s"
            return found
        time.sleep(0.01)


@contextlib.contextmanager
def serving(address: Address = LOOPBACK, security: Security | None = None, **limits: Any) -> Iterator[Service]:
    """Runs a service in a thread of this process."""
    service = Service(address, security, Limits(**limits))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join()


@contextlib.contextmanager
def client_of(
    address: Address | None, namespace: str = "ns", security: Security | None = None, timeout: float = 10.0
) -> Iterator[MetadataClient]:
    """Opens a client."""
    client = MetadataClient(address, namespace, security, timeout)
    client.open()
    try:
        yield client
    finally:
        client.close()


def address_of(client: MetadataClient) -> Address:
    """Returns where a client's service is."""
    spot = client.connection().spot()
    return Address("127.0.0.1", *(int(place.rpartition(":")[2]) for place in (spot.sync, spot.coord)))


def figures_of(client: MetadataClient, owner: str) -> dict[str, Any]:
    """Returns what the service's figures say of an owner."""
    (found,) = (each for each in client.status()["owners"] if each["owner"] == owner)
    return found


def owner_info(owner: str = "", revision: int = 0, producer: str = "p") -> OwnerInfo:
    """Returns what an owner says about itself."""
    return OwnerInfo(owner or uuid.uuid4().hex, "host", "node", os.getpid(), producer, revision=revision)


class Producer:
    """A producer that holds names in a dictionary.

    Attributes:
        held: Names and places.
        dropped: Names that the service told it to free, in order.
    """

    def __init__(self, client: MetadataClient, succeeds: Sequence[str] = (), producer: str = "p") -> None:
        self.client = client
        self.info = owner_info(producer=producer)
        self.owner = self.info.owner
        self.held: dict[str, bytes] = {}
        self.dropped: list[str] = []
        self.link = ProducerLink(client, self.info, self._inventory, self._drop, succeeds=succeeds)

    def _inventory(self) -> list[tuple[str, bytes]]:
        return list(self.held.items())

    def _drop(self, items: Sequence[tuple[str, bytes]]) -> None:
        for each, _ in items:
            self.held.pop(each, None)
            self.dropped.append(each)

    def put(self, name: str, place: bytes = b"place") -> Any:
        """Holds and publishes an object; returns the service's answer."""
        self.held[name] = place
        return self.client.publish(self.owner, [(name, place)])[0]


@contextlib.contextmanager
def producing(client: MetadataClient, *, succeeds: Sequence[str] = (), unregister: bool = True) -> Iterator[Producer]:
    """Registers a producer."""
    producer = Producer(client, succeeds)
    producer.link.start()
    try:
        yield producer
    finally:
        producer.link.stop(unregister=unregister)


def free_address() -> Address:
    """Returns an address at which nobody listens."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", first.getsockname()[1], second.getsockname()[1])


class Served:
    """A service in a process of its own, that can be killed and started again at the same address."""

    def __init__(self, address: Address, *options: str) -> None:
        self.address = address
        self.options = options
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it; returns when it listens."""
        command = [str(COMMAND), "serve", str(self.address), *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == f"listening on {self.address}\n"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def end(self, number: int = signal.SIGKILL) -> int:
        """Ends it by a signal; returns its exit code."""
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        code = process.wait(PATIENT)
        assert process.stdout is not None
        process.stdout.close()
        return code


@contextlib.contextmanager
def served(*options: str) -> Iterator[Served]:
    """Runs a service in a process of its own."""
    service = Served(free_address(), *options)
    try:
        service.start()
        yield service
    finally:
        if service.process is not None:
            service.end()
        with contextlib.suppress(FileNotFoundError):  # a killed one leaves its page to the next at its address
            os.unlink(page_path(f"{service.address.host}:{service.address.coord}"))


@contextlib.contextmanager
def child(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Runs ``child.py``; it ends when its input does, or is killed after the block."""
    root = str(Path(__file__).parents[4])
    env = {**os.environ, "PYTHONPATH": root, **environment}
    process = subprocess.Popen(
        [sys.executable, str(CHILD), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def says(process: subprocess.Popen[str]) -> str:
    """Returns a child's next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
