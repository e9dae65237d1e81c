"""``abort_lost``: nobody waits for an attempt of which something could not be stored."""

from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_routing_plugins import RoutingWriter
from fastdeploy_routing_plugins.errors import AbortedError, NotFoundError, RoutingError

from .helpers import PATIENCE, Place, routing, until


def giving_up(place: Place, store: str, **limits: Any) -> RoutingWriter:
    return place.writer(store, limits={"abort_lost": True, **limits})


def states(place: Place) -> dict[str, str]:
    with place.read() as store:
        return {status.key.rollout_id: status.state for status in store.list()}


def test_readers_get_the_reason_at_once(place: Place) -> None:
    with giving_up(place, "broken") as writer, place.read() as store:
        writer.submit("broken:0", routing(), attempt=7)
        with pytest.raises(AbortedError, match="broken for good"):
            store.get("broken:0", timeout=PATIENCE)


def test_without_the_option_an_attempt_stays_open(place: Place) -> None:
    with place.writer("broken") as writer:
        writer.submit("broken:0", routing())
        assert (writer.flush().failed, states(place)) == (1, {})


def test_only_the_attempt_that_lost_something_is_given_up(place: Place) -> None:
    with giving_up(place, "broken") as writer:
        for name in ("x:0", "broken:0", "x:1"):
            writer.submit(name, routing())
        writer.flush()
    assert states(place) == {"broken:0": "aborted", "x:0": "complete", "x:1": "complete"}


def test_a_higher_attempt_is_not_given_up_with_a_lower_one(place: Place) -> None:
    with giving_up(place, "local") as writer:
        writer.submit("x:0", routing(), attempt=2)
        writer.submit("x:0", routing(seed=1), attempt=1)
        assert (writer.flush().failed, states(place)) == (1, {"x:0": "complete"})


def test_what_contradicts_itself_is_not_given_up(place: Place) -> None:
    with giving_up(place, "local") as writer:
        writer.submit("x:0", routing())
        writer.submit("x:0", routing(seed=1))
        assert (writer.flush().failures[0].error.code, states(place)) == ("conflict", {"x:0": "complete"})


def test_a_delete_that_fails_gives_nothing_up(place: Place) -> None:
    with giving_up(place, "blind") as writer:
        writer.submit("x:0", routing())
        writer.delete("x:0")
        assert (writer.flush().failed, states(place)) == (1, {"x:0": "complete"})


def test_an_abort_is_owed_while_the_store_is_away(place: Place) -> None:
    place.flag.touch()
    with giving_up(place, "unavailable", retry_for=0.3) as writer:
        for number in range(30):
            writer.submit(f"x:{number}", routing())
        writer.flush()
        place.flag.unlink()
        writer.submit("y", routing())
        writer.flush().check()
        assert states(place) == {**{f"x:{number}": "aborted" for number in range(30)}, "y": "complete"}


def test_what_kills_the_worker_is_given_up_if_marks_do_not(place: Place) -> None:
    with giving_up(place, "deadly") as writer:
        writer.submit("deadly", routing())
        writer.submit("x", routing())
        report = writer.flush(PATIENCE)
        assert (report.failed, report.stored, writer.stats().worker_restarts) == (1, 1, 4)


def test_readers_hear_of_what_fails_after_the_engine_died(place: Place) -> None:
    limits = place.limits(abort_lost=True)
    place.run(f"""
writer = open_writer(place.config("broken"), schema=SCHEMA, limits=WriterLimits(**{limits!r}))
writer.submit("broken:0", routing())
os.kill(os.getpid(), signal.SIGKILL)
""")
    until(lambda: states(place) == {"broken:0": "aborted"})
    with place.writer("broken"):
        pass  # it reports what the dead run lost, and removes its arena


def test_readers_hear_of_what_fails_when_a_dead_run_is_adopted(place: Place) -> None:
    limits = place.limits(abort_lost=True)
    place.run(f"""
writer = open_writer(place.config("broken"), schema=SCHEMA, limits=WriterLimits(**{limits!r}))
os.kill(writer.stats().worker_pid, signal.SIGSTOP)
writer.submit("broken:0", routing())
os.kill(writer.stats().worker_pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
""")
    before = states(place)
    with place.writer("broken"):
        pass
    assert (before, states(place)) == ({}, {"broken:0": "aborted"})


def test_a_closing_writer_gives_up_what_fails_meanwhile(place: Place) -> None:
    with giving_up(place, "broken") as writer:
        for number in range(5):
            writer.submit(f"broken:{number}", routing())
    assert states(place) == {f"broken:{number}": "aborted" for number in range(5)}


def test_a_rollout_that_lost_nothing_can_be_produced_again_after_a_delete(place: Place) -> None:
    with giving_up(place, "broken") as writer, place.read() as store:
        writer.submit("broken:0", routing())
        writer.delete("broken:0")
        writer.flush()
        with pytest.raises(RoutingError) as caught:
            store.get("broken:0")
        assert type(caught.value) is NotFoundError
