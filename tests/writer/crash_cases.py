"""One case of the crash matrix: an engine works, something is killed or fails, and everything is accounted for."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from . import crash_faults as faults
from . import crash_processes as processes
from .crash_diary import SCHEMA, Story, check
from .crash_engine import CLOSE, FLUSH, Plan
from .stores import config, environment, read

ENGINE_END = FLUSH + CLOSE + 60.0  # s within which an engine that was not killed must have ended
WORKER_END = 60.0  # s within which a worker without an engine must have ended
SLACK = 15.0  # s that a loaded machine may add to a deadline
KINDS = ("worker", "engine", "both", "half", "stop", "full", "read_only", "hang", "flaky", "lie")


class Case:
    """Runs one case.

    Args:
        kind: One of ``KINDS``.
        seed: Of everything random.
        base: A folder on a tmpfs, for everything.
        plugins: Where the stores are installed that misbehave.
        mounts: Whether this process may mount file systems.
        pause: How long a worker is stopped.
    """

    def __init__(self, kind: str, seed: int, base: Path, plugins: Path, *, mounts: bool, pause: float) -> None:
        self.kind = kind
        self.chance = random.Random(f"{kind} {seed}")
        self.folder = base / f"{kind}-{seed}"
        self.plugins = plugins
        self.arenas = self.folder / "arenas"
        self.spill = self.folder / "spill"
        self.arenas.mkdir(parents=True)
        choices = faults.kinds(mounts).get(kind, [faults.Fault])
        self.fault = choices[seed % len(choices)](self.folder, self.chance)
        self.pause = pause
        self.seed = seed
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.plans: list[Plan] = []
        self.engine = 0

    def run(self) -> dict[str, Any]:
        """Returns what was wrong, and how much of what was seen."""
        self.fault.prepare()
        try:
            self._start(self.chance.uniform(0.3, 2.0))
            getattr(self, f"_do_{self.kind}", self._do_fault)()
            self._recover()
            self._account()
        finally:
            stray = processes.workers(self.folder)
            processes.send([*stray, *([self.engine] if self.engine else [])], signal.SIGKILL)
            self.fault.remove()
            kept = self.folder if not self.problems else Path(f"{self.folder}-kept")
            if self.problems and (keep := os.environ.get("FD_ROUTING_TEST_KEEP")):
                shutil.copytree(self.folder, Path(keep) / kept.name, dirs_exist_ok=True)
            shutil.rmtree(self.folder)
        return {"problems": self.problems, "counts": dict(self.counts)}

    # --- what happens -------------------------------------------------------------------------------------------

    def _do_worker(self) -> None:
        for number in range(self.chance.choice([1, 1, 2, 4])):
            self._moment("start", "work", "work") if number == 0 else self._moment()
            if number == 0:
                processes.until(lambda: bool(processes.workers(self.folder)), 30)
            self._kill("worker")
        self._await_engine()

    def _do_engine(self) -> None:
        self._moment()
        stopped = self._hold_up()
        self._kill("engine")
        processes.send(stopped, signal.SIGCONT)

    def _do_both(self) -> None:
        self._moment()
        self._hold_up()
        self._kill("both")

    def _do_half(self) -> None:
        self._await_line("half", 30)
        time.sleep(self.chance.random() * 0.05)
        self._kill(self.chance.choice(["engine", "both"]))

    def _do_stop(self) -> None:
        self._await_line("opened", 30)
        time.sleep(self.chance.random() * self.plans[0].seconds)
        stopped = processes.workers(self.folder)
        processes.send(stopped, signal.SIGSTOP)
        self.counts["stopped"] += len(stopped)
        dies = self.chance.choice(["", "", "", "engine", "worker"])
        time.sleep(self.pause * (self.chance.random() if dies else 1.0))
        if dies:
            self._kill(dies)
        processes.send(stopped, signal.SIGCONT)
        if dies != "engine":
            self._await_engine()

    def _do_fault(self) -> None:
        self._await_line("opened", 30)
        time.sleep(self.chance.random() * self.plans[0].seconds)
        self.fault.begin()
        dies = self.chance.choice(["", "", "worker", "engine", "both"])
        heals = self.chance.random() < 0.5
        time.sleep(self.chance.random() * (2.0 if heals else 0.5))
        if dies:
            self._kill(dies)
        if heals:
            time.sleep(self.chance.random() * 2.0)
            self.fault.end()
        if dies in ("", "worker"):
            self._await_engine()
        elif not heals:
            self._await_workers()
        self.fault.end()

    def _hold_up(self) -> list[int]:
        """Sometimes stops the worker for a moment, so that much is on its way."""
        if self.chance.random() < 0.3:
            return []
        stopped = processes.workers(self.folder)
        processes.send(stopped, signal.SIGSTOP)
        time.sleep(self.chance.random() * 0.4)
        return stopped

    # --- and afterwards -----------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Ends everything; the next start, or ``clean``, does what is left, also if it is killed in turn."""
        self._await_engine()
        self._await_workers()
        left = self._arenas_left()
        self.counts["arenas left"] += len(left)
        if left and self.kind in ("worker", "stop"):
            story = self._story()
            if not any(line["pending"] for line in story.lines.get("close", [])):
                self.problems.append(f"{left} left, although the engine closed in good order")
        if left and self.kind in ("engine", "half") and not self.counts["killed worker"] and self._opened():
            self.problems.append(f"{left} left by a worker that could store everything")
        if left and self.chance.random() < 0.35:
            self.counts["cleaned"] += 1
        elif left or self.chance.random() < 0.2:
            while self.chance.random() < 0.5:  # killed while it adopts, or starts, or ends
                self.counts["killed again"] += 1
                self._start(0.1)
                self._moment("start")
                self._kill(self.chance.choice(["worker", "engine", "both"]))
                self._await_engine()
                self._await_workers()
            self._start(0.1)
            self._await_engine()
            self._await_workers()
        self._clean()

    def _clean(self) -> None:
        """Runs ``fd-routing clean``; after a call that hangs again, since that gives a part up at the third time."""
        if self.chance.random() < 0.3 and self._arenas_left():
            with subprocess.Popen(self._command(), stdout=subprocess.DEVNULL, env=self._environment()) as killed:
                time.sleep(self.chance.random())
                killed.kill()
            self.counts["killed clean"] += 1
        nothing = not os.listdir(self.arenas) and self.chance.random() < 0.8  # it takes its time also then
        for _ in range(0 if nothing else 1 if self.fault.heals else 30):
            done = subprocess.run(
                self._command(), env=self._environment(), capture_output=True, text=True, check=False, timeout=90
            )
            answer = json.loads(done.stdout)
            for arena in answer["arenas"]:
                self.counts["stored by clean"] += arena["stored"]
                for failure in arena["failed"]:
                    self._note_lost(failure["what"], failure["why"])
            if not self._arenas_left():
                break
        else:
            if not nothing:
                self.problems.append(f"clean does not get anywhere: {answer}")
        for folder in (self.arenas, self.spill):
            left = sorted(os.listdir(folder)) if folder.exists() else []
            if left:
                self.problems.append(f"{left} left in {folder.name}")

    def _command(self) -> list[str]:
        spill = ["--spill-dir", str(self.spill)] if self.spill.exists() else []
        program = str(Path(sys.executable).with_name("fd-routing"))
        return [program, "clean", "--json", "--arena-dir", str(self.arenas), *spill]

    def _environment(self) -> dict[str, str]:
        return environment(self.plugins)

    def _note_lost(self, what: str, why: str) -> None:
        with (self.folder / "clean").open("a") as file:
            text = f"left by a dead run and lost: {what}: {why}"
            file.write(json.dumps({"is": "log", "level": 40, "text": text}) + "\n")

    def _account(self) -> None:
        story = self._story()
        with read(self.fault.store, schema=SCHEMA) as store:
            self.problems += check(story, store)
        for plan in self.plans:
            self._account_engine(plan)
        self.counts["handed over"] += sum(done.state != "out" for done in story.done)
        self.counts["refused"] += sum(done.state == "out" for done in story.done)
        self.counts["acknowledged"] += sum(done.state == "ack" for done in story.done)
        self.counts["failed"] += sum(done.state == "fail" for done in story.done)
        self.counts["unanswered"] += story.unknown
        self.counts["lost and reported"] += len(story.lost)
        if self.kind in ("worker", "engine", "both", "half", "stop"):
            # A part over which three workers are killed is given up; one stopped for too long has hung.
            allowed = {"quarantined"} if self.counts["killed worker"] >= 3 else set()
            allowed |= {"store_unavailable"} if self.kind == "stop" else set()
            wrong = [f"{done.text}: {done.code}" for done in story.done if done.state == "fail"]
            wrong += [f"{what}: {why}" for what, why in story.lost.items()]
            wrong = [text for text in wrong if not text.endswith(tuple(f": {code}" for code in allowed))]
            self.problems += [f"nothing was wrong with the store, but {text}" for text in wrong]

    def _account_engine(self, plan: Plan) -> None:
        """Checks what one engine was told, and that nothing held it up beyond its deadline."""
        story = Story()
        story.add(plan.diary)
        said = plan.diary.with_suffix(".stderr")
        words = said.read_text().strip() if said.exists() else ""  # killed before it came so far
        if words:
            self.problems.append(f"{plan.name} printed {words}")
        for what in ("flush", "close"):
            for line in story.lines.get(what, []):
                if line["seconds"] > line["limit"] + SLACK:
                    self.problems.append(f"{plan.name}: {what} took {line['seconds']:.1f} s")
        for line in story.lines.get("longest", []):
            if line["seconds"] > plan.limits["on_full_wait"] + SLACK:
                self.problems.append(f"{plan.name}: a hand-over took {line['seconds']:.1f} s")
        if "ended" not in story.lines:
            return
        reports = story.lines.get("flush", []) + story.lines["close"]
        told = Counter(line["what"] for line in story.lines.get("failure", []) if line["what"] != "flush")
        failed = Counter(done.text for done in story.done if done.state == "fail")
        if told != failed:
            self.problems.append(f"{plan.name}: on_failure heard of {told}, tickets failed for {failed}")
        if sum(line["failed"] for line in reports) < sum(failed.values()):
            self.problems.append(f"{plan.name}: the reports lack failures")
        open_still = [done.text for done in story.done if done.state == "in"]
        if open_still and not story.lines["close"][0]["pending"]:
            self.problems.append(f"{plan.name}: closed without a word about {open_still}")

    # --- tools --------------------------------------------------------------------------------------------------

    def _start(self, seconds: float) -> None:
        name = f"e{len(self.plans)}"
        spills = self.chance.random() < 0.3
        limits = {
            "arena_bytes": self.chance.choice([2, 4, 12]) << 20,
            "arena_dir": str(self.arenas),
            "on_full_wait": 0.2,
            "spill_dir": str(self.spill) if spills else None,
            "retry_for": 3.0,
            "call_timeout": 1.0 if self.kind == "hang" else 20.0,
            "start_timeout": 60.0,
            "lanes": self.chance.choice([1, 3, 6]),
            "read_back": self.fault.read_back,
        }
        if self.kind == "stop":
            limits["call_timeout"] = self.chance.choice([1.0, 30.0])
        plan = Plan(
            name=name,
            diary=self.folder / name,
            config=config(self.fault.name, self.fault.store, **self.fault.options),
            limits=limits,
            seed=self.chance.randrange(1 << 30),
            seconds=seconds,
            spice=self.fault.spice if not self.plans else "",
            half=self.kind == "half" and not self.plans,
            close=self.chance.choice([0.5, CLOSE]) if self.kind == "stop" else CLOSE,
        )
        self.plans.append(plan)
        self.engine = processes.start(plan)

    def _moment(self, *phases: str) -> None:
        """Waits until a random moment of the engine's life."""
        phase = self.chance.choice(phases or ["start", "work", "work", "work", "end"])
        if phase == "start":
            time.sleep(self.chance.uniform(0.0, 0.8))
        elif phase == "work":
            self._await_line("opened", 30)
            time.sleep(self.chance.random() * self.plans[-1].seconds)
        else:
            self._await_line("closing", 60)
            time.sleep(self.chance.random() * 0.1)

    def _kill(self, what: str) -> None:
        victims = [("worker", processes.workers(self.folder)), ("engine", [self.engine] if self.engine else [])]
        self.chance.shuffle(victims)
        for name, pids in victims:
            if what in (name, "both"):
                processes.send(pids, signal.SIGKILL)
                self.counts[f"killed {name}"] += len(pids)
                if what == "both":
                    time.sleep(self.chance.choice([0.0, 0.0005, 0.01]))
        if what == "both":  # the engine may have replaced its worker in between
            processes.send(processes.workers(self.folder), signal.SIGKILL)
        if what in ("engine", "both") and self.engine:
            processes.wait(self.engine, 5)
            self.engine = 0

    def _await_engine(self) -> None:
        if not self.engine:
            return
        code = processes.wait(self.engine, ENGINE_END)
        self.engine = 0
        if code != 0:
            self.problems.append(f"{self.plans[-1].name} {'hung' if code is None else f'ended with {code}'}")

    def _await_workers(self) -> None:
        if not processes.until(lambda: not processes.workers(self.folder), WORKER_END):
            self.problems.append(f"a worker goes on: {processes.workers(self.folder)}")

    def _await_line(self, what: str, seconds: float) -> None:
        mark = f'{{"is": "{what}"'.encode()
        diary = self.plans[-1].diary

        def is_there() -> bool:
            if not diary.exists():
                return False
            text = diary.read_bytes()
            return mark in text or b'{"is": "ended"' in text or b'{"is": "unopened"' in text

        if not processes.until(is_there, seconds):
            self.problems.append(f"{self.plans[-1].name} never came to {what!r}")

    def _opened(self) -> bool:
        return "opened" in self._story().lines

    def _arenas_left(self) -> list[str]:
        return sorted(name for name in os.listdir(self.arenas) if name.endswith(".arena"))

    def _story(self) -> Story:
        story = Story()
        for plan in self.plans:
            story.add(plan.diary)
        story.add(self.folder / "clean")
        return story
