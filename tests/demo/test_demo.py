from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins.demo.job import DemoJob, Handover, digest
from fastdeploy_routing_plugins.demo.model import MoeTransformer
from fastdeploy_routing_plugins.demo.rollout import FinishedRequest, roll_out, sample
from fastdeploy_routing_plugins.demo.run import judge, run_demo
from fastdeploy_routing_plugins.demo.trainer import Mismatch, TrainerFigures, check, choice_disagreement, train
from fastdeploy_routing_plugins.errors import NotFoundError

JOB = DemoJob(store={}, run="test", requests=4, new_tokens=12, seed=0)


@dataclass
class Record:
    routing: np.ndarray
    schema: Any


@dataclass
class DictStore:
    records: dict[str, Record] = field(default_factory=dict)

    def submit(self, rollout_id: str, routing: np.ndarray, /) -> None:
        assert rollout_id not in self.records
        self.records[rollout_id] = Record(routing, JOB.schema)

    def get(self, rollout_id: str, /, *, timeout: float) -> Record:
        if rollout_id not in self.records:
            raise NotFoundError(f"no record of {rollout_id}")
        return self.records[rollout_id]


def ignore(*_: object) -> None:
    pass


def rolled_out(job: DemoJob = JOB) -> tuple[DictStore, list[Handover]]:
    store, handovers = DictStore(), []
    roll_out(job, store, handovers.append, ignore)
    return store, handovers


# --- the rollout process ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def requests() -> list[FinishedRequest]:
    return list(sample(dataclasses.replace(JOB, requests=20)))


def test_every_request_is_sampled_once_with_at_least_the_tokens_asked_for(requests):
    assert sorted(each.index for each in requests) == list(range(20))
    assert all(len(each.tokens) - each.prompt_tokens >= 12 for each in requests)
    assert all(len(each.logprobs) == len(each.tokens) - each.prompt_tokens for each in requests)
    assert len({len(each.tokens) for each in requests}) > 4


def test_routing_has_a_row_for_every_token_but_the_last_which_was_never_forwarded(requests):
    assert all(each.routing.shape == (8, len(each.tokens) - 1, 4) for each in requests)


def test_requests_finish_out_of_order_and_free_their_slot_for_waiting_ones(requests):
    order = [each.index for each in requests]
    assert order != sorted(order)
    assert order.index(19) > order.index(5)


def test_sampling_repeats_with_its_seed_and_text_is_neither_uniform_nor_stuck(requests):
    again = list(sample(dataclasses.replace(JOB, requests=20)))
    assert [each.tokens for each in again] == [each.tokens for each in requests]
    entropy = -np.mean(np.concatenate([each.logprobs for each in requests]))
    assert 2.0 < entropy < np.log(256) - 0.5


def test_routing_has_the_dtype_that_is_stored(requests):
    assert {each.routing.dtype for each in requests} == {np.dtype(JOB.schema.dtype)}


def test_the_digest_is_sent_before_the_routing_is_handed_over():
    events = []

    class Store(DictStore):
        def submit(self, rollout_id: str, routing: np.ndarray, /) -> None:
            events.append(("submitted", rollout_id))

    roll_out(JOB, Store(), lambda handover: events.append(("sent", handover.rollout_id)), ignore)
    assert len(events) == 8
    assert all(events.index(("sent", name)) < events.index(("submitted", name)) for _, name in events)


def test_sabotage_swaps_two_records_and_leaves_the_digests_true():
    straight, handovers = rolled_out()
    swapped, same = rolled_out(dataclasses.replace(JOB, sabotage=True))
    assert same == handovers
    assert swapped.records.keys() == straight.records.keys()
    different = [
        name
        for name, record in straight.records.items()
        if not np.array_equal(record.routing, swapped.records[name].routing)
    ]
    assert len(different) == 2
    a, b = different
    assert np.array_equal(straight.records[a].routing, swapped.records[b].routing)
    assert np.array_equal(straight.records[b].routing, swapped.records[a].routing)


def test_digest_covers_shape_and_values_but_not_type_or_memory_order():
    routing = np.arange(24).reshape(2, 3, 4)
    assert digest(routing) == digest(routing.astype(np.uint8)) == digest(np.asfortranarray(routing))
    assert digest(routing) != digest(routing.reshape(3, 2, 4))
    assert digest(routing) != digest(routing[::-1])


# --- the trainer process ------------------------------------------------------------------------------------------


def test_intact_records_show_disagreement_without_and_less_mismatch_with_replay():
    figures = train(JOB, *rolled_out(), ignore)
    assert figures.failures == []
    assert figures.intact == 4
    assert figures.routing_bytes == figures.rows * 8 * 4
    assert 0 < np.mean(figures.disagreement) < 0.05
    assert figures.with_replay.absolute < figures.without_replay.absolute
    assert figures.with_replay.kl < figures.without_replay.kl


