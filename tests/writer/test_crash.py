"""The crash matrix: engine, worker or both are killed or stopped at random moments, or the store fails.

After each case every acknowledged part is stored and unchanged, every other one is stored or was reported, nothing was
held up beyond its deadline, and neither a process nor shared memory is left. ``crash_cases`` says what happens.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastdeploy_routing_plugins.errors import BackendError

from . import crash_processes as processes
from .crash_cases import KINDS
from .helpers import PATIENCE, Place, routing, until, workers

CRASHES = int(os.environ.get("FD_ROUTING_TEST_CRASHES", "20"))  # 200 is the long form
SEED = int(os.environ.get("FD_ROUTING_TEST_SEED", "0"))
PAUSE = 10.0 if CRASHES >= 100 else 2.0  # s that a worker is stopped
SHARES = {"worker": 4, "engine": 3, "both": 4, "half": 2, "stop": 1, "full": 1, "read_only": 1, "hang": 1, "flaky": 2,
          "lie": 1}  # fmt: skip
VICTIMS = {"worker": "killed worker", "engine": "killed engine", "both": "killed engine", "half": "killed engine",
           "stop": "stopped"}  # fmt: skip
LIMIT = 240.0  # s for one case; far beyond all of its deadlines
ROOT = Path(__file__).parents[2]


def may_mount() -> list[str] | None:
    """Returns the command that gives a process mounts of its own, or None where that is not allowed."""
    for command in (["unshare", "-m"], ["unshare", "-Urm"]):
        probe = [*command, "mount", "-t", "tmpfs", "none", "/mnt"]
        if shutil.which("unshare") and subprocess.run(probe, check=False, capture_output=True).returncode == 0:
            return command
    return None


class Driver:
    """The process that runs the cases."""

    def __init__(self, base: Path) -> None:
        mounts = may_mount()
        self._process = subprocess.Popen(
            [
                *(mounts or []), sys.executable, "-m", "tests.writer.crash_driver", str(base),
                "mounts" if mounts else "no mounts", str(PAUSE),
            ],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip

    def run(self, kind: str, seed: int) -> tuple[list[str], Counter[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {seed}\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        assert ready, f"case {kind} {seed} hangs"
        answer = json.loads(self._process.stdout.readline())
        return answer["problems"], Counter(answer["counts"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    """Runs cases in a folder in memory if there is room, where arenas belong."""
    with tempfile.TemporaryDirectory(prefix="fd-crash-", dir=processes.roomy()) as base:
        started = Driver(Path(base))
        yield started
        started.close()


def batches() -> list[tuple[str, int, int]]:
    """Returns ``(kind, first seed, number)``; few enough to a test that none takes minutes."""
    found = []
    for kind in KINDS:
        number = max(1, CRASHES * SHARES[kind] // sum(SHARES.values()))
        found += [(kind, first, min(5, number - first)) for first in range(0, number, 5)]
    return found


@pytest.mark.parametrize(("kind", "first", "number"), batches())
def test_nothing_acknowledged_is_lost_and_nothing_else_unaccounted_for(
    driver: Driver, kind: str, first: int, number: int
) -> None:
    problems: dict[str, list[str]] = {}
    total: Counter[str] = Counter()
    for seed in range(SEED + first, SEED + first + number):
        found, counts = driver.run(kind, seed)
        total += counts
        if kind in VICTIMS and not counts[VICTIMS[kind]]:
            found.append(f"nothing was {VICTIMS[kind]}")
        if found:
            problems[f"{kind} {seed}"] = found
    print(f"{number} cases of {kind}: {dict(total)}")
    assert problems == {}


# --- what the matrix found: faults that only a certain order of events shows -----------------------------------------

LEAVE = """
writer = place.writer({store!r}, limits={{"call_timeout": 1.0, "retry_for": 1.0}})
worker = writer.stats().worker_pid
os.kill(worker, signal.SIGSTOP)
{deeds}
os.kill(worker, {signal})
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave(place: Place, deeds: str, *, store: str = "local", worker: str = "signal.SIGKILL") -> None:
    """Runs an engine that dies with everything that it handed over still to be done; its worker dies or goes on."""
    ended = place.run("import signal\n" + LEAVE.format(store=store, deeds=deeds, signal=worker))
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    until(lambda: not workers(place.arena_dir))


def test_what_failed_when_nobody_was_left_is_not_done_again_after_what_came_later(place: Place) -> None:
    deeds = "writer.submit('x', routing(), attempt=1); writer.submit('x', routing(), attempt=0); writer.delete('x')"
    leave(place, deeds, worker="signal.SIGCONT")
    with place.writer():
        pass
    assert place.ids() == []


def test_what_failed_when_nobody_was_left_is_reported_by_the_next_start(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    leave(place, "writer.submit('x', routing(), attempt=1); writer.submit('x', routing())", worker="signal.SIGCONT")
    with place.writer():
        pass
    assert "left by a dead run and lost: put of 'x', layers 0:6, tokens 0:10: superseded" in caplog.text


def test_nothing_passes_what_an_unavailable_store_did_not_take_when_nobody_was_left(place: Place) -> None:
    place.flag.touch()
    deeds = "writer.submit('x:0:0', routing()); writer.delete('x:0:0'); writer.submit('x:1:0', routing())"
    leave(place, deeds, store="unavailable", worker="signal.SIGCONT")
    place.flag.unlink()
    with place.writer("unavailable"):
        pass
    assert place.ids() == ["x:1:0"]


def test_the_next_start_clears_what_the_dead_run_wrote(place: Place) -> None:
    leave(place, "writer.submit('x', routing()); writer.clear(); writer.submit('y', routing())")
    with place.writer():
        pass
    assert place.ids() == ["y"]


def test_each_of_many_losses_of_a_dead_run_is_reported(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    leave(place, "for n in range(25): writer.submit(f'broken:{n}', routing())", store="broken")
    with place.writer("broken"):
        pass
    assert caplog.text.count("left by a dead run and lost: put of 'broken:") == 25


def test_a_part_of_a_dead_run_that_hangs_costs_the_new_run_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    leave(place, "writer.submit('hang', routing())", store="hanging")
    with place.writer("hanging", limits={"call_timeout": 1.0}) as writer:
        for number in range(5):
            writer.submit(f"x:{number}", routing())
        report = writer.flush()
    assert (report.failed, report.stored) == (0, 5)
    assert "left by a dead run and lost: put of 'hang', layers 0:6, tokens 0:10: quarantined" in caplog.text


@pytest.mark.parametrize(("deed", "what"), [("seal", 10), ("abort", "why")])
def test_a_mark_that_a_store_does_not_keep_is_reported(place: Place, deed: str, what: object) -> None:
    with place.writer("lying", every=1) as writer:
        ticket = getattr(writer, deed)("x", what)
        with pytest.raises(BackendError, match="does not have it"):
            ticket.result(PATIENCE)
