"""Devices, and processes at both ends of the way between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ..stores.rdma.faulty import Child, Ground, ground
from .devices import Lane, Side, lane

TIMEOUT = 3.0  # s, option of the stores


@dataclass
class Ends:
    """Where processes at both ends are started.

    Attributes:
        lane: The devices.
        ground: A namespace and a folder.
    """

    lane: Lane
    ground: Ground

    def child(self, role: str, side: Side, **options: Any) -> Child:
        """Starts a process of ``children`` at one end."""
        config = self.ground.config(**{"timeout": TIMEOUT, "capacity": 192 << 20, **side.options, **options})
        return Child(role, config, module="tests.rdma.children")

    def producer(self, **options: Any) -> Child:
        return self.child("producer", self.lane.producer, **options)

    def reader(self, **options: Any) -> Child:
        return self.child("reader", self.lane.reader, **options)


@pytest.fixture(scope="session")
def found() -> Lane:
    """The devices; tests are skipped where there are none."""
    there = lane()
    if isinstance(there, str):
        pytest.skip(there)
    return there


@pytest.fixture(scope="module")
def place(found: Lane) -> Iterator[Ground]:
    """A namespace whose metadata service outlives the processes of the tests."""
    with ground() as made, made.child("serve", "tcp") as service:
        service.answer()
        yield made


@pytest.fixture
def ends(found: Lane, place: Ground) -> Ends:
    return Ends(found, place)


@contextlib.contextmanager
def both(ends: Ends, **options: Any) -> Iterator[tuple[Child, Child]]:
    """A producer and a reader, ready."""
    with ends.producer(**options) as producer, ends.reader(**options) as reader:
        producer.answer()
        reader.answer()
        yield producer, reader
