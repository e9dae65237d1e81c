"""Shared memory with one owner."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from fastdeploy_routing_plugins.errors import ArenaRoomError, ConflictError
from fastdeploy_routing_plugins.hosts.fastdeploy.segments import OwnedSegment, Segment

from .place import SHM


@pytest.fixture
def name() -> Iterator[str]:
    name = f"fd-routing-test-{uuid.uuid4().hex}"
    yield name
    assert not (SHM / name).exists()


def test_what_the_owner_writes_everybody_sees(name: str) -> None:
    owned = OwnedSegment(name, 100)
    seen = Segment(name)
    owned.buf[99] = 7
    assert (seen.size, seen.buf[99]) == (100, 7)
    seen.close()
    owned.close()
    owned.unlink()


def test_it_is_the_users_alone(name: str) -> None:
    owned = OwnedSegment(name, 100)
    assert (SHM / name).stat().st_mode & 0o777 == 0o600
    owned.unlink()


def test_a_living_owners_is_not_taken(name: str) -> None:
    owned = OwnedSegment(name, 100)
    with pytest.raises(ConflictError, match="belongs to an engine that runs"):
        OwnedSegment(name, 100)
    owned.unlink()


def test_what_nobody_owns_is_replaced(name: str) -> None:
    (SHM / name).write_bytes(b"left by an engine that was killed")
    owned = OwnedSegment(name, 100)
    assert bytes(owned.buf) == bytes(100)
    owned.unlink()


def test_an_owner_that_is_forgotten_takes_it_along(name: str) -> None:
    owned = OwnedSegment(name, 100)
    owned.close()
    del owned
    gc.collect()
    assert not (SHM / name).exists()


def test_a_forked_child_neither_removes_it_nor_keeps_it_locked(name: str) -> None:
    owned = OwnedSegment(name, 100)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        owned.unlink()
        os.read(read, 1)  # lives on until the parent is done
        os._exit(0)
    owned.unlink()
    second = OwnedSegment(name, 100)  # would be refused if the child still held the lock
    second.unlink()
    os.close(write)
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0


def test_an_owner_never_removes_its_successors(name: str) -> None:
    first = OwnedSegment(name, 100)
    (SHM / name).unlink()
    second = OwnedSegment(name, 100)
    first.unlink()
    assert (SHM / name).exists()
    second.unlink()


def test_too_much_is_refused_before_anything_is_there(name: str) -> None:
    free = os.statvfs(SHM).f_bavail * os.statvfs(SHM).f_frsize
    with pytest.raises(ArenaRoomError, match="not enough shared memory"):
        OwnedSegment(name, free + (1 << 40))
    assert not [path for path in Path(SHM).iterdir() if path.name.startswith(name)]


def test_pythons_resource_tracker_hears_nothing_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(resource_tracker, "register", lambda *args: heard.append(args))
    owned = OwnedSegment(name, 100)
    Segment(name).close()
    owned.unlink()
    assert heard == []
