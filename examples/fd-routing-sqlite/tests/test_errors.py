"""What the kit cannot know: how SQLite's own troubles look to a user."""

from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing

import pytest

from fastdeploy_routing_plugins.backend import Buffer
from fastdeploy_routing_plugins.errors import CorruptDataError, StoreUnavailableError
from fd_routing_sqlite.backend import SqliteBackend
from fd_routing_sqlite.config import SqliteConfig

EMPTY = Buffer(memoryview(b""))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "routing.sqlite3")


@pytest.fixture
def backend(path):
    backend = SqliteBackend(path, busy_timeout=0.05)
    backend._open()
    yield backend
    backend._close()


def open_and_close(path, barrier):
    barrier.wait()
    backend = SqliteBackend(path, busy_timeout=10.0)
    backend._open()
    backend._close()


def test_processes_may_make_the_file_together(path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(6)
    processes = [context.Process(target=open_and_close, args=(path, barrier)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6


def test_a_locked_file_is_unavailable(path, backend):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            backend._put("a", b"header", EMPTY)


def test_a_full_disk_is_unavailable(backend):
    with backend._connection() as db:
        db.execute("PRAGMA max_page_count = 8")
    with pytest.raises(StoreUnavailableError, match="full"):
        backend._put("a", b"header", Buffer(memoryview(bytes(1 << 20))))


def test_a_missing_folder_is_unavailable(tmp_path):
    backend = SqliteBackend(str(tmp_path / "none" / "routing.sqlite3"), busy_timeout=0.05)
    with pytest.raises(StoreUnavailableError, match="no such folder"):
        backend._open()
    backend._close()


def test_a_file_that_is_no_database_is_corrupt(path):
    with open(path, "wb") as file:
        file.write(b"not a database" * 1000)
    backend = SqliteBackend(path, busy_timeout=0.05)
    with pytest.raises(CorruptDataError):
        backend._open()
    backend._close()


@pytest.mark.parametrize("options", [{"path": ""}, {"path": "a\0b"}, {"path": "a", "busy_timeout": -1.0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="option"):
        SqliteConfig(**options)
