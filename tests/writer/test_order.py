"""Random sequences of operations against a model: the order per trajectory holds, and with it everything else.

Eight trajectories meet in puts of higher and lower attempts, deletes, aborts, seals and clears, all handed over at
full speed. Then list, bytes, and what each ticket says must be the model's, also if the worker was killed meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastdeploy_routing_plugins import RoutingWriter, SyncStore, open_store, open_writer
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.writer.tickets import Ticket

from . import crash_processes as processes
from .order_engine import steps_of
from .order_model import SCHEMA, Model, Step, hand_over, sequence

SEQUENCES = int(os.environ.get("FD_ROUTING_TEST_SEQUENCES", "500"))  # 10,000 is the long form
BATCH = 500  # sequences that one writer takes
DEATH = 10  # sequences that one engine hands over before it is killed
DEADLINE = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of refused operations would hide what a failing test has to say."""
    caplog.set_level(logging.CRITICAL, "fastdeploy_routing_plugins")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder, in memory if there is room, for the store and the arena."""
    with tempfile.TemporaryDirectory(prefix="fd-order-", dir=processes.roomy()) as base:
        Path(base, "arenas").mkdir()
        yield Path(base)
        processes.send(processes.workers(Path(base)), signal.SIGKILL)  # of a test that failed


def batches() -> list[tuple[str, bool, int, int]]:
    """Returns ``(what happens to the worker, only_last_turn, first sequence, number)``."""
    ways = [("undisturbed", False), ("killed", False), ("undisturbed", True), ("killed", True)]
    size = min(BATCH, -(-SEQUENCES // len(ways)))
    return [
        (*ways[index % len(ways)], first, min(size, SEQUENCES - first))
        for index, first in enumerate(range(0, SEQUENCES, size))
    ]


def stored(store: SyncStore) -> dict[str, Any]:
    """Returns what ``Model.seen`` returns, from the store."""
    found: dict[str, Any] = {}
    for status in store.list():
        key = status.key.rollout_id
        content = store.get(key).routing.tobytes() if status.state == "complete" else b""
        parts = tuple(sorted(part.part.tokens for part in status.parts))
        found[key] = status.state, status.attempts, parts, content
    return found


def ended(ticket: Ticket, step: Step) -> Any:
    try:
        outcome = ticket.result(DEADLINE)
    except RoutingError as err:
        return err.code
    return outcome.count if step[0] in ("delete", "delete_prefix", "clear") else "ok"


def compare(said: list[Any], expected: list[Any], steps: list[Step], *, killed: bool) -> list[str]:
    """Returns what operations said other than the model."""
    found = []
    for number, (one, other) in enumerate(zip(said, expected, strict=True)):
        # Done again after a kill, a delete may find nothing that is left to delete.
        if one != other and not (killed and type(one) is type(other) is int and one < other):
            found.append(f"operation {number}, {steps[number]}, said {one}, not {other}")
    return found


def differences(found: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Returns where a store differs from the model."""
    keys = sorted(key for key in {*found, *right} if found.get(key) != right.get(key))
    return [f"{key} is {found.get(key)}, not {right.get(key)}" for key in keys]


def kill_soon(writer: RoutingWriter, chance: random.Random) -> threading.Thread:
    """Kills the worker in a moment, in the midst of what is handed over meanwhile."""
    pause = chance.random() * 0.03

    def kill() -> None:
        time.sleep(pause)
        if pid := writer.stats().worker_pid:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.no_cover  # see conftest
@pytest.mark.parametrize(("worker", "only_last_turn", "first", "number"), batches())
def test_any_sequence_of_operations_equals_the_model(
    folder: Path, worker: str, only_last_turn: bool, first: int, number: int
) -> None:
    options = {"store_dir": str(folder / "store"), "only_last_turn": only_last_turn}
    config = {"routing_store_type": "local", "routing_store_config": options}
    limits = {"arena_bytes": 16 << 20, "arena_dir": str(folder / "arenas"), "lanes": 4}
    wrong: list[str] = []
    kills = 0
    with open_writer(config, schema=SCHEMA, limits=limits) as writer, open_store(config, schema=SCHEMA) as store:
        for index in range(first, first + number):
            chance = random.Random(index)
            model = Model(only_last_turn=only_last_turn)
            killer = kill_soon(writer, chance) if worker == "killed" and chance.random() < 0.15 else None
            kills += killer is not None
            steps = sequence(chance, f"s{index}")
            tickets = [hand_over(writer, step) for step in steps]
            expected = [model.do(step) for step in steps]
            writer.flush(DEADLINE)
            said = [ended(ticket, step) for ticket, step in zip(tickets, steps, strict=True)]
            if killer is not None:
                killer.join()
            found = compare(said, expected, steps, killed=killer is not None)
            found += differences(stored(store), model.seen())
            if found:
                wrong.append("\n".join([f"sequence {index}", *map(str, steps), *found]))
            writer.clear(everything=True).result(DEADLINE)
        restarts = writer.stats().worker_restarts
    print(f"{number} sequences, {kills} kills, {restarts} restarts")
    assert not wrong, "\n\n".join(wrong[:3])
    assert (restarts > 0) == (kills > 0)


@pytest.mark.parametrize("worker", ["goes on", "is killed"])
@pytest.mark.parametrize("only_last_turn", [False, True])
def test_sequences_whose_engine_was_killed_equal_the_model(folder: Path, only_last_turn: bool, worker: str) -> None:
    wrong: list[str] = []
    for death in range(max(1, SEQUENCES // 200)):
        store_dir = folder / f"store-{death}"
        options = {"store_dir": str(store_dir), "only_last_turn": only_last_turn}
        config = json.dumps({"routing_store_type": "local", "routing_store_config": options})
        limits = json.dumps({"arena_bytes": 16 << 20, "arena_dir": str(folder / "arenas")})
        first = 1_000_000 + DEATH * death
        engine = subprocess.run(
            [sys.executable, "-m", "tests.writer.order_engine", config, limits, str(first), str(DEATH)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        assert engine.returncode == -signal.SIGKILL
        pid = json.loads(engine.stdout)
        os.kill(pid, signal.SIGCONT)
        if worker == "is killed":
            time.sleep(random.Random(first).random() * 0.4)
            processes.send([pid], signal.SIGKILL)
        assert processes.until(lambda: not processes.workers(folder), DEADLINE)
        with open_writer(config, schema=SCHEMA, limits=limits) as writer:  # stores what is left
            writer.flush(DEADLINE)
        model = Model(only_last_turn=only_last_turn)
        for step in steps_of(first, DEATH):
            model.do(step)
        with open_store(config, schema=SCHEMA) as store:
            found = differences(stored(store), model.seen())
        if found:
            wrong.append("\n".join([f"sequences from {first}", *found]))
    assert not wrong, "\n\n".join(wrong[:3])
    assert os.listdir(folder / "arenas") == []
