"""Stores that keep a part in the arena instead of copying it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, RoutingWriter, open_writer

SCHEMA = RoutingSchema(num_experts=16, top_k=2, layer_ids=range(2))
PART = np.array([[[1, 2]] * 1000, [[3, 4]] * 1000], np.uint8)
PLUGIN = """
import os
from dataclasses import dataclass

from fastdeploy_routing_plugins.backend import BlockingBackend
from fastdeploy_routing_plugins.errors import StoreUnavailableError
from fastdeploy_routing_plugins.hookspecs import hookimpl
from fastdeploy_routing_plugins.spec import Capability, StoreSpec

@dataclass(frozen=True)
class Config:
    report: str = ""

class Keeping(BlockingBackend):
    def __init__(self, report):
        self.kept, self.report, self.failed = [], report, False

    def _put(self, name, header, payload):
        if "flaky" in name and not self.failed:
            self.failed = True
            payload.retain().release()
            raise StoreUnavailableError("not now")
        if "letgo" in name:
            for buffer in self.kept:
                buffer.release()
            self.kept = []
        elif "copied" not in name and not os.path.exists(os.path.join(os.path.dirname(self.report), "refuse")):
            self.kept.append(payload.retain())
        with open(self.report, "a") as file:
            file.write(f"{name.split('/')[1]} {bytes(self.kept[-1].data[:2]).hex() if self.kept else ''}\\n")

    def _delete(self, names):
        return 0

@hookimpl
def fd_routing_store():
    return StoreSpec(name="keeping", api_version=(1, 0), summary="keeps", load_config=lambda: Config,
                     create=lambda context: Keeping(context.config.report), capabilities=Capability.RETAIN)
"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report"


@pytest.fixture
def writer(tmp_path: Path, report: Path) -> Iterator[RoutingWriter]:
    info = tmp_path / "fd_routing_keeping-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fd-routing-keeping\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fastdeploy.routing_store_plugins]\nkeeping = fdx_keeping\n")
    (tmp_path / "fdx_keeping.py").write_text(PLUGIN)
    sys.path.insert(0, str(tmp_path))
    try:
        config = {"routing_store_type": "keeping", "routing_store_config": {"report": str(report)}}
        with open_writer(config, schema=SCHEMA, limits={"arena_bytes": 4 << 20, "arena_dir": str(tmp_path)}) as opened:
            yield opened
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("fdx_keeping", None)


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_kept_part_stays_in_the_arena(writer: RoutingWriter) -> None:
    before = writer.stats().arena_free_bytes
    assert writer.submit("kept", PART).result(30).retained
    assert (writer.stats().retained_bytes, writer.stats().arena_free_bytes < before) == (PART.nbytes, True)


def test_part_that_is_not_kept_gives_its_room_back(writer: RoutingWriter) -> None:
    assert not writer.submit("copied", PART).result(30).retained
    assert writer.stats().retained_bytes == 0


def test_released_part_gives_its_room_back(writer: RoutingWriter) -> None:
    before = writer.stats().arena_free_bytes
    writer.submit("kept", PART).result(30)
    writer.submit("letgo", PART).result(30)
    assert eventually(lambda: writer.stats().arena_free_bytes == before)


def test_wider_ids_are_narrowed_and_not_lent(writer: RoutingWriter) -> None:
    assert not writer.submit("kept", PART.astype(np.int64)).result(30).retained


def test_kept_parts_are_put_again_by_the_next_worker(writer: RoutingWriter, report: Path) -> None:
    writer.submit("kept", PART).result(30)
    os.kill(writer.stats().worker_pid, signal.SIGKILL)
    assert eventually(lambda: report.read_text() == "kept 0102\nkept 0102\n")


def test_part_put_again_can_be_released(writer: RoutingWriter, report: Path) -> None:
    before = writer.stats().arena_free_bytes
    writer.submit("kept", PART).result(30)
    os.kill(writer.stats().worker_pid, signal.SIGKILL)
    assert eventually(lambda: report.read_text() == "kept 0102\nkept 0102\n")
    writer.submit("letgo", PART).result(30)
    assert eventually(lambda: writer.stats().arena_free_bytes == before)


def test_kept_parts_outlive_any_number_of_killed_workers(writer: RoutingWriter, report: Path) -> None:
    writer.submit("kept", PART).result(30)
    for times in range(1, 6):
        os.kill(writer.stats().worker_pid, signal.SIGKILL)
        assert eventually(lambda times=times: report.read_text() == "kept 0102\n" * (times + 1))
        writer.submit("copied", PART).result(30)
        report.write_text("kept 0102\n" * (times + 1))


def test_part_that_the_next_worker_does_not_keep_gives_its_room_back(writer: RoutingWriter, report: Path) -> None:
    before = writer.stats().arena_free_bytes
    writer.submit("kept", PART).result(30)
    report.with_name("refuse").touch()
    os.kill(writer.stats().worker_pid, signal.SIGKILL)
    assert eventually(lambda: writer.stats().arena_free_bytes == before)


def test_part_that_a_failed_try_gave_back_is_kept_by_the_next_one(writer: RoutingWriter) -> None:
    before = writer.stats().arena_free_bytes
    assert writer.submit("flaky", PART).result(30).retained
    time.sleep(0.2)
    assert (writer.stats().retained_bytes, writer.stats().arena_free_bytes < before) == (PART.nbytes, True)


def test_part_that_the_next_workers_failed_try_gave_back_is_kept(writer: RoutingWriter, report: Path) -> None:
    before = writer.stats().arena_free_bytes
    writer.submit("flaky", PART).result(30)
    os.kill(writer.stats().worker_pid, signal.SIGKILL)
    assert eventually(lambda: report.read_text() == "flaky 0102\nflaky 0102\n")
    time.sleep(0.2)
    assert (writer.stats().retained_bytes, writer.stats().arena_free_bytes < before) == (PART.nbytes, True)
