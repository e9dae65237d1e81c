"""Sentinels name the server; after a failover the store goes on at another one."""

from __future__ import annotations

import subprocess
import time

import numpy as np
import pytest

from fastdeploy_routing_plugins.errors import StoreUnavailableError

from .servers import PATIENCE, SCHEMA, SERVER, Redis, free_port, routing, store


@pytest.fixture
def watched(tmp_path):
    """Two servers and a sentinel that knows the first as ``main``; gives both and the sentinel's port."""
    first = Redis(tmp_path).start()
    second = Redis(tmp_path, arguments=["--replicaof", "127.0.0.1", str(first.port)]).start()
    port = free_port()
    settings = tmp_path / "sentinel.conf"
    settings.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {first.port} 1\n"
        "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 3000\n"
    )
    sentinel = subprocess.Popen([SERVER, str(settings), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        yield first, second, port
    finally:
        sentinel.terminate()
        sentinel.wait()
        second.stop()
        first.stop()


def insist(call):
    """Calls until the store is available."""
    until = time.monotonic() + 2 * PATIENCE
    while True:
        try:
            return call()
        except StoreUnavailableError:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_a_failover_is_survived(watched):
    first, second, port = watched
    address = f"redis+sentinel://127.0.0.1:{port}/main/0?protocol=tcp"
    until = time.monotonic() + PATIENCE
    with first.client() as raw:
        while raw.info("replication")["connected_slaves"] < 1 or "slave0" not in raw.info("replication"):
            assert time.monotonic() < until
            time.sleep(0.05)
    opened = store(first, SCHEMA, server=address, timeout=2.0)
    with opened as one:
        insist(lambda: one.put("before", routing()))
        np.testing.assert_array_equal(one.get("before").routing, routing())
        first.kill()
        insist(lambda: one.put("after", routing(seed=1)))
        np.testing.assert_array_equal(one.get("after").routing, routing(seed=1))
        with second.client() as raw:
            assert raw.info("replication")["role"] == "master"
