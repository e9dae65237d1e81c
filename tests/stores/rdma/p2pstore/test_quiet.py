"""p2pstore leaves no trace in the working directory, on standard output, or in the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from .servers import PATIENCE, SCHEMA, config, routing, store

USE = """
import json, sys
import numpy as np
from fastdeploy_routing_plugins import RoutingSchema, open_store
schema = RoutingSchema(64, 4, (1, 2, 5))
array = np.tile(np.arange(4, dtype=np.uint8), (3, 7, 1))
with open_store(json.loads(sys.argv[1]), schema=schema) as store:
    store.put("id", array)
    assert store.get("id").routing.shape == (3, 7, 4)
"""


def used(redis, folder, **variables):
    import json

    folder.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("P2PSTORE", "P2P_"))}
    command = [sys.executable, "-W", "ignore", "-c", USE, json.dumps(config(redis))]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_nothing_is_printed_and_nothing_is_written(redis, tmp_path):
    assert used(redis, tmp_path / "here") == b""
    assert os.listdir(tmp_path / "here") == []


def test_who_wants_p2pstores_log_gets_it(redis, tmp_path):
    used(redis, tmp_path / "here", P2PSTORE_LOG_LEVEL="DEBUG")
    assert os.listdir(tmp_path / "here") == ["p2pstorelog"]


def test_closing_ends_p2pstores_listener_and_threads(redis):
    before = set(threading.enumerate())
    with store(redis, SCHEMA) as one:
        one.put("id", routing())
        during = [thread for thread in threading.enumerate() if thread not in before]
        assert any("_serve_loop" in thread.name for thread in during)
    until = time.monotonic() + PATIENCE
    # redis-py and concurrent.futures keep daemon threads of their own, which end with the process
    while any(
        t.is_alive() for t in during if any(part in t.name for part in ("serve", "heart", "watch", "fd-routing"))
    ):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_reader_of_names_starts_no_client(redis):
    before = set(threading.enumerate())
    with store(redis, SCHEMA) as one:
        assert one.list() == []
        assert not any("_serve_loop" in thread.name for thread in set(threading.enumerate()) - before)


def test_opening_a_cluster_is_refused_by_name(redis):
    from fastdeploy_routing_plugins.errors import UnsupportedError

    with pytest.raises(UnsupportedError, match="cluster"):
        store(redis, SCHEMA, server=f"redis+cluster://127.0.0.1:{redis.port}")
