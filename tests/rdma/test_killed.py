"""Processes that are killed in the middle of a transfer."""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import subprocess
import time

import pytest

from .conftest import TIMEOUT, Ends, both

KILLS = int(os.environ.get("FD_ROUTING_TEST_RDMA_KILLS", "5"))
LARGE = [number for number in range(400) if random.Random(number).random() > 0.9][:8]  # of these sizes: over 5 MiB
SLACK = 30.0  # s that a get may take beyond its timeouts on a slow machine


def regions() -> int:
    """Returns how many memory regions the kernel has registered."""
    out = subprocess.run(["rdma", "resource", "show", "mr"], capture_output=True, text=True, check=True).stdout
    return len(out.splitlines())


needs_rdma_tool = pytest.mark.skipif(shutil.which("rdma") is None, reason="the command rdma (iproute2) is not here")


def test_a_producer_that_is_killed_ends_reads_in_time(ends: Ends) -> None:
    faulthandler.cancel_dump_traceback_later()  # the long form takes longer than any other test may
    chance = random.Random(1)
    outcomes: list[str] = []
    with ends.reader() as reader:
        reader.answer()
        for turn in range(KILLS):
            before = set(ends.ground.folder.iterdir())
            with ends.producer(capacity=32 << 20) as producer:
                producer.answer()
                first = LARGE[turn % len(LARGE)]
                producer.ask("put", first, 1, within=120)
                reader.say("fetch", first, 1, 0.0)
                time.sleep(chance.random() * 0.1)
                producer.kill()
                got = reader.answer(120)
            assert got["wrong"] == []
            assert got["slowest"] < 3 * TIMEOUT + SLACK
            outcomes += got["errors"] or ["read"]
            for left in set(ends.ground.folder.iterdir()) - before:
                left.unlink()  # what the killed one held, which nobody takes over here
    print({each: outcomes.count(each) for each in set(outcomes)})
    assert set(outcomes) <= {"read", "store_unavailable", "producer_lost", "not_found", "incomplete", "pending"}


@needs_rdma_tool
def test_readers_that_are_killed_leave_nothing_registered(ends: Ends) -> None:
    faulthandler.cancel_dump_traceback_later()
    chance = random.Random(2)
    with ends.producer(capacity=32 << 20) as producer:
        producer.answer()
        first = LARGE[0]
        producer.ask("put", first, 1, within=120)
        with ends.reader() as reader:
            reader.answer()
            assert reader.ask("fetch", first, 1, within=120)["errors"] == []
        before = regions()
        for _ in range(KILLS):
            with ends.reader() as reader:
                reader.answer()
                reader.say("fetch", first, 1)
                time.sleep(0.2 + chance.random() * 0.3)
                reader.kill()
        end = time.monotonic() + 20
        while regions() > before and time.monotonic() < end:
            time.sleep(0.1)
        assert regions() <= before
        with ends.reader() as reader:
            reader.answer()
            assert reader.ask("fetch", first, 1, within=120)["wrong"] == []
        assert producer.ask("delete", first, 1) == 1


@needs_rdma_tool
def test_a_closed_producer_unregisters(ends: Ends) -> None:
    before = regions()
    with both(ends) as (producer, reader):
        producer.ask("put", 0, 1, within=120)
        assert reader.ask("fetch", 0, 1, within=120)["errors"] == []
        assert regions() > before
    assert regions() == before