def test_a_rollout_in_float32_agrees_so_the_disagreement_comes_from_precision_alone(monkeypatch):
    monkeypatch.setattr(
        "fastdeploy_routing_plugins.demo.rollout.MoeTransformer",
        lambda config, half: MoeTransformer(config, half=False),
    )
    figures = train(JOB, *rolled_out(), ignore)
    assert np.mean(figures.disagreement) < 1e-4
    assert figures.without_replay.absolute < 1e-4


def test_replaying_wrong_experts_makes_the_mismatch_large():
    store, handovers = rolled_out()
    forged = []
    for handover in handovers:
        record = store.records[handover.rollout_id]
        record.routing = (record.routing + 1) % 32
        forged.append(dataclasses.replace(handover, sha256=digest(record.routing)))
    figures = train(JOB, store, forged, ignore)
    assert figures.failures == []
    assert figures.with_replay.absolute > 10 * figures.without_replay.absolute


def test_a_record_that_is_not_there_is_named_and_the_others_are_still_used():
    store, handovers = rolled_out()
    del store.records[handovers[1].rollout_id]
    figures = train(JOB, store, handovers, ignore)
    assert figures.intact == 3
    assert len(figures.failures) == 1
    assert handovers[1].rollout_id in figures.failures[0]
    assert "not_found" in figures.failures[0]


def test_requests_that_the_rollout_process_never_sent_are_named():
    store, handovers = rolled_out()
    figures = train(JOB, store, handovers[:1], ignore)
    assert figures.intact == 1
    assert len(figures.failures) == 1
    assert figures.failures[0].startswith("3 of 4 requests never came")
    assert handovers[2].rollout_id in figures.failures[0]


def test_check_notices_one_changed_value_a_lost_row_and_another_schema():
    store, handovers = rolled_out()
    handover, record = handovers[0], store.records[handovers[0].rollout_id]
    assert check(JOB, handover, record) == []
    changed = record.routing.copy()
    changed[3, 2, 1] ^= 1
    assert "SHA-256" in "".join(check(JOB, handover, Record(changed, record.schema)))
    assert "shape" in "".join(check(JOB, handover, Record(record.routing[:, 1:], record.schema)))
    assert "schema" in "".join(check(JOB, handover, Record(record.routing, None)))


def test_disagreement_ignores_the_order_of_the_experts():
    rollout = np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    trainer = np.array([[[4, 3, 2, 1], [5, 6, 9, 8]]])
    assert choice_disagreement(rollout, trainer).tolist() == [[[False] * 4, [False, False, True, False]]]


# --- the verdict --------------------------------------------------------------------------------------------------

GOOD = TrainerFigures(
    failures=[],
    intact=4,
    rows=100,
    sampled=60,
    routing_bytes=3200,
    disagreement=[0.01] * 8,
    token_disagreement=0.05,
    without_replay=Mismatch(0.04, 0.01),
    with_replay=Mismatch(0.004, 0.00001),
    get_seconds=[0.1, 0.3, 0.2, 0.2],
    seconds=1.0,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"disagreement": [0.0] * 8}, "never disagreed"),
        ({"with_replay": Mismatch(0.04, 0.0)}, "did not lower"),
        ({"failures": ["a record is missing"]}, "a record is missing"),
        ({"intact": 3}, "only 3 of 4"),
        ({"intact": 0}, "only 0 of 4"),
    ],
)
def test_each_shortcoming_fails_the_demo(change, message):
    report = judge(JOB, [], None, dataclasses.replace(GOOD, **change), 1.0)
    assert not report.ok
    assert message in " ".join(report.failures)


def test_good_figures_pass():
    report = judge(JOB, [], None, GOOD, 1.0)
    assert report.ok
    assert report.bytes_per_token == 32
    assert (report.get_median_s, report.get_max_s) == pytest.approx((0.2, 0.3))


# --- the two processes and the real store -------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path) -> dict[str, Any]:
    return {
        "routing_store_type": "local",
        "routing_store_config": {"store_dir": str(tmp_path / "routing"), "namespace": "demo"},
    }


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """The folder below which the demo's shared memory lies."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr("fastdeploy_routing_plugins.demo.run.SHM", str(folder))
    return folder


@pytest.fixture
def started(monkeypatch) -> dict[str, subprocess.Popen[bytes]]:
    """The demo's processes by name."""
    processes: dict[str, subprocess.Popen[bytes]] = {}

    class Recorded(subprocess.Popen):
        def __init__(self, args: list[str], **kwargs: Any) -> None:
            super().__init__(args, **kwargs)
            processes[args[-1].rpartition(".")[2]] = self

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return processes


