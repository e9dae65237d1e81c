"""Shared memory with one owner."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest

from fastdeploy_routing_plugins.errors import ArenaRoomError, ConflictError
from fastdeploy_routing_plugins.hosts.fastdeploy.segments import OwnedSegment, Segment

from .place import ROOT, SHM

MAKES = """
import os, sys
from fastdeploy_routing_plugins.hosts.fastdeploy.segments import OwnedSegment
real = os.posix_fallocate
def allocate(fd, at, size):
    real(fd, at, size)
    print("in the middle", flush=True)
    sys.stdin.read()  # until the test closes it, or kills
os.posix_fallocate = allocate
OwnedSegment(sys.argv[1], 1 << 16)
"""


@pytest.fixture
def name() -> Iterator[str]:
    name = f"fd-routing-test-{uuid.uuid4().hex}"
    yield name
    assert left(name) == []


@contextlib.contextmanager
def in_the_middle(name: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a process that is making shared memory."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKES, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in the middle\n"
            yield process
        finally:
            process.kill()


def left(name: str) -> list[str]:
    """Returns what is there of a name, finished or not."""
    return sorted(path.name for path in SHM.iterdir() if path.name.startswith(name))


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
    assert left(name) == []


def test_what_nobody_owns_makes_room_before_more_is_taken(name: str) -> None:
    (SHM / name).write_bytes(b"left by an engine that was killed")
    free = os.statvfs(SHM).f_bavail * os.statvfs(SHM).f_frsize
    with pytest.raises(ArenaRoomError):
        OwnedSegment(name, free + (1 << 40))
    assert left(name) == []


@pytest.mark.parametrize(("killed", "next_"), [("", ""), (".8001", ".8001"), (".8001", ".9001"), (".8001", "")])
def test_what_an_engine_left_that_was_killed_while_it_made_it_is_removed(name: str, killed: str, next_: str) -> None:
    with in_the_middle(name + killed) as process:
        process.kill()
    assert len(left(name)) == 1
    owned = OwnedSegment(name + next_, 100)
    assert left(name) == [name + next_]
    owned.unlink()


def test_what_an_engine_is_making_is_left_to_it(name: str) -> None:
    with in_the_middle(f"{name}.8001") as process:
        OwnedSegment(f"{name}.9001", 100).unlink()
        _, said = process.communicate()
        assert process.returncode == 0, said


def test_of_two_engines_that_make_the_same_the_second_is_refused(name: str) -> None:
    with in_the_middle(name) as process:
        owned = OwnedSegment(name, 100)
        _, said = process.communicate()
    assert "belongs to an engine that runs" in said.splitlines()[-1]
    assert left(name) == [name]
    owned.unlink()


@pytest.mark.parametrize(
    "other", [".new", ".0123456789abcdef", ".8001.0123456789ABCDEF.new", ".0123456789abcdef.newer"]
)
def test_files_of_other_names_are_left_alone(name: str, other: str) -> None:
    path = SHM / f"{name}{other}"
    path.write_bytes(b"not ours")
    try:
        OwnedSegment(name, 100).unlink()
        assert path.read_bytes() == b"not ours"
    finally:
        path.unlink()


def test_who_is_taken_for_dead_before_it_has_its_lock_begins_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, removed = fcntl.flock, []

    def flock(fd: int, how: int) -> None:
        unfinished = [SHM / entry for entry in left(name) if entry.endswith(".new")]
        if unfinished and not removed:
            removed.extend(unfinished)
            removed[0].unlink()  # another engine starts, and is faster
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    owned = OwnedSegment(name, 100)
    assert len(removed) == 1
    assert left(name) == [name]
    owned.unlink()


def test_pythons_resource_tracker_hears_nothing_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(resource_tracker, "register", lambda *args: heard.append(args))
    owned = OwnedSegment(name, 100)
    Segment(name).close()
    owned.unlink()
    assert heard == []
