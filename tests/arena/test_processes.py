"""Arenas of several processes: whose they are, who gets them when these die, and races between those who want them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from fastdeploy_routing_plugins.arena import file as files
from fastdeploy_routing_plugins.arena.arena import Arena
from fastdeploy_routing_plugins.arena.view import ArenaView

from .helpers import SIZE, TEXT, Child, allocated, kill, published

ROUNDS = 25


def orphan(folder: str) -> str:
    """Leaves an arena in a folder as a process that was killed does, and returns its path."""
    file = files.create(folder, SIZE, TEXT)
    file.close()
    return file.path


@pytest.fixture
def owner(folder: str) -> Iterator[tuple[Child, str]]:
    """A process that owns an arena with three published blocks, and the arena's path."""
    with Child("own", folder, 3) as child:
        yield child, child.line()


# --- who gets it --------------------------------------------------------------------------------------------------


def test_the_arena_of_a_living_process_is_not_taken(owner: tuple[Child, str]) -> None:
    assert files.take(owner[1]) is None


def test_the_arena_of_a_living_process_is_in_use(owner: tuple[Child, str], folder: str) -> None:
    assert [found.used for found in files.find(folder)] == [True]


def test_the_arena_of_a_living_process_is_not_removed(owner: tuple[Child, str]) -> None:
    assert (files.remove_unread(owner[1]), os.path.exists(owner[1])) == (False, True)


def test_the_arena_of_a_killed_process_is_not_in_use(owner: tuple[Child, str], folder: str) -> None:
    owner[0].kill()
    assert [found.used for found in files.find(folder)] == [False]


def test_what_a_killed_process_published_is_taken_over(owner: tuple[Child, str]) -> None:
    owner[0].kill()
    file = files.take(owner[1])
    assert file is not None
    metas = [block.meta for block in ArenaView(file).scan()]
    file.close()
    assert metas == [b"0", b"1", b"2"]


def test_the_arena_of_a_killed_process_is_taken_while_others_are_found(owner: tuple[Child, str], folder: str) -> None:
    owner[0].kill()
    (file,) = [files.take(found.path) for found in files.find(folder)]
    assert file is not None
    file.close()


def test_an_arena_that_is_taken_is_in_use(owner: tuple[Child, str], folder: str) -> None:
    owner[0].kill()
    file = files.take(owner[1])
    assert file is not None
    used = [found.used for found in files.find(folder)]
    file.close()
    assert used == [True]


def test_an_arena_whose_worker_alone_lives_is_not_taken(folder: str) -> None:
    with Child("own_with_worker", folder) as engine:
        worker, path = engine.line().split()
        engine.kill()
        try:
            assert files.take(path) is None
        finally:
            kill(int(worker))


def test_an_arena_is_taken_when_its_worker_is_gone_too(folder: str) -> None:
    with Child("own_with_worker", folder) as engine:
        worker, path = engine.line().split()
        engine.kill()
        kill(int(worker))
    file = files.take(path)
    assert file is not None
    file.close()


def test_a_forked_child_that_looks_at_an_arena_does_not_keep_it(folder: str) -> None:
    with Child("own_and_fork", folder) as engine:
        child, path = engine.line().split()
        engine.kill()
        file = files.take(path)
        kill(int(child))
    assert file is not None
    file.close()


def test_closing_gives_an_arena_up_though_its_memory_is_looked_at(folder: str) -> None:
    arena = Arena.create(folder, SIZE, TEXT)
    view = arena.array(allocated(arena, payload=b"abc"), (3,), "u1")
    arena.close(remove=False)
    file = files.take(arena.file.path)
    assert file is not None
    file.close()
    assert bytes(np.asarray(view, "u1")) == b"abc"


def test_who_peeks_does_not_keep_an_arena(folder: str) -> None:
    path = orphan(folder)
    peeked = files.peek(path)
    file = files.take(path)
    peeked.close()
    assert file is not None
    file.close()


def test_who_peeks_keeps_no_descriptor(arena: Arena) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        files.peek(arena.file.path).close()
    assert os.listdir("/proc/self/fd") == before


