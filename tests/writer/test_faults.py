"""Stores that are away, fail, lie, hang, kill or talk: nothing is lost in silence, and the rest goes on."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from fastdeploy_routing_plugins import RoutingWriter, open_store
from fastdeploy_routing_plugins.errors import (
    BackendError,
    CorruptDataError,
    QuarantinedError,
    RoutingError,
    StoreUnavailableError,
)

from .helpers import PATIENCE, Place, codes, routing, same, until


def submit(writer: RoutingWriter, *ids: str) -> list[Any]:
    return [writer.submit(rollout_id, routing(seed=rollout_id)) for rollout_id in ids]


def numbered(count: int) -> list[str]:
    return [f"x:{number:02}:0:0" for number in range(count)]


def begun(place: Place) -> int:
    """How many puts a test store began."""
    return sum(line.startswith("begin ") for line in place.diary())


# --- a store that is away -------------------------------------------------------------------------------------------


def test_a_store_that_comes_back_in_time_gets_everything(place: Place) -> None:
    place.flag.touch()
    with place.writer("unavailable") as writer, place.read() as store:
        submit(writer, *numbered(10))
        until(lambda: begun(place) > 10)  # some were tried again
        place.flag.unlink()
        assert writer.flush().stored == 10
        assert all(same(store, rollout_id, routing(seed=rollout_id)) for rollout_id in numbered(10))


def test_a_store_that_stays_away_is_given_up(place: Place) -> None:
    place.flag.touch()
    with place.writer("unavailable", limits={"retry_for": 1.0}) as writer:
        (ticket,) = submit(writer, "x")
        with pytest.raises(StoreUnavailableError, match="the service is down") as caught:
            ticket.result(PATIENCE)
        assert (caught.value.hint, begun(place) > 2) == ("is it running?", True)


def test_the_log_says_once_that_parts_wait(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        place.flag.touch()
        before = begun(place)
        with place.writer("unavailable") as writer:
            submit(writer, *numbered(3))
            until(lambda first=before: begun(place) > first + 6)
            place.flag.unlink()
            writer.flush()
    waiting = "each part is tried again for up to 60 s: store_unavailable: the service is down (is it running?)"
    assert caplog.text.count(waiting) == 2


def test_what_was_given_up_is_reported(place: Place) -> None:
    place.flag.touch()
    with place.writer("unavailable", limits={"retry_for": 0.2}) as writer:
        submit(writer, *numbered(5))
        assert codes(writer.flush().failures) == {(rollout_id, "store_unavailable") for rollout_id in numbered(5)}


def test_without_retries_a_part_is_tried_once(place: Place) -> None:
    place.flag.touch()
    with place.writer("unavailable", limits={"retry_for": 0.0}) as writer:
        submit(writer, "x")
        assert (writer.flush().failed, begun(place)) == (1, 1)


def test_a_part_that_waits_for_its_store_keeps_its_place(place: Place) -> None:
    place.flag.touch()
    with place.writer("unavailable") as writer, place.read() as store:
        for attempt in range(1, 6):
            writer.submit("x:0:0:0", routing(seed=attempt), attempt=attempt)
        until(lambda: begun(place) > 2)
        place.flag.unlink()
        writer.flush().check()  # an attempt that comes too late is superseded
        assert same(store, "x:0:0:0", routing(seed=5))


# --- a store that fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["flaky", "crowded"])
def test_a_store_that_fails_now_and_then_gets_everything(place: Place, store: str) -> None:
    with place.writer(store, limits={"lanes": 1}) as writer:
        for number in range(30):  # one trajectory: the try after a failure is the very next put
            writer.submit("x:0:0:0", routing(), attempt=number)
        assert (writer.flush().check().stored, begun(place)) == (30, 44)


def test_a_store_that_fails_for_good_is_tried_three_times(place: Place) -> None:
    with place.writer("broken") as writer:
        (ticket,) = submit(writer, "broken:1")
        with pytest.raises(BackendError, match="broken for good"):
            ticket.result(PATIENCE)
        assert begun(place) == 3


def test_one_failure_does_not_hold_the_others_up(place: Place) -> None:
    with place.writer("broken") as writer:
        submit(writer, "broken:1", *numbered(20), "broken:2")
        report = writer.flush()
        assert (codes(report.failures), report.stored) == ({("broken:1", "backend"), ("broken:2", "backend")}, 20)


def test_exactly_what_failed_is_listed(place: Place) -> None:
    with place.writer("broken") as writer:
        ids = [f"broken:{number}" if number % 3 == 0 else f"fine:{number}" for number in range(30)]
        submit(writer, *ids)
        failed = {failure.key.rollout_id for failure in writer.flush().failures}
        assert failed == set(ids) - set(place.ids())


# --- a store that lies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_back", [False, True])
def test_a_put_that_stored_nothing_is_a_failure(place: Place, read_back: bool) -> None:
    with place.writer("lying", limits={"read_back": read_back}) as writer:
        submit(writer, *numbered(30))
        report = writer.flush()
        lost = set(numbered(30)) - set(place.ids())
        # About every third: the marks by which the writer finds the lie out count as puts too.
        assert (codes(report.failures), len(lost) >= 5) == ({(rollout_id, "backend") for rollout_id in lost}, True)


def test_a_put_that_stored_nothing_says_so(place: Place) -> None:
    with place.writer("lying", every=1) as writer, pytest.raises(BackendError, match="but does not have it"):
        submit(writer, "x")[0].result(PATIENCE)


def test_other_bytes_than_were_put_are_found_by_reading_back(place: Place) -> None:
    with place.writer("garbling", limits={"read_back": True}) as writer, place.read() as store:
        submit(writer, *numbered(15))
        failed = codes(writer.flush().failures)
        spoilt = set()
        for rollout_id in numbered(15):
            try:
                store.get(rollout_id)
            except CorruptDataError:
                spoilt.add(rollout_id)
        assert (failed, len(spoilt)) == ({(rollout_id, "corrupt_data") for rollout_id in spoilt}, 5)


# --- a store that kills its worker ----------------------------------------------------------------------------------


def test_a_part_that_kills_the_worker_is_quarantined(place: Place) -> None:
    with place.writer("deadly") as writer:
        (ticket,) = submit(writer, "deadly")
        with pytest.raises(QuarantinedError, match="died or hung 3 times"):
            ticket.result(PATIENCE)
        assert (begun(place), writer.stats().worker_restarts) == (3, 3)


def test_what_was_on_its_way_beside_a_deadly_part_is_stored(place: Place) -> None:
    with place.writer("deadly") as writer, place.read() as store:
        submit(writer, *numbered(10), "deadly", *(f"y:{number}" for number in range(10)))
        report = writer.flush()
        assert (codes(report.failures), len(store.list())) == ({("deadly", "quarantined")}, 20)


def test_what_follows_a_deadly_part_in_its_trajectory_is_stored(place: Place) -> None:
    with place.writer("deadly") as writer, place.read() as store:
        writer.submit("deadly:0:0:0", routing())
        writer.delete("deadly:0:0:0")
        submit(writer, "x:0")
        assert (writer.flush().failed, [status.key.rollout_id for status in store.list()]) == (1, ["x:0"])


def test_a_worker_that_dies_once_costs_nothing(place: Place) -> None:
    with place.writer("deadly") as writer, place.read() as store:
        submit(writer, *numbered(10), "fatal", "y:1")
        assert (writer.flush().check().stored, len(store.list()), writer.stats().worker_restarts) == (12, 12, 1)


def test_the_death_of_a_worker_is_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with place.writer("deadly") as writer:
        submit(writer, "fatal")
        writer.flush()
    assert "ended: killed by SIGKILL; it is replaced" in caplog.text


def test_a_worker_killed_from_outside_costs_nothing(place: Place) -> None:
    with place.writer("slow", delay=0.02) as writer, place.read() as store:
        submit(writer, *numbered(30))
        until(lambda: begun(place) > 5)
        os.kill(writer.stats().worker_pid, signal.SIGKILL)
        assert (writer.flush().check().stored, len(store.list())) == (30, 30)


def test_a_worker_killed_while_idle_is_replaced(place: Place) -> None:
    with place.writer() as writer:
        first = writer.stats().worker_pid
        os.kill(first, signal.SIGKILL)
        until(lambda: writer.stats().worker_pid not in (None, first))
        assert submit(writer, "x")[0].result(PATIENCE).code == ""


def test_an_interrupt_is_no_matter_to_a_worker(place: Place) -> None:
    with place.writer() as writer:
        os.kill(writer.stats().worker_pid, signal.SIGINT)
        submit(writer, "x")
        assert (writer.flush().stored, writer.stats().worker_restarts) == (1, 0)


def test_a_store_that_does_not_open_again_ends_what_waits(place: Place) -> None:
    with place.writer("shut", limits={"retry_for": 0.5, "call_timeout": 0.5}) as writer:
        place.flag.touch()
        os.kill(writer.stats().worker_pid, signal.SIGKILL)
        (ticket,) = submit(writer, "x")
        with pytest.raises(StoreUnavailableError, match="the service refuses connections"):
            ticket.result(PATIENCE)
        place.flag.unlink()


def test_a_store_that_opens_again_takes_what_waits(place: Place) -> None:
    with place.writer("shut") as writer:
        place.flag.touch()
        first = writer.stats().worker_pid
        os.kill(first, signal.SIGKILL)
        (ticket,) = submit(writer, "x")
        until(lambda: writer.stats().worker_restarts > 1)
        place.flag.unlink()
        assert ticket.result(PATIENCE).code == ""


# --- a store that hangs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["hanging", "hanging_async"])
def test_a_put_that_does_not_return_is_a_failure(place: Place, store: str) -> None:
    with place.writer(store, limits={"call_timeout": 1.0}) as writer:
        (ticket,) = submit(writer, "hang")
        with pytest.raises(StoreUnavailableError, match=r"did not return within 1.0 s"):
            ticket.result(PATIENCE)


@pytest.mark.parametrize("store", ["hanging", "hanging_async"])
def test_what_is_beside_a_put_that_hangs_is_stored(place: Place, store: str) -> None:
    with place.writer(store, limits={"call_timeout": 1.0}) as writer:
        submit(writer, *numbered(5), "hang:1", "hang:2", *(f"y:{number}" for number in range(5)))
        report = writer.flush()
        assert (codes(report.failures), report.stored, len(place.ids())) == (
            {("hang:1", "store_unavailable"), ("hang:2", "store_unavailable")},
            10,
            10,
        )


def test_more_puts_that_hang_than_lanes_do_not_stop_the_rest(place: Place) -> None:
    with place.writer("hanging", limits={"call_timeout": 1.0, "lanes": 1}) as writer:
        submit(writer, "hang:1", "hang:2", "x")
        report = writer.flush()
        assert (report.failed, report.stored, place.ids()) == (2, 1, ["x"])


# --- a store that talks ---------------------------------------------------------------------------------------------


def test_what_a_library_says_in_the_worker_reaches_the_engines_log(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    said = ("printed to stdout", "printed to stderr", "some.library: logged by a library")
    with place.writer("loud") as writer:
        submit(writer, "x")
        until(lambda: all(text in caplog.text for text in said))


def test_a_worker_says_nothing_to_the_engines_own_streams(place: Place) -> None:
    done = place.run("with place.writer('loud') as writer:\n    writer.submit('x', routing())\n")
    assert (done.stdout, done.returncode) == ("", 0)


def test_an_error_of_the_store_arrives_with_its_hint(place: Place) -> None:
    place.flag.touch()
    with place.writer("unavailable", limits={"retry_for": 0.0}) as writer:
        with pytest.raises(RoutingError) as caught:
            submit(writer, "x")[0].result(PATIENCE)
        assert str(caught.value) == "the service is down (is it running?)"


def test_what_a_reader_deletes_at_once_counts_as_stored(place: Place) -> None:
    config = place.config("local")
    stop = threading.Event()

    def consume() -> None:
        with open_store(config) as store:
            while not stop.is_set():
                for status in store.list():
                    store.delete(status.key)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        with place.writer("local") as writer:
            for number in range(200):
                writer.submit(f"gone:{number}:0:0", routing(seed="gone"))
            report = writer.flush(60)
    finally:
        stop.set()
        consumer.join()
    assert (report.stored, report.failed) == (200, 0)
