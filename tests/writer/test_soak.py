"""The soak: random submits at 80 % of what is possible, a worker that is killed now and then, and nothing that grows.

A reader gets every rollout that was acknowledged, compares it, and deletes it, as a trainer does. Memory, descriptors,
threads and shared memory at the end are those after the warm-up.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import SyncStore, open_store
from fastdeploy_routing_plugins.errors import RoutingError

from . import crash_processes as processes
from .soak_routing import SCHEMA, routing

SECONDS = float(os.environ.get("FD_ROUTING_TEST_SOAK_SECONDS", "20"))  # 1800 is the long form
SHARE = 0.8  # of the capacity
WARM_UP = 4.0  # s of full speed, before anything is compared
PATIENCE = 120.0  # s for what takes a few
LANES_HOLD = 16  # descriptors of puts in progress; a leak of one a put would be hundreds
MORE_MEMORY = 24 << 20  # bytes of private memory that are no growth yet
ROOT = Path(__file__).parents[2]


class Engine:
    """The engine's process."""

    def __init__(self, config: dict[str, Any], limits: dict[str, Any], told: int) -> None:
        command = [sys.executable, "-m", "tests.writer.soak_engine", json.dumps(config), json.dumps(limits), str(told)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[told]
        )

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def answered(self, seconds: float) -> bool:
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def ask(self, command: str, seconds: float = PATIENCE) -> Any:
        self.say(command)
        assert self.answered(seconds), f"no answer to {command!r}"
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@dataclass
class Reader:
    """Gets, compares and deletes what was acknowledged."""

    store: SyncStore
    wrong: list[str] = field(default_factory=list)
    read: int = 0
    nbytes: int = 0

    def follow(self, told: int) -> None:
        with open(told, encoding="ascii") as lines:
            for line in lines:
                key, tokens = line.split()
                self._check(key, routing(key, int(tokens)))

    def _check(self, key: str, expected: np.ndarray) -> None:
        try:
            found = self.store.get(key).routing
            if not np.array_equal(found, expected):
                self.wrong.append(f"{key} comes back changed")
            self.store.delete(key)
        except RoutingError as err:
            self.wrong.append(f"{key}: {err.code}: {err}")
        self.read += 1
        self.nbytes += expected.nbytes


@dataclass(frozen=True)
class Sample:
    """What a process holds."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Sample | None:
        """Looks at a process; None if it is gone, or going."""
        with contextlib.suppress(OSError, KeyError, ValueError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
            memory = int(facts["RssAnon"].split()[0]) << 10
            return cls(memory, len(os.listdir(f"/proc/{pid}/fd")), int(facts["Threads"]))
        return None


@dataclass
class Watch:
    """Samples, and kills the worker now and then.

    Attributes:
        engine: Of the engine, in time.
        workers: Of each worker, in time.
        shared: Names and allocated bytes of what lies in the arena's folder, in time.
        kills: How many workers were killed.
    """

    folder: Path
    pid: int
    engine: list[Sample] = field(default_factory=list)
    workers: dict[int, list[Sample]] = field(default_factory=dict)
    shared: list[tuple[int, int]] = field(default_factory=list)
    kills: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(3)
        self._next = time.monotonic() + 1.0

    def look(self, *, kill: bool) -> None:
        workers = processes.workers(self.folder)
        for pid, samples in [(self.pid, self.engine), *[(pid, self.workers.setdefault(pid, [])) for pid in workers]]:
            sample = Sample.of(pid)
            if sample is not None:
                samples.append(sample)
        entries = [entry.stat() for entry in os.scandir(self.folder)]
        self.shared.append((len(entries), sum(entry.st_blocks * 512 for entry in entries)))
        if kill and time.monotonic() > self._next:
            processes.send(workers, signal.SIGKILL)
            self.kills += len(workers)
            self._next = time.monotonic() + self._chance.choice([2.0, 3.0, 5.0, max(5.0, SECONDS / 8)])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder, in memory if there is room, for the store and the arena."""
    with tempfile.TemporaryDirectory(prefix="fd-soak-", dir=processes.roomy()) as base:
        Path(base, "arenas").mkdir()
        yield Path(base)
        processes.send(processes.workers(Path(base)), signal.SIGKILL)  # of a test that failed


@dataclass(frozen=True)
class Soaked:
    """What a soak amounted to."""

    watch: Watch
    reader: Reader
    answer: dict[str, Any]
    status: int
    left: list[str]
    rollouts: int