def test_another_process_reads_what_is_published(arena: Arena) -> None:
    for text in (b"one", b"two"):
        published(arena, payload=text)
    with Child("read", arena.file.path) as reader:
        assert [reader.line() for _ in range(3)] == ["1 one", "2 two", "end"]


def test_who_looks_at_an_arena_does_not_use_it(folder: str) -> None:
    fd = os.open(orphan(folder), os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_SH)
    used = [found.used for found in files.find(folder)]
    os.close(fd)
    assert used == [False]


def before_the_first_lock(monkeypatch: pytest.MonkeyPatch, event: Callable[[], None], *, after: bool = False) -> None:
    """Lets something happen just before, or just after, the next try to lock an arena."""
    lock, pending = fcntl.flock, [event]

    def flock(fd: int, kind: int) -> None:
        if pending and not after:
            pending.pop()()
        try:
            lock(fd, kind)
        finally:
            if pending:
                pending.pop()()

    monkeypatch.setattr(fcntl, "flock", flock)


def test_an_arena_that_somebody_looks_at_for_a_moment_is_taken(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = orphan(folder)
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_SH)
    before_the_first_lock(monkeypatch, lambda: os.close(fd), after=True)
    file = files.take(path)
    assert file is not None
    file.close()


def test_an_arena_that_somebody_removes_meanwhile_is_not_taken(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = orphan(folder)
    before_the_first_lock(monkeypatch, lambda: os.unlink(path))
    assert files.take(path) is None


def test_an_arena_that_somebody_removes_meanwhile_is_not_removed_twice(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = orphan(folder)
    before_the_first_lock(monkeypatch, lambda: os.unlink(path))
    assert not files.remove_unread(path)


# --- races --------------------------------------------------------------------------------------------------------


def test_one_orphan_goes_to_one_of_those_who_want_it(folder: str) -> None:
    with ExitStack() as stack:
        takers = [stack.enter_context(Child("take")) for _ in range(3)]
        for taker in takers:
            taker.line()
        winners = []
        for _ in range(ROUNDS):
            path = orphan(folder)
            for taker in takers:
                taker.tell(path)
            winners.append([taker.line() for taker in takers].count("got"))
            for taker in takers:
                taker.tell("drop")
    assert winners == [1] * ROUNDS


def test_starters_that_look_and_take_at_once_share_all_orphans(folder: str) -> None:
    with ExitStack() as stack:
        starters = [stack.enter_context(Child("find_and_take")) for _ in range(3)]
        for starter in starters:
            starter.line()
        shared = []
        for number in range(ROUNDS):
            os.mkdir(place := os.path.join(folder, str(number)))
            for _ in range(4):
                orphan(place)
            for starter in starters:
                starter.tell(place)
            shared.append(sum(int(starter.line()) for starter in starters))
            for starter in starters:
                starter.tell("drop")
    assert shared == [4] * ROUNDS


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int, list[str]]:
    """Two processes make arenas while two others look for them.

    Returns:
        How many of the makers' arenas are there and theirs, how often one was seen that nobody used, and what is left
        in the folder.
    """
    folder = str(tmp_path_factory.mktemp("crowd"))
    with ExitStack() as stack:
        makers = [stack.enter_context(Child("create_many", folder, 40)) for _ in range(2)]
        finders = [stack.enter_context(Child("find_many", folder)) for _ in range(2)]
        for child in (*finders, *makers):
            child.line()
        for child in (*finders, *makers):
            child.tell()
        whole = sum(int(maker.line()) for maker in makers)
        for finder in finders:
            finder.tell()
        unused = sum(int(finder.line()) for finder in finders)
        left = [found.path for found in files.find(folder)]
    shutil.rmtree(folder)
    return whole, unused, left


def test_looking_for_arenas_loses_none_that_is_being_made(crowd: tuple[int, int, list[str]]) -> None:
    assert crowd[0] == 80


def test_an_arena_that_is_being_made_is_never_seen_as_unused(crowd: tuple[int, int, list[str]]) -> None:
    assert crowd[1] == 0


def test_nothing_but_whole_arenas_is_left_of_the_crowd(crowd: tuple[int, int, list[str]]) -> None:
    assert len(crowd[2]) == 80
