"""Trajectories: turns are appended, read as a chain, given up and resumed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import (
    Freshness,
    ParallelLayout,
    RoutingReader,
    SyncStore,
    Trajectory,
    WeightSpan,
    open_writer,
)
from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.reader.turns import covered, turn_ends

from .places import NAMES, SCHEMA, Place, config, place, routing

WHOLE = routing(100)
ENDS = (30, 31, 60, 100)


@pytest.fixture(params=NAMES)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place(request.param, tmp_path)


@pytest.fixture
def store(there: Place) -> Iterator[SyncStore]:
    with there.store() as opened:
        yield opened


@pytest.fixture
def reader(there: Place) -> Iterator[RoutingReader]:
    with there.reader() as opened:
        yield opened


def append(trajectory: Trajectory, *ends: int, **how: Any) -> None:
    """Appends turns of ``WHOLE`` up to each of these tokens."""
    for end in ends:
        trajectory.append(WHOLE[:, trajectory.tokens : end], **how)


# --- appending and reading ------------------------------------------------------------------------------------------


def test_a_sealed_trajectory_is_the_whole(store: SyncStore, reader: RoutingReader) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, *ENDS)
    trajectory.seal()
    np.testing.assert_array_equal(reader.get("data:gen").routing, WHOLE)


@pytest.mark.parametrize("turn", range(4))
def test_a_turn_is_everything_up_to_its_end(store: SyncStore, reader: RoutingReader, turn: int) -> None:
    append(Trajectory(store, "data:gen"), *ENDS)
    np.testing.assert_array_equal(reader.get_turn("data:gen", turn).routing, WHOLE[:, : ENDS[turn]])


def test_the_new_tokens_of_a_turn_can_be_read_alone(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen"), *ENDS)
    record = reader.get_turn("data:gen", 2, new_only=True)
    assert (record.part.tokens, record.routing.tolist()) == ((31, 60), WHOLE[:, 31:60].tolist())


def test_the_ends_of_the_turns_so_far_are_known(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen"), *ENDS[:3])
    assert reader.turns("data:gen") == ENDS[:3]


def test_turns_are_read_before_the_trajectory_is_sealed(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen"), 30)
    with pytest.raises(e.PendingError):
        reader.get("data:gen")


def test_only_new_tokens_are_stored(store: SyncStore) -> None:
    append(Trajectory(store, "data:gen"), *ENDS)
    assert store.status("data:gen").nbytes == WHOLE.nbytes


def test_a_turn_that_is_to_come_is_waited_for(there: Place, store: SyncStore, reader: RoutingReader) -> None:
    trajectory = Trajectory(store, "data:gen")

    def body() -> None:
        for end in ENDS:
            time.sleep(0.1)
            append(trajectory, end)

    thread = threading.Thread(target=body)
    thread.start()
    record = reader.get_turn("data:gen", 2, 60)
    thread.join()
    assert record.part.tokens == (0, 60)


def test_a_turn_of_an_older_attempt_does_not_count(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen", attempt=1), 30)
    with pytest.raises(e.NotFoundError, match="only attempt 1 of 'data:gen' is stored, at least 2"):
        reader.get_turn("data:gen", 0, min_attempt=2)


def test_a_turn_of_the_attempt_that_is_asked_for_is_waited_for(
    there: Place, store: SyncStore, reader: RoutingReader
) -> None:
    append(Trajectory(store, "data:gen", attempt=1), 30)

    def body() -> None:
        time.sleep(0.3)
        append(Trajectory(store, "data:gen", attempt=2), 10)

    thread = threading.Thread(target=body)
    thread.start()
    record = reader.get_turn("data:gen", 0, 60, min_attempt=2)
    thread.join()
    assert (record.attempt, record.part.tokens) == (2, (0, 10))


def test_a_turn_that_does_not_come_in_time_says_so(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen"), 30)
    with pytest.raises(e.PendingError) as caught:
        reader.get_turn("data:gen", 1, 0.2)
    assert caught.value.waited >= 0.1


def test_a_turn_of_nothing_is_not_found(reader: RoutingReader) -> None:
    with pytest.raises(e.NotFoundError, match="nothing is stored"):
        reader.get_turn("data:gen", 0)


def test_a_turn_after_the_last_one_is_not_waited_for(store: SyncStore, reader: RoutingReader) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 30, 100)
    trajectory.seal()
    with pytest.raises(e.NotFoundError, match="was over after 2 turns; there is no turn 2"):
        reader.get_turn("data:gen", 2, 600)


def test_a_trajectory_of_another_process_goes_on_at_its_last_token(there: Place, store: SyncStore) -> None:
    append(Trajectory(store, "data:gen"), 30)
    with there.store() as other:
        trajectory = Trajectory.resume(other, "data:gen")
        append(trajectory, 60)
    assert turn_ends(store.status("data:gen")) == (30, 60)


def test_the_end_of_a_range_must_be_that_of_its_rows(store: SyncStore) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 60)
    with pytest.raises(e.InvalidRecordError, match="routing has 100 tokens, the range 60:100 has 40"):
        trajectory.append(WHOLE, tokens=(60, 100))  # the engine returned the whole, not what it was asked for


def test_tokens_that_are_said_again_may_be_the_same(store: SyncStore, reader: RoutingReader) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 60)
    trajectory.append(WHOLE[:, 50:], tokens=(50, 100))
    trajectory.seal()
    np.testing.assert_array_equal(reader.get("data:gen").routing, WHOLE)


def test_tokens_that_are_said_again_differently_are_refused_by_name(store: SyncStore) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 60)
    other = WHOLE[:, 50:].copy()
    other[:, 7] = (other[:, 7] + 1) % 200  # token 57 was tokenised anew
    with pytest.raises(e.ConflictError, match="different ids for layers 0:8, tokens 50:60"):
        trajectory.append(other, tokens=(50, 100))
    assert trajectory.tokens == 60


def test_a_turn_that_leaves_a_gap_is_refused_with_what_would_be_missing(store: SyncStore) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 10)
    with pytest.raises(e.InvalidRecordError, match="tokens 10:12 would be missing"):
        trajectory.append(WHOLE[:, 12:20], tokens=(12, 20))


def test_turns_after_a_gap_do_not_count(store: SyncStore, reader: RoutingReader) -> None:
    store.put("data:gen", WHOLE[:, :10], tokens=(0, 10))
    store.put("data:gen", WHOLE[:, 12:20], tokens=(12, 20))
    assert reader.turns("data:gen") == (10,)


def test_a_turn_whose_layers_are_not_all_there_does_not_count(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen"), 10)
    for layer in range(7):
        store.put("data:gen", WHOLE[layer, 10:20], tokens=(10, 20), layers=layer)
    assert reader.turns("data:gen") == (10,)


def test_a_turn_without_tokens_leaves_no_trace(store: SyncStore, reader: RoutingReader) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 10, 10, 20)
    assert reader.turns("data:gen") == (10, 20)


def test_token_first_rows_are_counted_right(store: SyncStore) -> None:
    trajectory = Trajectory(store, "data:gen")
    trajectory.append(WHOLE[:, :13].transpose(1, 0, 2), layout="token_first")
    assert trajectory.tokens == 13


@pytest.mark.parametrize("wrong", ["rows", 3, np.zeros(3, int), None])
def test_what_is_no_routing_is_refused(store: SyncStore, wrong: Any) -> None:
    with pytest.raises(e.InvalidRecordError, match="routing must be an array"):
        Trajectory(store, "data:gen").append(wrong)


def test_what_was_not_taken_does_not_count(store: SyncStore) -> None:
    trajectory = Trajectory(store, "data:gen")
    with pytest.raises(e.InvalidRecordError):
        trajectory.append(WHOLE[:3, :10])
    assert trajectory.tokens == 0


def test_a_stage_reads_turns_of_its_layers(there: Place, store: SyncStore) -> None:
    append(Trajectory(store, "data:gen"), 30, 60)
    with there.reader(ParallelLayout(2, pp=2, stages=[5, 6]).rank(1)) as reader:
        np.testing.assert_array_equal(reader.get_turn("data:gen", 1).routing, WHOLE[2:, :60])


def test_a_rank_with_some_tokens_asks_for_them_itself(there: Place) -> None:
    with there.reader(ParallelLayout(2, cp=2).rank(1)) as reader, pytest.raises(e.UnsupportedError, match="tokens"):
        reader.get_turn("data:gen", 1)


def test_turns_go_through_a_writer(tmp_path: Path) -> None:
    limits = {"arena_bytes": 4 << 20, "arena_dir": str(tmp_path / "arenas")}
    (tmp_path / "arenas").mkdir()
    with open_writer(config(tmp_path), schema=SCHEMA, limits=json.dumps(limits)) as writer:
        trajectory = Trajectory(writer, "data:gen")
        append(trajectory, *ENDS, weight_versions=3)
        trajectory.seal()
        writer.flush().check()
    with place("local", tmp_path).reader() as reader:
        assert (reader.turns("data:gen"), reader.get("data:gen").routing.tolist()) == (ENDS, WHOLE.tolist())


# --- weight versions ------------------------------------------------------------------------------------------------


def test_each_turn_has_the_weights_that_made_it(store: SyncStore, reader: RoutingReader) -> None:
    trajectory = Trajectory(store, "data:gen")
    for version, end in enumerate(ENDS, 5):
        append(trajectory, end, weight_versions=version)
    assert reader.get_turn("data:gen", 3).weight_versions == (
        WeightSpan(0, 30, 5), WeightSpan(30, 31, 6), WeightSpan(31, 60, 7), WeightSpan(60, 100, 8)
    )  # fmt: skip


def test_weights_may_change_within_a_turn(store: SyncStore, reader: RoutingReader) -> None:
    stated = (WeightSpan(0, 7, 1), WeightSpan(7, 12, 2))
    append(Trajectory(store, "data:gen"), 12, weight_versions=stated)
    assert reader.get_turn("data:gen", 0).weight_versions == stated


@pytest.mark.parametrize("stated", [[(0, 7), (8, 12)], [(0, 8), (7, 12)], [(0, 7)]])
def test_weights_that_leave_gaps_or_overlap_are_refused(store: SyncStore, stated: list[tuple[int, int]]) -> None:
    versions = [WeightSpan(start, stop, number) for number, (start, stop) in enumerate(stated)]
    with pytest.raises(e.InvalidRecordError, match="do not cover tokens 0:12 once"):
        append(Trajectory(store, "data:gen"), 12, weight_versions=versions)


def test_a_turn_of_old_weights_is_refused(store: SyncStore, reader: RoutingReader) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 30, weight_versions=1)
    append(trajectory, 60, weight_versions=4)
    with pytest.raises(e.StaleError, match="tokens 0:30 of version 1"):
        reader.get_turn("data:gen", 1, fresh=Freshness(4, 2))
    assert reader.get_turn("data:gen", 1, new_only=True, fresh=Freshness(4, 2)).num_tokens == 30


# --- giving up and resuming -----------------------------------------------------------------------------------------


def test_a_trajectory_that_was_given_up_is_not_read(store: SyncStore, reader: RoutingReader) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 30)
    trajectory.abort("engine died")
    with pytest.raises(e.AbortedError, match="engine died"):
        reader.get_turn("data:gen", 0, 600)


def test_what_was_given_up_goes_on_under_a_new_attempt(store: SyncStore, reader: RoutingReader) -> None:
    first = Trajectory(store, "data:gen", attempt=1)
    append(first, 30, 60)
    first.abort("engine died")
    again = Trajectory.resume(store, "data:gen", attempt=2)
    append(again, 100)
    again.seal()
    record = reader.get("data:gen")
    assert (record.attempt, record.routing.tolist(), reader.turns("data:gen")) == (2, WHOLE.tolist(), (30, 60, 100))


def test_weights_of_what_is_kept_stay_stated(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen", attempt=1), 30, 60, weight_versions=4)
    again = Trajectory.resume(store, "data:gen", attempt=2, keep=40)
    append(again, 50, weight_versions=5)
    assert reader.get_turn("data:gen", 2).weight_versions == (
        WeightSpan(0, 30, 4), WeightSpan(30, 40, 4), WeightSpan(40, 50, 5)
    )  # fmt: skip


def test_what_is_not_kept_may_become_different(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen", attempt=1), 30, 60)
    again = Trajectory.resume(store, "data:gen", attempt=2, keep=40)
    other = routing(20, seed=9)
    again.append(other)
    np.testing.assert_array_equal(reader.get("data:gen", tokens=(40, 60)).routing, other)


def test_parts_of_some_layers_are_kept_as_they_are(store: SyncStore, reader: RoutingReader) -> None:
    store.put("data:gen", WHOLE[:4, :20], tokens=(0, 20), layers=(0, 4))
    store.put("data:gen", WHOLE[4:, :15], tokens=(0, 15), layers=(4, 8))
    again = Trajectory.resume(store, "data:gen", attempt=2)
    assert (again.tokens, reader.get("data:gen", tokens=(0, 15)).routing.tolist()) == (15, WHOLE[:, :15].tolist())


def test_nothing_is_kept_if_asked(store: SyncStore, reader: RoutingReader) -> None:
    append(Trajectory(store, "data:gen"), 30)
    again = Trajectory.resume(store, "data:gen", attempt=1, keep=0)
    append(again, 5)
    assert reader.turns("data:gen") == (5,)


def test_more_than_there_is_cannot_be_kept(store: SyncStore) -> None:
    append(Trajectory(store, "data:gen"), 30)
    with pytest.raises(e.InvalidKeyError, match="has 30 tokens without a gap, of which 31 cannot be kept"):
        Trajectory.resume(store, "data:gen", attempt=1, keep=31)


def test_keeping_less_needs_a_new_attempt(store: SyncStore) -> None:
    append(Trajectory(store, "data:gen"), 30)
    with pytest.raises(e.InvalidKeyError, match="keep needs a new attempt"):
        Trajectory.resume(store, "data:gen", keep=3)


def test_a_new_attempt_is_higher_than_the_last(store: SyncStore) -> None:
    append(Trajectory(store, "data:gen", attempt=4), 30)
    with pytest.raises(e.SupersededError, match="attempt 4 of 'data:gen' is not higher than the stored one, 4"):
        Trajectory.resume(store, "data:gen", attempt=4)


def test_nothing_can_be_resumed_from_nothing(store: SyncStore) -> None:
    with pytest.raises(e.NotFoundError):
        Trajectory.resume(store, "data:gen")


def test_a_sealed_trajectory_takes_no_further_turn(store: SyncStore) -> None:
    trajectory = Trajectory(store, "data:gen")
    append(trajectory, 30)
    trajectory.seal()
    with pytest.raises(e.ConflictError, match="a part reaches token 60, the total is 30"):
        append(Trajectory.resume(store, "data:gen"), 60)


def test_resuming_twice_is_resuming_once(there: Place, store: SyncStore) -> None:
    append(Trajectory(store, "data:gen"), 30, 60)
    for _ in range(2):
        with there.store() as other:
            status = store.status("data:gen")
            if status.attempt == 0:
                Trajectory.resume(other, "data:gen", attempt=1)
    assert covered(store.status("data:gen")) == 60


def test_a_writer_is_no_place_to_look_for_a_trajectory() -> None:
    with pytest.raises(e.InvalidRecordError, match="is looked for in a store, got _Writer") as caught:
        Trajectory.resume(_Writer(), "data:gen")  # type: ignore[arg-type]
    assert "into=writer" in caught.value.hint


class _Writer:
    """Has none of a store's questions."""


def test_an_attempt_that_was_given_up_is_not_gone_on_with(store: SyncStore) -> None:
    trajectory = Trajectory(store, "data:gone")
    append(trajectory, 10)
    trajectory.abort("weights changed")
    with pytest.raises(e.AbortedError) as caught:
        Trajectory.resume(store, "data:gone")
    assert "attempt=1" in caught.value.hint
    assert Trajectory.resume(store, "data:gone", attempt=1).tokens == 10
