"""``fd-routing clean`` and what dead producers of ``rdma`` held, with real processes and real shared memory."""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from fastdeploy_routing_plugins import WriterLimits, resolve
from fastdeploy_routing_plugins.arena.arena import Arena
from fastdeploy_routing_plugins.writer.operations import Setup

from .helpers import SCHEMA, run
from .shelves import leave_shelf, producer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def clean(folder: Path, *arguments: str, code: int = 0, **options: Any) -> list[dict[str, Any]]:
    """Runs the command on a folder, which must end with a status; returns the arenas of its document."""
    ended = run("clean", "--arena-dir", str(folder), *arguments, "--json", **options)
    assert ended.returncode == code, ended.stdout + ended.stderr
    arenas: list[dict[str, Any]] = json.loads(ended.stdout)["arenas"]
    return arenas


def test_a_dead_shelf_is_removed(tmp_path: Path) -> None:
    leave_shelf(tmp_path)
    clean(tmp_path)

    assert os.listdir(tmp_path) == []


def test_the_document_says_what_became_of_a_shelf(tmp_path: Path) -> None:
    path = leave_shelf(tmp_path, name="rank-3", namespace="run-7", objects=3)
    (row,) = clean(tmp_path)

    wanted = {"kind": "shelf", "path": path, "state": "dead", "outcome": "removed", "bytes": 2 << 20, "objects": 3}
    assert {name: row[name] for name in wanted} == wanted


def test_people_read_what_became_of_a_shelf(tmp_path: Path) -> None:
    leave_shelf(tmp_path)
    said = run("clean", "--arena-dir", str(tmp_path)).stdout

    assert ("removed, with 2 objects" in said, "removed 1 arena (2.0 MiB)" in said) == (True, True)


def test_a_dry_run_shows_a_dead_shelf(tmp_path: Path) -> None:
    leave_shelf(tmp_path)

    assert "would be removed, with 2 objects" in run("clean", "--arena-dir", str(tmp_path), "--dry-run").stdout


def test_a_dry_run_removes_no_shelf(tmp_path: Path) -> None:
    path = leave_shelf(tmp_path)
    clean(tmp_path, "--dry-run")

    assert os.path.exists(path)


@pytest.mark.parametrize("how", [(), ("--discard", "--yes"), ("--kill",)])
def test_the_shelf_of_a_living_producer_is_left_alone(tmp_path: Path, how: tuple[str, ...]) -> None:
    with producer(tmp_path) as process:
        (row,) = clean(tmp_path, *how)

        assert (row["state"], row["outcome"], row["engine_pid"]) == ("live", "left", process.pid)
        assert os.path.exists(row["path"])


def test_a_young_shelf_is_left_for_a_producer_that_starts_again(tmp_path: Path) -> None:
    path = leave_shelf(tmp_path, age=0.0)
    (row,) = clean(tmp_path)

    assert (row["outcome"], "younger than 60 s" in row["why"], os.path.exists(path)) == ("left", True, True)


def test_a_young_shelf_goes_if_told_to(tmp_path: Path) -> None:
    leave_shelf(tmp_path, age=0.0)
    clean(tmp_path, "--discard", "--yes")

    assert os.listdir(tmp_path) == []


def test_a_young_shelf_stays_if_people_say_no(tmp_path: Path) -> None:
    path = leave_shelf(tmp_path, age=0.0)
    ended = run("clean", "--arena-dir", str(tmp_path), "--discard", input="n\n")

    assert ("1 shelf with 2 objects" in ended.stderr, os.path.exists(path)) == (True, True)


def test_a_damaged_shelf_is_removed(tmp_path: Path) -> None:
    path = leave_shelf(tmp_path)
    with open(path, "r+b") as file:
        file.write(b"no arena at all")
    os.utime(path, (0, 0))
    clean(tmp_path)

    assert os.listdir(tmp_path) == []


# --- metadata services --------------------------------------------------------------------------------------------


def page(folder: Path, uid: int) -> Path:
    """Makes a file that is called as a service's page is."""
    path = folder / f"fd-routing-{uid}-{7:016x}.versions"
    path.write_bytes(bytes(100))
    return path


def test_the_page_of_a_dead_metadata_service_is_removed(tmp_path: Path) -> None:
    page(tmp_path, os.geteuid())
    (row,) = clean(tmp_path)

    assert (row["kind"], row["outcome"], os.listdir(tmp_path)) == ("page", "removed", [])


def test_the_page_of_a_living_metadata_service_is_left_alone(tmp_path: Path) -> None:
    path = page(tmp_path, os.geteuid())
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        rows = clean(tmp_path)

    assert (rows, path.exists()) == ([], True)


def test_the_page_of_somebody_elses_service_is_left_alone(tmp_path: Path) -> None:
    path = page(tmp_path, 99_999)
    clean(tmp_path)

    assert path.exists()


# --- shelves that are still wanted ----------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Arena]:
    """The arena of a living engine that writes to ``rdma`` as ``rank-3``."""
    options = {"producer": "rank-3", "namespace": "run-7"}
    resolved = resolve({"routing_store_type": "rdma", "routing_store_config": options}, environ={})
    arena = Arena.create(str(tmp_path), 2 << 20, Setup.of(resolved, SCHEMA, WriterLimits()).encode())
    yield arena
    arena.close(remove=True)


@pytest.mark.parametrize("how", [(), ("--discard", "--yes")])
@pytest.mark.usefixtures("engine")
def test_a_shelf_that_an_engines_next_worker_takes_over_is_left(tmp_path: Path, how: tuple[str, ...]) -> None:
    path = leave_shelf(tmp_path, name="rank-3", namespace="run-7")
    clean(tmp_path, *how)

    assert os.path.exists(path)


@pytest.mark.parametrize(("name", "namespace"), [("rank-4", "run-7"), ("rank-3", "run-8")])
@pytest.mark.usefixtures("engine")
def test_engines_that_take_other_shelves_over_keep_none(tmp_path: Path, name: str, namespace: str) -> None:
    path = leave_shelf(tmp_path, name=name, namespace=namespace)
    clean(tmp_path)

    assert not os.path.exists(path)


def test_the_empty_arena_of_a_dead_engine_stays_with_the_shelf_that_it_leads_to(tmp_path: Path, engine: Arena) -> None:
    engine.close(remove=False)  # nobody uses it any more, and nothing is left in it
    path = leave_shelf(tmp_path, name="rank-3", namespace="run-7")
    shown = run("clean", "--arena-dir", str(tmp_path), "--dry-run").stdout
    arenas = {row["kind"]: row["outcome"] for row in clean(tmp_path, code=1)}

    assert ("stays: an engine with its configuration" in shown, os.path.exists(path)) == (True, True)
    assert arenas == {"arena": "kept", "shelf": "left"}
    clean(tmp_path, "--discard", "--yes")

    assert os.listdir(tmp_path) == []


def test_without_a_shelf_it_goes(tmp_path: Path, engine: Arena) -> None:
    engine.close(remove=False)
    clean(tmp_path)

    assert os.listdir(tmp_path) == []
