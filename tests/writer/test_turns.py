"""``only_last_turn``: a turn goes only when the next one is complete, and nothing else goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastdeploy_routing_plugins import RoutingKey, RoutingWriter

from .helpers import Place, routing


@pytest.fixture(scope="module")
def writer(shared_place: Place) -> Iterator[RoutingWriter]:
    with shared_place.writer(only_last_turn=True) as writer:
        yield writer


@pytest.fixture(autouse=True)
def empty(writer: RoutingWriter) -> None:
    writer.clear(everything=True)


@pytest.fixture
def left(writer: RoutingWriter, shared_place: Place) -> Left:
    return Left(writer, shared_place)


class Left:
    """What is in the store once everything is done."""

    def __init__(self, writer: RoutingWriter, place: Place) -> None:
        self._writer, self._place = writer, place

    def __call__(self) -> list[str]:
        self._writer.flush().check()
        with self._place.read() as store:
            return [f"{status.key.rollout_id}#{status.key.choice}" for status in store.list()]


def test_a_complete_turn_ends_the_one_before(writer: RoutingWriter, left: Left) -> None:
    for turn in range(4):
        writer.submit(f"a:0:{turn}:0", routing(seed=turn))
    assert left() == ["a:0:3:0#0"]


def test_a_turn_whose_tokens_are_missing_ends_nothing(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:0:0", routing())
    writer.submit("a:0:1:0", routing(5), tokens=(0, 5), total_tokens=10)
    assert left() == ["a:0:0:0#0", "a:0:1:0#0"]


def test_a_turn_whose_layers_are_missing_ends_nothing(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:0:0", routing())
    for layer in range(5):
        writer.submit("a:0:1:0", routing()[layer], layers=layer)
    assert left() == ["a:0:0:0#0", "a:0:1:0#0"]


def test_the_last_layer_ends_the_turn_before(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:0:0", routing())
    for layer in range(6):
        writer.submit("a:0:1:0", routing()[layer], layers=layer)
    assert left() == ["a:0:1:0#0"]


def test_a_turn_without_a_seal_ends_nothing(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:0:0", routing())
    writer.submit("a:0:1:0", routing(), tokens=(0, 10))
    assert left() == ["a:0:0:0#0", "a:0:1:0#0"]


def test_the_seal_ends_the_turn_before(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:0:0", routing())
    writer.submit("a:0:1:0", routing(), tokens=(0, 10))
    writer.seal("a:0:1:0", 10)
    assert left() == ["a:0:1:0#0"]


def test_an_aborted_turn_ends_nothing(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:0:0", routing())
    writer.abort("a:0:1:0", "gave up")
    assert left() == ["a:0:0:0#0", "a:0:1:0#0"]


def test_a_turn_that_fails_ends_nothing(writer: RoutingWriter, shared_place: Place) -> None:
    bad = routing().astype("i4")
    bad[0, 0, 0] = 99
    writer.submit("a:0:0:0", routing())
    writer.submit("a:0:1:0", bad)
    writer.flush()
    assert shared_place.ids() == ["a:0:0:0"]


def test_other_segments_stay(writer: RoutingWriter, left: Left) -> None:
    for rollout_id in ("a:0:0:0", "a:0:0:1", "a:0:1:1"):
        writer.submit(rollout_id, routing())
    assert left() == ["a:0:0:0#0", "a:0:1:1#0"]


def test_other_choices_stay(writer: RoutingWriter, left: Left) -> None:
    for turn, choice in ((0, 0), (0, 1), (1, 1)):
        writer.submit(f"a:0:{turn}:0", routing(), choice=choice)
    assert left() == ["a:0:0:0#0", "a:0:1:0#1"]


def test_other_kinds_stay(writer: RoutingWriter, left: Left) -> None:
    writer.submit(RoutingKey("a:0:0:0", 0, "shadow"), routing())
    writer.submit("a:0:1:0", routing())
    assert left() == ["a:0:0:0#0", "a:0:1:0#0"]


def test_other_trajectories_stay(writer: RoutingWriter, left: Left) -> None:
    for rollout_id in ("a:0:0:0", "a:00:0:0", "a:1:0:0", "a:0:1:0"):
        writer.submit(rollout_id, routing())
    assert left() == ["a:00:0:0#0", "a:0:1:0#0", "a:1:0:0#0"]


def test_ids_of_another_form_stay(writer: RoutingWriter, left: Left) -> None:
    for rollout_id in ("a:0", "a:1", "a:x:0", "a:x:1", "a"):
        writer.submit(rollout_id, routing())
    assert left() == ["a#0", "a:0#0", "a:1#0", "a:x:0#0", "a:x:1#0"]


def test_turns_further_back_stay(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:0:0", routing())
    writer.submit("a:0:2:0", routing())
    assert left() == ["a:0:0:0#0", "a:0:2:0#0"]


def test_a_turn_that_comes_after_its_next_one_goes_at_once(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:1:0", routing())
    writer.submit("a:0:0:0", routing())
    assert left() == ["a:0:1:0#0"]


def test_a_part_that_comes_after_the_next_turn_goes_at_once(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:0:0", routing(5), tokens=(0, 5))
    writer.submit("a:0:1:0", routing())
    writer.submit("a:0:0:0", routing(5), tokens=(5, 10), total_tokens=10)
    assert left() == ["a:0:1:0#0"]


def test_a_turn_that_is_late_stays_while_its_next_one_is_incomplete(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:1:0", routing(5), tokens=(0, 5))
    writer.submit("a:0:0:0", routing())
    assert left() == ["a:0:0:0#0", "a:0:1:0#0"]


def test_a_higher_attempt_of_the_next_turn_that_is_incomplete_ends_nothing(writer: RoutingWriter, left: Left) -> None:
    writer.submit("a:0:1:0", routing(5), tokens=(0, 5), attempt=1)
    writer.submit("a:0:0:0", routing(), attempt=3)
    assert left() == ["a:0:0:0#0", "a:0:1:0#0"]


def test_without_the_option_all_turns_stay(place: Place) -> None:
    with place.writer() as writer:
        for turn in range(3):
            writer.submit(f"a:0:{turn}:0", routing())
    assert place.ids() == ["a:0:0:0", "a:0:1:0", "a:0:2:0"]


def test_a_trajectory_that_is_produced_again_keeps_its_first_turn(writer: RoutingWriter, left: Left) -> None:
    for attempt, turn in ((1, 0), (2, 1), (3, 0)):
        writer.submit(f"g:0:{turn}:0", routing(seed=attempt), attempt=attempt)
    assert left() == ["g:0:0:0#0", "g:0:1:0#0"]


def test_a_trajectory_that_is_produced_again_ends_as_one_that_was_not(writer: RoutingWriter, left: Left) -> None:
    for attempt, turn in ((1, 0), (2, 1), (3, 0), (4, 1)):
        writer.submit(f"h:0:{turn}:0", routing(seed=attempt), attempt=attempt)
    assert left() == ["h:0:1:0#0"]
