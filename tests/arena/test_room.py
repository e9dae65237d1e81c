"""How large an arena may be, and what people are told if there is no room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastdeploy_routing_plugins.arena import room
from fastdeploy_routing_plugins.arena.layout import PAGE
from fastdeploy_routing_plugins.arena.room import MAX_AUTO, MIN_ARENA, SHM, choose_size
from fastdeploy_routing_plugins.errors import ArenaRoomError

from .small_tmpfs import answer

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No limits but those that a test sets: a folder without end, and an empty hierarchy of control groups."""
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=0, f_frsize=PAGE, f_blocks=0))
    monkeypatch.setattr(room, "_CGROUP", tmp_path)
    monkeypatch.setattr(room, "_MEMBERSHIP", tmp_path / "membership")
    join(tmp_path, "0::/")
    return tmp_path


def join(machine: Path, line: str) -> None:
    (machine / "membership").write_text(line + "\n")


def limit(group: Path, allowed: int | str, used: int, cache: int = 0) -> None:
    """Makes a control group of version 2."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{allowed}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\nactive_file 0\nshmem 77\n")


# --- a small tmpfs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def container_message() -> str:
    """What a container with the usual 64 MiB is told."""
    said = answer("choose", SHM, 64, None)
    return f"{said['message']}. {said['hint']}"


def test_the_64_mib_of_a_container_are_named(container_message: str) -> None:
    assert "/dev/shm has room for 64 MiB, the arena needs at least 128 MiB" in container_message


@pytest.mark.parametrize("cure", ["--shm-size=", "medium: Memory", "arena_bytes", "arena_dir", "fd-routing clean"])
def test_the_64_mib_of_a_container_have_a_cure(container_message: str, cure: str) -> None:
    assert cure in container_message


def test_an_explicit_size_fits_into_64_mib() -> None:
    assert answer("choose", SHM, 64, 48 * MIB) == {"size": 48 * MIB}


def test_an_explicit_size_beyond_the_room_is_refused() -> None:
    said = answer("choose", SHM, 64, 65 * MIB)
    assert said["message"] == "/dev/shm has room for 64 MiB, the arena needs 65 MiB and a little more"


def test_a_quarter_of_a_larger_tmpfs_is_taken(folder: str) -> None:
    assert answer("choose", folder, 160, None) == {"size": 40 * MIB}


def test_another_folder_has_another_cure(tmp_path: Path) -> None:
    assert "arena_dir to a tmpfs with more room" in answer("choose", str(tmp_path), 64, None)["hint"]


def test_a_folder_within_dev_shm_has_the_container_cure(folder: str) -> None:
    assert ("--shm-size=" in answer("choose", folder, 8, None)["hint"]) == folder.startswith(SHM)


# --- sizes --------------------------------------------------------------------------------------------------------


def test_a_large_tmpfs_gives_at_most_4_gib(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_memory", lambda: iter([]))
    assert choose_size("/", None) == MAX_AUTO


def test_a_tmpfs_without_a_limit_is_not_taken_for_a_full_one(machine: Path) -> None:
    assert choose_size("/", MIN_ARENA) == MIN_ARENA


@pytest.mark.parametrize("wanted", [-1, 0, MIN_ARENA - 1])
def test_a_size_that_is_too_small_is_refused_with_the_smallest_one(folder: str, wanted: int) -> None:
    with pytest.raises(ArenaRoomError, match=f"arena_bytes={wanted} is too small.*{MIN_ARENA}"):
        choose_size(folder, wanted)


def test_a_size_is_rounded_down_to_pages(folder: str) -> None:
    assert choose_size(folder, 2 * MIB + PAGE + 1) == 2 * MIB + PAGE


def test_a_folder_that_does_not_exist_is_named(folder: str) -> None:
    with pytest.raises(ArenaRoomError, match=f"{folder}/none cannot be used: No such file.*arena_dir"):
        choose_size(f"{folder}/none", None)


# --- control groups -----------------------------------------------------------------------------------------------


def test_a_container_limit_counts(machine: Path) -> None:
    limit(machine, GIB, GIB // 2)
    assert choose_size("/", None) == GIB // 8


def test_a_container_limit_counts_for_what_has_to_fit(machine: Path) -> None:
    limit(machine, GIB, GIB - 64 * MIB)
    assert room.modest_size("/", GIB) == 16 * MIB


def test_a_container_limit_is_named_and_not_the_folder(machine: Path) -> None:
    limit(machine, GIB, GIB - 64 * MIB)
    with pytest.raises(ArenaRoomError, match=r"this container, has 64 MiB of free memory, .* needs at least 128"):
        choose_size("/", None)


def test_memory_that_files_were_read_into_counts_as_free(machine: Path) -> None:
    limit(machine, GIB, GIB, cache=GIB // 2)
    assert choose_size("/", None) == GIB // 8


def test_no_more_than_the_limit_is_free(machine: Path) -> None:
    limit(machine, GIB, 0, cache=GIB)
    assert choose_size("/", None) == GIB // 4


def test_use_beyond_the_limit_is_no_room(machine: Path) -> None:
    limit(machine, GIB, 2 * GIB)
    with pytest.raises(ArenaRoomError, match="has 0 MiB of free memory"):
        choose_size("/", MIN_ARENA)


def test_a_group_without_a_limit_does_not_count(machine: Path) -> None:
    limit(machine, "max", GIB)
    assert choose_size("/", MIN_ARENA) == MIN_ARENA


@pytest.mark.parametrize("limited", ["", "jobs", "jobs/step"])
def test_a_limit_around_the_own_group_counts(machine: Path, limited: str) -> None:
    join(machine, "0::/jobs/step")
    limit(machine / "jobs" / "step", "max", 0)
    limit(machine / limited, GIB, 0)
    assert choose_size("/", None) == GIB // 4


def test_the_own_group_may_lie_where_it_cannot_be_seen(machine: Path) -> None:
    join(machine, "0::/../../other")
    limit(machine, GIB, 0)
    assert choose_size("/", None) == GIB // 4


def test_limits_of_cgroup_version_1_count(machine: Path) -> None:
    join(machine, "5:cpu:/x\n4:cpuset,memory:/x\n0::/")
    (machine / "memory").mkdir()
    (machine / "memory" / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (machine / "memory" / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    (machine / "memory" / "memory.stat").write_text(f"active_file 1\ntotal_active_file {GIB // 2}\n")
    assert choose_size("/", None) == GIB // 8


@pytest.mark.parametrize("content", ["", "no number", "-", "\xff"])
def test_a_limit_that_is_no_number_does_not_count(machine: Path, content: str) -> None:
    limit(machine, GIB, 0)
    (machine / "memory.max").write_text(content, encoding="latin-1")
    assert choose_size("/", MIN_ARENA) == MIN_ARENA


def test_the_machine_memory_counts(machine: Path) -> None:
    numbers = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    with pytest.raises(ArenaRoomError, match="of free memory"):
        choose_size("/", 2 * int(numbers["MemAvailable"].split()[0]) << 10)
