"""Flush is a barrier with a report, close never hangs, and nothing works afterwards."""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastdeploy_routing_plugins import RoutingWriter
from fastdeploy_routing_plugins.errors import RoutingError, StoreClosedError, StoreUnavailableError, UnsupportedError

from .helpers import PATIENCE, Place, alive, clear, routing, until, workers

# --- flush ----------------------------------------------------------------------------------------------------------


def test_what_is_flushed_another_process_reads(place: Place) -> None:
    with place.writer("slow", delay=0.3) as writer:
        for number in range(5):
            writer.submit(f"x:{number}", routing())
        writer.flush()
        done = place.run("with place.read() as s: print(*[status.key.rollout_id for status in s.list()])")
        assert done.stdout.split() == [f"x:{number}" for number in range(5)], done.stderr


@pytest.fixture(scope="module")
def opened(shared_place: Place) -> Iterator[RoutingWriter]:
    with shared_place.writer("unavailable") as writer:
        yield writer


@pytest.fixture
def flag(shared_place: Place) -> Iterator[Path]:
    """While this file exists the shared writer's store takes nothing."""
    yield shared_place.flag
    shared_place.flag.unlink(missing_ok=True)


@pytest.fixture
def writer(opened: RoutingWriter, flag: Path) -> Iterator[RoutingWriter]:
    yield opened
    flag.unlink(missing_ok=True)
    opened.clear(everything=True)
    opened.flush()


def test_a_flush_of_nothing_is_empty(writer: RoutingWriter) -> None:
    report = writer.flush()
    assert (report.stored, report.failed, report.pending, report.pending_bytes, report.ok) == (0, 0, 0, 0, True)


def test_a_report_counts_every_kind_of_operation(writer: RoutingWriter) -> None:
    writer.submit("x:1", routing(), tokens=(0, 10))
    writer.seal("x:1", 10)
    writer.abort("x:2", "gave up")
    writer.delete("x:1")
    writer.delete_prefix("x")
    writer.clear()
    assert writer.flush().stored == 6


def test_a_report_begins_where_the_last_one_ended(writer: RoutingWriter) -> None:
    writer.submit("x:1", routing())
    writer.flush()
    writer.submit("x:2", routing())
    writer.submit("x:3", routing())
    assert writer.flush().stored == 2


def test_a_flush_whose_deadline_passes_says_what_is_pending(writer: RoutingWriter, flag: Path) -> None:
    flag.touch()
    for number in range(3):
        writer.submit(f"x:{number}", routing())
    report = writer.flush(0.05)
    with pytest.raises(StoreUnavailableError, match="had not ended at the deadline"):
        report.check()
    assert (report.ok, report.pending_bytes) == (False, 3 * routing().nbytes)


def test_a_flush_without_patience_returns_at_once(writer: RoutingWriter, flag: Path) -> None:
    flag.touch()
    writer.submit("x:1", routing())
    assert not writer.flush(0).ok


def test_what_one_report_left_pending_the_next_one_has(writer: RoutingWriter, flag: Path) -> None:
    flag.touch()
    writer.submit("x:1", routing())
    first = writer.flush(0.01)
    flag.unlink()
    second = writer.flush()
    assert (first.stored, second.ok, second.failed) == (0, True, 0)
    assert second.stored == 1


def test_a_ticket_that_has_not_ended_in_time_says_so(writer: RoutingWriter, flag: Path) -> None:
    flag.touch()
    ticket = writer.submit("x:1", routing())
    with pytest.raises(StoreUnavailableError, match=r"put of 'x:1', .* has not ended within 0.01 s"):
        ticket.result(0.01)
    assert (ticket.done(), repr(ticket).endswith(": pending)")) == (False, True)


