"""From request ids to rollouts, and arrivals to attempts."""

from __future__ import annotations

import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.hosts.fastdeploy.requests import Arrivals, HostId, split

TEXT = st.text(min_size=1, max_size=40)


@given(TEXT, st.uuids(version=4), st.integers(0, 999_999), st.sampled_from(["chatcmpl", "cmpl"]))
def test_what_the_client_gave_as_user_comes_back_whatever_it_holds(
    user: str, identifier: uuid.UUID, choice: int, kind: str
) -> None:
    assert split(f"{kind}-{user}-{identifier}_{choice}") == (user, choice)


@given(TEXT, st.uuids(version=4), st.integers(0, 999_999), TEXT | st.just(""))
def test_a_request_id_that_ends_in_a_uuid_comes_back_unless_its_user_stands_before(
    text: str, identifier: uuid.UUID, choice: int, user: str
) -> None:
    expected = text if user == text else f"{text}-{identifier}"
    assert split(f"chatcmpl-{text}-{identifier}_{choice}", user) == (expected, choice)


@given(TEXT, st.integers(0, 999_999))
def test_what_the_client_gave_as_request_id_comes_back(request_id: str, choice: int) -> None:
    assert split(f"chatcmpl-{request_id}_{choice}") == (request_id, choice)


@given(st.text(max_size=60))
def test_every_text_is_some_rollout(text: str) -> None:
    rollout_id, choice = split(text)
    assert rollout_id in text
    assert choice >= 0


@pytest.mark.parametrize("text", ["", "chatcmpl-_0", "chatcmpl-a", "chatcmpl-a_01", "chatcmpl-a_1000000", "a_1", "x"])
def test_ids_of_another_form_are_rollout_ids_as_they_are(text: str) -> None:
    assert split(text) == (text, 0)


def test_an_id_on_its_way_through_fastdeploy_is_a_text() -> None:
    host_id = HostId("a:0:0:0", 3, 17)
    assert (host_id, host_id.choice, host_id.attempt, f"{host_id}_1") == ("a:0:0:0", 3, 17, "a:0:0:0_1")


def test_the_time_of_arrival_is_kept_until_the_request_finishes() -> None:
    arrivals, noted = Arrivals(), time.time() - 100
    arrivals.note("r", noted)
    arrivals.note("r")
    assert arrivals.take("r").time == round(noted * 1e9)


def test_a_request_that_comes_again_under_its_id_arrived_later() -> None:
    arrivals, noted = Arrivals(), time.time()
    arrivals.note("r", noted - 100)
    arrivals.note("r", noted - 50)
    assert arrivals.take("r").time == round((noted - 50) * 1e9)


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, float("nan"), float("inf"), 1e18])
def test_an_impossible_time_of_arrival_is_now(seconds: float | None) -> None:
    arrivals, before = Arrivals(), time.time_ns()
    arrivals.note("r", seconds)
    assert before <= arrivals.take("r").time <= time.time_ns()


def test_the_oldest_arrivals_are_forgotten() -> None:
    arrivals = Arrivals(kept=2)
    for name in "abc":
        arrivals.note(name, 1000.0)
    assert [arrivals.take(name).time == 1000 * 10**9 for name in "abc"] == [False, True, True]


def test_arrivals_of_long_ids_are_forgotten_before_they_take_much_memory() -> None:
    arrivals = Arrivals(kept_bytes=10_000)
    for number in range(100):
        arrivals.note(f"{number:03}" + "x" * 1000, 1000.0)
    assert len(arrivals) == 9


def test_nothing_is_noted_of_an_id_that_nothing_can_be_stored_under() -> None:
    arrivals = Arrivals()
    arrivals.note("r", 1000.0)
    arrivals.note("x" * (1 << 24), 1000.0)
    assert (len(arrivals), arrivals.take("r").time) == (1, 1000 * 10**9)


def test_requests_that_come_and_go_leave_room_for_others() -> None:
    arrivals = Arrivals(kept_bytes=10_000)
    for number in range(100):
        arrivals.note(f"{number:03}" + "x" * 1000, 1000.0)
        arrivals.note(f"{number:03}" + "x" * 1000, 2000.0)
        arrivals.take(f"{number:03}" + "x" * 1000)
    arrivals.note("r", 1000.0)
    assert arrivals.take("r").time == 1000 * 10**9


def test_a_clients_own_uuid_stays_known_when_the_request_is_noted_again_without_its_user() -> None:
    arrivals, name = Arrivals(), f"chatcmpl-sample-{uuid.uuid4()}_0"
    arrivals.note(name, 1000.0, "")
    arrivals.note(name)
    assert arrivals.take(name) == (1000 * 10**9, True)
