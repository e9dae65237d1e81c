"""Processes that are killed, that compete, and that read while others write."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.errors import NotFoundError
from fastdeploy_routing_plugins.stores.local.backend import LocalBackend
from fastdeploy_routing_plugins.stores.local.config import LocalConfig

from ..helpers import is_whole, opened, part
from .children import numbered

if TYPE_CHECKING:
    from pathlib import Path

    from ..helpers import Children

KILLS = int(os.environ.get("FD_ROUTING_TEST_KILLS", "50"))  # 1000 is the long form


def temporary_files(store: Path) -> set[str]:
    try:
        return set(os.listdir(store / ".tmp"))
    except FileNotFoundError:  # killed before it was made
        return set()


def locked_files(store: Path) -> set[str]:
    """Temporary files that hold bytes, which their writers lock before."""
    return {path.name for path in (store / ".tmp").iterdir() if path.stat().st_size > 0}


def kill(children: Children, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert children.wait(pid) == -signal.SIGKILL


def test_killed_writers_leave_whole_records_and_no_litter(tmp_path: Path, children: Children) -> None:
    chance = random.Random(7)
    broken, litter, leftovers, checked = [], [], 0, 0
    for attempt in range(KILLS):
        store = tmp_path / f"s{attempt // 5}"  # some are killed while they create the store
        pid = children.start("write_forever", store, f"w{attempt}")
        time.sleep(chance.uniform(0.0, 0.004) if attempt % 5 == 0 else chance.uniform(0.0, 0.06))
        kill(children, pid)
        leftovers += len(temporary_files(store))
        with opened(store) as backend:
            litter += sorted(temporary_files(store))
            for name in backend._list(f"ns/w{attempt}"):
                checked += 1
                if not is_whole(backend, name):
                    broken.append(name)
            if attempt % 5 == 4:
                backend._clear("")
    print(f"{KILLS} kills, {leftovers} leftovers, {checked} records checked")
    assert (broken, litter, leftovers > 0, checked > 0) == ([], [], True, True)


def test_a_killed_writer_put_everything_up_to_the_kill_in_order(tmp_path: Path, children: Children) -> None:
    pid = children.start("write_forever", tmp_path, "w")
    time.sleep(0.4)
    kill(children, pid)
    with opened(tmp_path) as backend:
        stored = set(backend._list("ns/"))
    expected = [numbered(index).name for index in range(len(stored))]
    assert stored == set(expected)


def test_the_files_of_a_living_writer_stay(tmp_path: Path, children: Children) -> None:
    with opened(tmp_path):
        pass
    pid = children.start("write_some", tmp_path, "w", 200)
    caught: set[str] = set()
    end = time.monotonic() + 60
    while not caught and time.monotonic() < end:  # stop it in the middle of a put
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.003)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.003)
        caught = locked_files(tmp_path)
    with opened(tmp_path):
        kept = locked_files(tmp_path)
    os.kill(pid, signal.SIGCONT)
    code = children.wait(pid)
    with opened(tmp_path) as backend:
        whole = [is_whole(backend, name) for name in backend._list("")]
    assert (bool(caught), kept, code, whole) == (True, caught, 0, [True] * 200)


def test_sweeping_all_the_time_costs_a_living_writer_nothing(tmp_path: Path, children: Children) -> None:
    pid = children.start("write_some", tmp_path, "w", 120)
    names: list[str] = []
    end = time.monotonic() + 60
    while len(names) < 120 and time.monotonic() < end:
        with opened(tmp_path) as backend:  # takes files that are not locked yet, whose writer starts again
            names = backend._list("")
    assert (children.wait(pid), len(names)) == (0, 120)


@pytest.mark.parametrize("way", ["link", "rename", "claim"])
def test_of_eight_processes_that_put_one_name_exactly_one_wins(tmp_path: Path, children: Children, way: str) -> None:
    rounds = 25
    store, gate, results = tmp_path / "s", tmp_path / "gate", tmp_path / "results"
    results.mkdir()
    with opened(store), gate.open("w") as closed:
        fcntl.flock(closed, fcntl.LOCK_EX)
        pids = [children.start("contend", store, way, f"p{me}", rounds, gate, results) for me in range(8)]
        time.sleep(0.2)
    assert [children.wait(pid) for pid in pids] == [0] * 8
    winners = {int(index): path.name for path in sorted(results.iterdir()) for index in path.read_text().split()}
    wins = sum(len(path.read_text().split()) for path in results.iterdir())
    with opened(store) as backend:
        stored = {
            index: bytes(backend._get(part(f"c:{index}", tokens=300).name).payload[0]) for index in range(rounds)
        }
    expected = {index: part(f"c:{index}", tokens=300, seed=winners[index]).payload for index in range(rounds)}
    assert (wins, stored == expected, temporary_files(store)) == (rounds, True, set())


def test_puts_survive_deletes_that_take_their_folder_away(tmp_path: Path, children: Children) -> None:
    pids = [children.start("put_and_delete", tmp_path, me, 300) for me in range(4)]
    codes = [children.wait(pid) for pid in pids]
    assert (codes, sorted(os.listdir(tmp_path))) == ([0] * 4, [".fd-routing-store", ".tmp"])


def test_a_reader_at_full_speed_never_sees_half_a_record(tmp_path: Path, children: Children) -> None:
    pid = children.start("write_some", tmp_path, "w", 120)
    seen, misses = set(), 0
    with opened(tmp_path) as backend:
        end = time.monotonic() + 60
        for index in itertools.cycle(range(120)):
            name = numbered(index).name
            try:
                assert is_whole(backend, name)
                seen.add(index)
            except NotFoundError:
                misses += 1
            if len(seen) == 120 or time.monotonic() > end:
                break
    assert (children.wait(pid), len(seen), misses > 0) == (0, 120, True)


def test_a_listing_at_full_speed_names_only_what_can_be_read(tmp_path: Path, children: Children) -> None:
    pid = children.start("write_some", tmp_path, "w", 120)
    names: list[str] = []
    looks = 0
    with opened(tmp_path) as backend:
        end = time.monotonic() + 60
        while len(names) < 120 and time.monotonic() < end:
            fresh = backend._list("ns/")
            assert set(names) <= set(fresh)
            assert all(is_whole(backend, name) for name in set(fresh) - set(names))
            names = fresh
            looks += 1
    assert (children.wait(pid), len(names), looks > 1) == (0, 120, True)


def test_what_a_forked_child_puts_its_parent_gets(tmp_path: Path, children: Children) -> None:
    assert children.wait(children.start("fork_and_put", tmp_path)) == 0


def test_a_store_never_opened_removes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path):
        (tmp_path / ".tmp" / ("0" * 32 + ".part")).write_bytes(b"left")
    LocalBackend(LocalConfig(store_dir=str(tmp_path)))._close()
    assert len(temporary_files(tmp_path)) == 1


@pytest.mark.parametrize("name", ["README", "0" * 31 + ".part", "0" * 32 + ".part.bak", "ü" * 32 + ".part"])
def test_foreign_temporary_files_are_not_leftovers(tmp_path: Path, name: str) -> None:
    with opened(tmp_path):
        (tmp_path / ".tmp" / name).write_bytes(b"foreign")
    with opened(tmp_path):
        assert temporary_files(tmp_path) == {name}


@pytest.mark.parametrize("kind", ["folder", "fifo", "symlink"])
def test_a_leftover_that_is_no_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    name = "0" * 32 + ".part"
    with opened(tmp_path):
        path = tmp_path / ".tmp" / name
        if kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to(tmp_path / "elsewhere")
    with opened(tmp_path):
        assert temporary_files(tmp_path) == {name}


def test_leftovers_go_at_the_next_opening(tmp_path: Path) -> None:
    with opened(tmp_path):
        (tmp_path / ".tmp" / ("0" * 32 + ".part")).write_bytes(b"left")
        (tmp_path / ".tmp" / ("0" * 40 + ".claim")).write_bytes(b"left")
    with opened(tmp_path):
        assert temporary_files(tmp_path) == set()
