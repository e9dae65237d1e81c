"""One run: both processes, every candidate in every round, in an order that rotates."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.bench.asking import Asked
from fastdeploy_routing_plugins.bench.figures import Times
from fastdeploy_routing_plugins.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastdeploy_routing_plugins.bench.figures import Figures
    from fastdeploy_routing_plugins.bench.job import Answer, Candidate, Job
    from fastdeploy_routing_plugins.bench.presets import Work

_SUBMITTED = 1_000_000  # added to the number of a round: nothing is put twice under the same key


class _FailedError(Exception):
    """A candidate failed; the others go on."""


@dataclass(slots=True)
class Outcome:
    """What a run found.

    Attributes:
        files: Of the arrays.
        rollouts: Of the rollout end to end.
        failed: Why a candidate was given up, by its name.
    """

    files: list[Figures]
    rollouts: list[Figures]
    failed: dict[str, str]


@dataclass(slots=True)
class _Run:
    work: Work
    writing: Asked
    reading: Asked
    files: dict[str, Times] = field(default_factory=dict)
    rollouts: dict[str, Times] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def open(self, candidates: tuple[Candidate, ...]) -> None:
        """Opens all, first where they put."""
        for candidate in candidates:
            self._try(candidate, self._both)

    def _both(self, candidate: Candidate) -> None:
        for side in (self.writing, self.reading):
            _checked(side.ask("open", candidate.name), candidate)

    def turn(self, candidate: Candidate, turn: int, counts: bool) -> None:
        """Moves a round's arrays, and its rollout, by a candidate."""
        if candidate.name not in self.failed:
            self._try(candidate, lambda each: self._turn(each, turn, counts))

    def _turn(self, candidate: Candidate, turn: int, counts: bool) -> None:
        size, files = self.work.nbytes, self.work.files
        put = self._ask(self.writing, candidate, "put", turn)
        self._note(self.files, candidate.put_name, candidate, "put", size, put, counts)
        ways = list(enumerate(candidate.gets))
        shift = turn % len(ways) if ways else 0
        for number, way in ways[shift:] + ways[:shift]:
            got = self._ask(self.reading, candidate, "get", turn, number)
            kind, nbytes = ("batch", size * files) if way.mode == "batch" else ("get", size)
            self._note(self.files, way.name, candidate, kind, nbytes, got, counts)
        self._ask(self.writing, candidate, "delete", turn)
        if candidate.submits:
            other = turn + _SUBMITTED
            took = self._ask(self.writing, candidate, "submit", other)
            self._note(self.files, f"{candidate.name}: submit", candidate, "blocked", size, took, counts)
            if candidate.gets:
                self._ask(self.reading, candidate, "get", other)
            self._ask(self.writing, candidate, "delete", other)
        if candidate.rollout:
            self._rollout(candidate, turn, counts)

    def _rollout(self, candidate: Candidate, turn: int, counts: bool) -> None:
        nbytes = self.work.padded_bytes if candidate.peer else self.work.rollout_bytes
        for side, verb, kind in ((self.writing, "put_rollout", "put"), (self.reading, "get_rollout", "get")):
            took = self._ask(side, candidate, verb, turn)
            self._note(self.rollouts, f"{candidate.rollout}: {kind}", candidate, kind, nbytes, took, counts)
        self._ask(self.writing, candidate, "delete_rollout" if candidate.peer else "delete", turn)

    def close(self, candidates: tuple[Candidate, ...]) -> None:
        """Closes all, first where they get."""
        for candidate in candidates:
            for side in (self.reading, self.writing):
                side.ask("close", candidate.name)

    def _ask(self, side: Asked, candidate: Candidate, verb: str, turn: int, way: int = 0) -> list[int]:
        return _checked(side.ask(verb, candidate.name, turn, way), candidate).times

    def _try(self, candidate: Candidate, action: Callable[[Candidate], None]) -> None:
        try:
            action(candidate)
        except _FailedError as err:
            self.failed[candidate.name] = str(err)

    def _note(
        self,
        where: dict[str, Times],
        name: str,
        candidate: Candidate,
        kind: str,
        nbytes: int,
        took: list[int],
        counts: bool,
    ) -> None:
        times = where.setdefault(name, Times(name, candidate.name, kind, nbytes, []))
        if counts:
            times.rounds.append(took)


def _checked(answer: Answer, candidate: Candidate) -> Answer:
    if answer.void:
        raise CorruptDataError(f"{candidate.name}: {answer.error}: the measurement is void")
    if answer.error:
        raise _FailedError(answer.error)
    return answer


def run(job: Job, rounds: int, warm_up: int, timeout: float, progress: Callable[[int], None]) -> Outcome:
    """Measures.

    Args:
        job: What, as the writing process is told.
        rounds: How often, ...
        warm_up: ... after so many rounds that do not count.
        timeout: Seconds that one candidate may take for one step of a round.
        progress: Called with how many turns of a candidate are done.

    Raises:
        CorruptDataError: bytes were changed on the way.
        StoreUnavailableError: one of the processes died, or does not answer.
    """
    with ExitStack() as stack:
        writing, reading = (Asked(replace(job, writing=each), timeout) for each in (True, False))
        stack.callback(writing.stop)
        stack.callback(reading.stop)
        found = _Run(job.work, writing, reading)
        found.open(job.candidates)
        done = 0
        for turn in range(rounds + warm_up):
            shift = turn % len(job.candidates)
            for candidate in job.candidates[shift:] + job.candidates[:shift]:
                found.turn(candidate, turn, turn >= warm_up)
                done += 1
                progress(done)
        found.close(job.candidates)
    files, rollouts = (_figures(times, job, found.failed) for times in (found.files, found.rollouts))
    return Outcome(files, rollouts, found.failed)


def _figures(times: dict[str, Times], job: Job, failed: dict[str, str]) -> list[Figures]:
    """Returns figures in the order of candidates, puts first; none of a candidate that failed."""
    order = {candidate.name: number for number, candidate in enumerate(job.candidates)}
    kinds = ("put", "blocked", "get", "batch")
    kept = [each for each in times.values() if each.rounds and each.candidate not in failed]
    return [each.figures() for each in sorted(kept, key=lambda x: (order[x.candidate], kinds.index(x.kind)))]