def soak(folder: Path) -> Soaked:
    """Runs the soak."""
    arenas = folder / "arenas"
    config = {"routing_store_type": "local", "local_store_dir": str(folder / "store")}
    room = os.statvfs(folder)
    limits = {"arena_bytes": min(128 << 20, room.f_bavail * room.f_frsize // 4), "arena_dir": str(arenas)}
    theirs, ours = os.pipe()
    with open_store(config, schema=SCHEMA) as store:
        reader = Reader(store)
        thread = threading.Thread(target=reader.follow, args=(theirs,))
        thread.start()
        engine = Engine(config, limits, ours)
        os.close(ours)
        try:
            rate = SHARE * capacity(engine, reader)
            watch = Watch(arenas, engine.process.pid)
            engine.say(f"run {SECONDS} {rate}")
            end = time.monotonic() + SECONDS + PATIENCE
            while not engine.answered(0.25):
                watch.look(kill=time.monotonic() < end - PATIENCE)
                assert time.monotonic() < end, "the engine hangs"
            answer = engine.answer()
            stats = engine.ask("stats")
            engine.ask("close")
            status = engine.process.wait(PATIENCE)
        finally:
            engine.process.kill()
            engine.process.wait()
            for stream in (engine.process.stdin, engine.process.stdout):
                assert stream is not None
                stream.close()
        thread.join(PATIENCE)
        assert processes.until(lambda: not processes.workers(folder), PATIENCE)
        left = sorted(os.listdir(arenas))
        rollouts = len(store.list())
    print(
        f"{SECONDS:.0f} s at {rate / 1e6:.0f} MB/s: {answer}, {reader.read} read, {watch.kills} kills, "
        f"{stats['worker_restarts']} restarts, {watch.engine[0]} to {watch.engine[-1]}"
    )
    return Soaked(watch, reader, answer, status, left, rollouts)


def capacity(engine: Engine, reader: Reader) -> float:
    """Returns how many bytes a second engine, worker and reader can do together."""
    began = time.monotonic()
    stored = engine.ask(f"capacity {WARM_UP}")
    assert processes.until(lambda: reader.nbytes >= stored, PATIENCE), "the reader does not keep up"
    return reader.nbytes / (time.monotonic() - began)


def halves(values: list[Any]) -> tuple[Any, Any]:
    """Returns the medians of the second and of the last quarter."""
    quarter = len(values) // 4
    assert quarter > 2, "too few samples"
    return statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])


def test_nothing_is_lost_and_nothing_grows(folder: Path) -> None:
    faulthandler.dump_traceback_later(SECONDS + 5 * PATIENCE, exit=True, file=sys.__stderr__)  # pytest's is shorter
    done = soak(folder)
    watch = done.watch
    problems = list(done.reader.wrong[:10])
    if done.answer["failed"] or done.answer["pending"]:
        problems.append(f"not everything was stored: {done.answer}")
    early = done.reader.read - done.answer["submitted"]
    if early != 0:
        problems.append(f"{done.reader.read} rollouts were read, {done.answer['submitted']} submitted")
    if (done.status, done.left, done.rollouts) != (0, [], 0):
        problems.append(f"ended with {done.status}, left {done.left} and {done.rollouts} rollouts")
    for name, slack in (("memory", MORE_MEMORY), ("descriptors", 1), ("threads", 1)):
        before, after = halves([getattr(sample, name) for sample in watch.engine])
        if after > before + slack:
            problems.append(f"the engine's {name} grew from {before} to {after}")
    before, after = halves([shared for _, shared in watch.shared])
    if after > before or max(number for number, _ in watch.shared) > 2:  # the arena and its pins
        problems.append(f"shared memory grew from {before} to {after}, {max(watch.shared)}")
    problems += grown_workers(watch)
    if not watch.kills:
        problems.append("no worker was killed")
    assert problems == []


def grown_workers(watch: Watch) -> list[str]:
    """Returns what grew while a worker lived, and from one worker to the next."""
    lives = [samples[2:] for samples in watch.workers.values() if len(samples) > 6]  # started, and at work
    assert lives, "no worker lived long enough to be looked at"
    problems = []
    for name, slack in (("memory", MORE_MEMORY), ("descriptors", LANES_HOLD), ("threads", 4)):
        first = statistics.median(getattr(sample, name) for samples in lives[:2] for sample in samples[:4])
        last = max(statistics.median(getattr(sample, name) for sample in samples[-4:]) for samples in lives)
        if last > first + slack:
            problems.append(f"a worker's {name} grew from {first} to {last}")
    return problems
