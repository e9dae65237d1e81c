"""Workers that stand still, and engines that go to another folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fastdeploy_routing_plugins import open_store, open_writer
from fastdeploy_routing_plugins.writer import supervisor

from .helpers import SCHEMA, Place, routing, until


def test_what_a_worker_that_stands_still_had_is_stored_by_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_STILL", 4.0)
    with place.writer(limits={"call_timeout": 0.5, "retry_for": 0.1}) as writer:
        os.kill(writer.stats().worker_pid, signal.SIGSTOP)
        writer.submit("x:1", routing())
        assert (writer.flush(60).stored, place.ids()) == (1, ["x:1"])


def test_relative_folders_stay_the_engines_wherever_it_goes(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": "./routing"}}
    limits = {"arena_bytes": 4 << 20, "arena_dir": str(place.arena_dir)}
    with open_writer(config, schema=SCHEMA, limits=limits) as writer:
        os.chdir(elsewhere)
        first = writer.stats().worker_pid
        os.kill(first, signal.SIGKILL)
        until(lambda: writer.stats().worker_pid not in (None, first))
        writer.submit("x:1", routing())
        writer.flush(60).check()
    os.chdir(home)
    with open_store(config) as store:
        assert [status.key.rollout_id for status in store.list()] == ["x:1"]