def test_the_whole_demo_succeeds_and_reports_every_figure(config):
    seen = []
    report = run_demo(config, progress=lambda *event: seen.append(event))
    assert report.failures == ()
    assert report.ok
    assert report.wall_s < 100
    assert report.intact == report.requests == 32
    assert report.sampled_tokens >= 32 * 96
    assert report.tokens > report.sampled_tokens
    assert report.bytes_per_token == 32
    assert report.layer_ids == tuple(range(1, 9))
    assert len(report.disagreement_per_layer) == 8
    assert 0.001 < report.disagreement < 0.05
    assert report.logprob_mismatch_with_replay < report.logprob_mismatch_without_replay / 3
    assert report.kl_with_replay < report.kl_without_replay / 10
    assert 0 < report.hand_over_median_s <= report.hand_over_max_s
    assert 0 < report.store_median_s <= report.store_max_s
    assert "local" in report.transport
    assert 0 < report.get_median_s <= report.get_max_s
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True
    for phase in ("rollout", "trainer"):
        assert [event for event in seen if event[0] == phase] == [(phase, done, 32) for done in range(1, 33)]


def test_the_demo_can_run_twice_in_the_same_store(config):
    reports = [run_demo(config, requests=4, new_tokens=24, seed=seed) for seed in (0, 1)]
    assert [report.failures for report in reports] == [(), ()]


def test_the_demo_leaves_no_shared_memory(config, shm):
    run_demo(config, requests=4, new_tokens=24)
    assert list(shm.iterdir()) == []


def test_a_killed_rollout_process_leaves_no_worker_and_no_shared_memory(config, shm, started):
    seen = []

    def kill(phase: str, *_: object) -> None:
        if phase == "rollout":
            seen.extend(workers_below(shm))
            started["rollout"].kill()

    run_demo(config, requests=64, new_tokens=50, progress=kill)
    assert (len(set(seen)), workers_below(shm), list(shm.iterdir())) == (1, [], [])


def workers_below(folder: Path) -> list[int]:
    """The store workers whose shared memory lies below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in (text := path.read_bytes()) and b"writer.worker" in text:
                found.append(int(path.parent.name))
    return found


def test_what_cannot_be_stored_fails_the_demo(config, monkeypatch):
    monkeypatch.setenv("FD_ROUTING_STORE_DISABLED", "local")
    report = run_demo(config, requests=2, new_tokens=12)
    assert not report.ok
    assert "store_disabled" in report.failures[0]


def test_sabotage_makes_the_demo_fail(config):
    report = run_demo(config, requests=4, new_tokens=24, sabotage=True)
    assert not report.ok
    assert sum("SHA-256 differs" in failure for failure in report.failures) == 2
    assert report.intact == 2


@pytest.mark.parametrize("victim", ["rollout", "trainer"])
def test_a_killed_process_ends_the_demo_at_once_and_is_named(config, started, victim):
    killed = []

    def kill(phase: str, *_: object) -> None:
        if phase == victim:
            killed.append(time.monotonic())
            started[victim].kill()

    report = run_demo(config, requests=64, new_tokens=200, progress=kill)
    assert time.monotonic() - killed[0] < 30
    assert not report.ok
    assert any(f"the {victim} process was killed by signal 9" in failure for failure in report.failures)
    assert all(process.returncode is not None for process in started.values())


def test_a_demo_that_takes_too_long_is_stopped_and_says_how_far_it_came(config, started):
    report = run_demo(config, requests=64, new_tokens=400, timeout=1.5)
    assert not report.ok
    assert "not finished after 1.5 s" in report.failures[0]
    assert report.wall_s < 15
    assert all(process.returncode is not None for process in started.values())


def test_a_failing_progress_callback_leaves_no_process_behind(config, started):
    def fail(*_: object) -> None:
        raise RuntimeError("the terminal is gone")

    with pytest.raises(RuntimeError, match="terminal"):
        run_demo(config, requests=4, new_tokens=24, progress=fail)
    assert len(started) == 2
    assert all(process.returncode is not None for process in started.values())


def test_an_unknown_store_is_reported_with_its_error_code():
    report = run_demo({"routing_store_type": "no-such-store", "routing_store_config": {}}, requests=2)
    assert not report.ok
    assert "unknown_store" in report.failures[0]


@pytest.mark.parametrize(
    "arguments",
    [{"requests": 0}, {"requests": 1, "sabotage": True}, {"new_tokens": 0}, {"seed": -1}, {"timeout": 0}],
)
def test_arguments_out_of_range_are_refused(config, arguments):
    with pytest.raises(ValueError, match="the demo needs"):
        run_demo(config, **arguments)