def test_threads_may_flush_at_once(writer: RoutingWriter) -> None:
    reports: list[Any] = []
    for number in range(10):
        writer.submit(f"x:{number}", routing())
    threads = [threading.Thread(target=lambda: reports.append(writer.flush())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (sum(report.stored for report in reports), [report.ok for report in reports]) == (10, [True] * 4)


def test_a_store_that_cannot_make_durable_is_reported(place: Place) -> None:
    place.flag.touch()
    with place.writer("undurable", limits={"retry_for": 0.0}) as writer:
        writer.submit("x:1", routing())
        report = writer.flush()
        place.flag.unlink()
    assert [(failure.what, failure.key, failure.error.message) for failure in report.failures] == [
        ("flush", None, "the disk does not answer")
    ]


def test_patience_may_be_endless(place: Place) -> None:
    writer = place.writer()
    ticket = writer.submit("x:1", routing())
    assert (ticket.result(math.inf).code, writer.flush(math.inf).ok, writer.close(math.inf).ok) == ("", True, True)


# --- close ----------------------------------------------------------------------------------------------------------


def test_close_waits_for_what_is_pending(place: Place) -> None:
    writer = place.writer("slow", delay=0.2, limits={"lanes": 1})
    for number in range(5):
        writer.submit(f"x:{number}", routing())
    assert (writer.close().stored, len(place.ids())) == (5, 5)


def test_close_ends_the_worker(place: Place) -> None:
    writer = place.writer()
    pid = writer.stats().worker_pid
    writer.close()
    assert not alive(pid)


def test_close_removes_the_arena(place: Place) -> None:
    writer = place.writer()
    writer.close()
    assert not os.listdir(place.arena_dir)


def test_the_arena_is_for_this_user_alone(place: Place) -> None:
    with place.writer():
        modes = {os.stat(place.arena_dir / name).st_mode & 0o777 for name in os.listdir(place.arena_dir)}
    assert modes == {0o600}


def test_close_is_idempotent(place: Place) -> None:
    writer = place.writer()
    writer.submit("x:1", routing())
    assert [writer.close().stored for _ in range(3)] == [1, 0, 0]


def test_threads_may_close_at_once(place: Place) -> None:
    writer = place.writer()
    threads = [threading.Thread(target=writer.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


def test_an_exception_in_the_with_block_closes_too(place: Place) -> None:
    def work() -> None:
        with place.writer() as writer:
            writer.submit("x:1", routing())
            raise RuntimeError("engine")

    with pytest.raises(RuntimeError, match="engine"):
        work()
    assert place.ids() == ["x:1"]


VERBS: dict[str, Any] = {
    "submit": lambda w: w.submit("x", routing()),
    "reserve": lambda w: w.reserve("x", 10),
    "seal": lambda w: w.seal("x", 10),
    "abort": lambda w: w.abort("x", "why"),
    "delete": lambda w: w.delete("x"),
    "delete_prefix": lambda w: w.delete_prefix("x"),
    "clear": lambda w: w.clear(),
    "flush": lambda w: w.flush(),
}


def test_after_close_every_verb_raises(place: Place) -> None:
    writer = place.writer()
    writer.close()
    for call in VERBS.values():
        with pytest.raises(StoreClosedError, match="the writer is closed"):
            call(writer)


def test_statistics_outlive_the_writer(place: Place) -> None:
    writer = place.writer()
    writer.submit("x:1", routing())
    writer.close()
    stats = writer.stats()
    assert (stats.submitted, stats.stored, stats.pending, stats.worker_pid) == (1, 1, 0, None)


def test_close_with_a_hanging_store_keeps_its_deadline(place: Place) -> None:
    writer = place.writer("hanging", limits={"call_timeout": 60.0})
    writer.submit("hang:1", routing())
    pid = writer.stats().worker_pid
    began = time.monotonic()
    writer.close(0.5)
    took = time.monotonic() - began
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    clear(place.arena_dir)
    assert took < PATIENCE / 2


def test_what_is_pending_at_close_is_left_to_the_worker(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.flag.touch()
    writer = place.writer("unavailable")
    for number in range(4):
        writer.submit(f"x:{number}", routing())
    report = writer.close(0.1)
    place.flag.unlink()
    until(lambda: not workers(place.arena_dir))
    assert (report.ok, "goes on with them alone" in caplog.text, len(place.ids())) == (False, True, 4)


def test_a_ticket_ends_even_if_its_writer_closed_before(place: Place) -> None:
    place.flag.touch()
    writer = place.writer("unavailable")
    ticket = writer.submit("x:1", routing())
    writer.close(0.05)
    place.flag.unlink()
    outcome: list[BaseException | Any] = []

    def wait() -> None:
        try:
            outcome.append(ticket.result())
        except RoutingError as err:
            outcome.append(err)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert isinstance(outcome[0], StoreClosedError)


def test_close_with_a_dead_worker_stores_all_the_same(place: Place) -> None:
    writer = place.writer("slow", delay=0.1, limits={"lanes": 1})
    for number in range(6):
        writer.submit(f"x:{number}", routing())
    os.kill(writer.stats().worker_pid, signal.SIGKILL)
    assert (writer.close().ok, len(place.ids())) == (True, 6)


def test_close_with_a_worker_that_cannot_come_back_keeps_its_deadline(place: Place) -> None:
    writer = place.writer("stillborn")
    writer.submit("x:1", routing()).result(PATIENCE)
    place.flag.touch()
    os.kill(writer.stats().worker_pid, signal.SIGKILL)
    writer.submit("x:2", routing())
    began = time.monotonic()
    report = writer.close(1.0)
    took = time.monotonic() - began
    place.flag.unlink()
    until(lambda: not workers(place.arena_dir))
    with place.writer("stillborn"):  # adopts what is left
        until(lambda: place.ids() == ["x:1", "x:2"])
    assert (report.ok, took < PATIENCE / 2) == (False, True)


def test_close_with_a_stopped_worker_keeps_its_deadline(place: Place) -> None:
    writer = place.writer()
    pid = writer.stats().worker_pid
    os.kill(pid, signal.SIGSTOP)
    writer.submit("x:1", routing())
    began = time.monotonic()
    report = writer.close(0.5)
    took = time.monotonic() - began
    os.kill(pid, signal.SIGCONT)
    until(lambda: not workers(place.arena_dir))
    assert (report.ok, took < PATIENCE / 2, place.ids()) == (False, True, ["x:1"])


def test_nothing_is_lost_between_submits_and_a_close_at_once(place: Place) -> None:
    writer = place.writer()
    taken: list[str] = []

    def work(name: int) -> None:
        number = 0
        while True:
            try:
                writer.submit(f"{name}:{number}", routing(500))
            except StoreClosedError:
                return
            taken.append(f"{name}:{number}")
            number += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(taken) > 20)
    assert writer.close().ok
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(set(taken) - set(place.ids())) == []


def test_an_idle_writer_closes_without_a_word(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with place.writer(), caplog.at_level(logging.WARNING):
        pass
    assert caplog.records == []


def test_a_writer_is_not_pickled(place: Place) -> None:
    with place.writer() as writer, pytest.raises(UnsupportedError, match="cannot be copied or pickled"):
        pickle.dumps(writer)
