"""Stores that were dropped, or left open at the end of the interpreter, without ``close``."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.errors import EvictedError

from .faulty import until
from .test_through_writer import SCHEMA, Place, place, routing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["place"]  # the fixture

pytestmark = pytest.mark.parametrize("place", ["shm"], indirect=True)


@pytest.fixture
def keeper(place: Place) -> Iterator[None]:
    """Another store, whose process serves the metadata."""
    with open_store(place.config(), schema=SCHEMA) as store:
        store.put("kept", routing(9))
        yield


def shelves(place: Place) -> set[str]:
    return {path.name for path in place.folder.iterdir() if path.suffix == ".shelf"}


def held() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.usefixtures("keeper")
def test_a_dropped_store_gives_back_what_it_took(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    before, on_shelves = held(), shelves(place)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            store = open_store(place.config(), schema=SCHEMA)
            store.put(f"x:{number}", routing(number))
            del store
        until(lambda: held() <= before and shelves(place) == on_shelves)
    assert "dropped without close()" in caplog.text
    with open_store(place.config(), schema=SCHEMA) as reader:
        assert [status.key.rollout_id for status in reader.list()] == ["kept"]
        with pytest.raises(EvictedError, match="closed"):
            reader.get("x:0")


@pytest.mark.usefixtures("keeper")
def test_the_end_of_the_interpreter_leaves_no_shelf(place: Place) -> None:
    before = shelves(place)
    code = f"""
from fastdeploy_routing_plugins import open_store
from tests.stores.rdma.test_through_writer import SCHEMA, routing
store = open_store({place.config()!r}, schema=SCHEMA)
store.put("x:1", routing(1))
print("put")
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr, shelves(place)) == ("put\n", "", before)
    assert time.monotonic() - began < 30


def test_a_dropped_reader_that_serves_the_metadata_gives_back_what_it_took(place: Place) -> None:
    before = held()
    store = open_store(place.config(), schema=SCHEMA)
    assert store.list() == []
    assert held() > before
    del store
    until(lambda: held() <= before)


def test_a_relative_folder_is_that_of_now(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    with open_store(place.config(arena_dir="."), schema=SCHEMA) as store:
        store.put("x:1", routing(1))
        monkeypatch.chdir("/")
        with open_store(place.config(), schema=SCHEMA) as reader:
            assert np.array_equal(reader.get("x:1").routing, routing(1))
    assert shelves(place) == set()
