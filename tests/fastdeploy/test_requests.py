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
    assert arrivals.take("r") == round(noted * 1e9)


def test_a_request_that_comes_again_under_its_id_arrived_later() -> None:
    arrivals, noted = Arrivals(), time.time()
    arrivals.note("r", noted - 100)
    arrivals.note("r", noted - 50)
    assert arrivals.take("r") == round((noted - 50) * 1e9)


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, float("nan"), float("inf"), 1e18])
def test_an_impossible_time_of_arrival_is_now(seconds: float | None) -> None:
    arrivals, before = Arrivals(), time.time_ns()
    arrivals.note("r", seconds)
    assert before <= arrivals.take("r") <= time.time_ns()


def test_the_oldest_arrivals_are_forgotten() -> None:
    arrivals = Arrivals(kept=2)
    for name in "abc":
        arrivals.note(name, 1000.0)
    assert [arrivals.take(name) == 1000 * 10**9 for name in "abc"] == [False, True, True]
