"""The link goes down, and comes up again."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from .conftest import TIMEOUT, Ends, both

SLACK = 30.0  # s
allowed = pytest.mark.skipif(
    os.environ.get("SOFTROCE_VM") != "1" and os.environ.get("FD_ROUTING_TEST_LINK") != "1",
    reason="takes the device's link down, which FD_ROUTING_TEST_LINK=1 allows",
)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@allowed
def test_reads_fail_in_time_while_the_link_is_down_and_work_again_after(ends: Ends) -> None:
    interface = ends.lane.reader.interface
    with both(ends) as (producer, reader):
        producer.ask("put", 0, 3, within=120)
        got = reader.ask("fetch", 0, 3, within=120)
        assert (got["wrong"], got["errors"]) == ([], [])
        routes = [line for line in ip("route", "show", "table", "all", "dev", interface).splitlines() if line]
        ip("link", "set", interface, "down")
        try:
            time.sleep(0.5)
            down = reader.ask("fetch", 0, 3, 0.0, within=300)
        finally:
            ip("link", "set", interface, "up")
            there = ip("route", "show", "table", "all", "dev", interface)
            for route in routes:
                if route not in there and "local" not in route and "broadcast" not in route:
                    subprocess.run(["ip", "route", "add", *route.split(), "dev", interface], check=False)
        print(down)
        assert down["wrong"] == []
        assert down["slowest"] < 3 * TIMEOUT + SLACK
        assert set(down["errors"]) <= {"store_unavailable"}
        end = time.monotonic() + 90
        while (got := reader.ask("fetch", 0, 3, within=300))["errors"]:
            assert time.monotonic() < end, got
            time.sleep(1)
        assert got["wrong"] == []
