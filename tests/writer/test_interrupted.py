"""Signals that raise in the middle of a call, and hosts whose own code fails in the writer's thread."""

from __future__ import annotations

import logging
import signal
import threading

from fastdeploy_routing_plugins import WriteFailure
from fastdeploy_routing_plugins.errors import InvalidRecordError, UnsupportedError

from ..interrupts import Interrupted, alarms, stop_alarm
from .helpers import Place, codes, routing, same


def test_an_interrupted_submit_changes_no_other_rollout(place: Place) -> None:
    with place.writer(limits={"arena_bytes": 32 << 20}) as writer, alarms():
        interrupted = 0
        for number in range(150):
            part = routing(seed=number)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00001 + number % 20 * 0.000005)
                writer.submit(f"x:{number}:0:0", part)
            except Interrupted:
                interrupted += 1
            finally:
                stop_alarm()
        assert (writer.flush(60).failed, interrupted > 0) == (0, True)
    with place.read() as store:
        found = [status.key.rollout_id for status in store.list()]
        assert all(same(store, key, routing(seed=int(key.split(":")[1]))) for key in found)


def test_a_failure_whose_log_handler_raises_is_still_counted(place: Place) -> None:
    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("the host's own")

    handler, logger = Raising(logging.ERROR), logging.getLogger("fastdeploy_routing_plugins.writer")
    logger.addHandler(handler)
    try:
        with place.writer() as writer:
            writer.submit("bad", routing() + 200)
            writer.submit("good", routing())
            report = writer.flush(60)
    finally:
        logger.removeHandler(handler)
    assert (codes(report.failures), report.stored) == ({("bad", InvalidRecordError.code)}, 1)


def test_on_failure_that_exits_ends_nothing(place: Place) -> None:
    def leave(failure: WriteFailure) -> None:
        raise SystemExit

    with place.writer(on_failure=leave) as writer:
        writer.submit("bad", routing() + 200)
        writer.submit("good", routing())
        report = writer.flush(60)
    assert (report.failed, report.stored) == (1, 1)


def test_on_failure_that_waits_is_told_so(place: Place) -> None:
    told: list[BaseException] = []
    called = threading.Event()

    def wait(failure: WriteFailure) -> None:
        try:
            writer.flush(60)
        except UnsupportedError as err:
            told.append(err)
        finally:
            called.set()

    with place.writer(on_failure=wait) as writer:
        writer.submit("bad", routing() + 200)
        writer.flush(60)
        assert called.wait(60)
        assert len(told) == 1
