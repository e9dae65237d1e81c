"""One of the two processes: ``python -m fastdeploy_routing_plugins.bench.process``; told by its standard input.

The first line is a ``Job``, every other one an ``Ask``; each ``Ask`` gets an ``Answer``. It ends with its input.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from fastdeploy_routing_plugins.bench.arrays import Arrays
from fastdeploy_routing_plugins.bench.job import Answer, Ask, Candidate, Job
from fastdeploy_routing_plugins.bench.sides import PeerReading, PeerWriting, StoreReading, StoreWriting, VoidError
from fastdeploy_routing_plugins.errors import RoutingError

if TYPE_CHECKING:
    from typing import BinaryIO


class Process:
    """Does what it is asked."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._arrays = Arrays(job.work)
        self._sides: dict[str, Any] = {}
        self._candidates = {candidate.name: candidate for candidate in job.candidates}

    def answer(self, ask: Ask) -> Answer:
        """Does what is asked; whatever goes wrong is an answer, too."""
        try:
            if ask.verb == "open":
                self._open(self._candidates[ask.candidate])
                return Answer()
            if ask.verb == "close":
                side = self._sides.pop(ask.candidate, None)
                if side is not None:
                    side.close()
                return Answer()
            gc.collect()
            method = getattr(self._sides[ask.candidate], ask.verb)
            return Answer(method(ask.turn, ask.way) if ask.verb == "get" else method(ask.turn))
        except VoidError:
            return Answer(error="bytes were changed on the way", void=True)
        except RoutingError as err:
            return Answer(error=f"{err.code}: {err.message}")
        except Exception as err:  # noqa: BLE001 - peers raise whatever they like
            return Answer(error=f"{type(err).__name__}: {err}")

    def _open(self, candidate: Candidate) -> None:
        kinds: tuple[type, type] = (PeerWriting, PeerReading) if candidate.peer else (StoreWriting, StoreReading)
        kind = kinds[0] if self._job.writing else kinds[1]
        self._sides[candidate.name] = kind(candidate, self._job, self._arrays)

    def close(self) -> None:
        """Closes what is still open."""
        for side in self._sides.values():
            with suppress(Exception):
                side.close()


def main() -> None:
    """Answers until nobody asks any more."""
    # Whatever a peer prints, even from C, must not end up between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    gc.disable()
    lines: BinaryIO = sys.stdin.buffer
    process = Process(msgspec.json.decode(lines.readline(), type=Job))
    try:
        for line in lines:
            answers.write(msgspec.json.encode(process.answer(msgspec.json.decode(line, type=Ask))) + b"\n")
            answers.flush()
    finally:
        process.close()


if __name__ == "__main__":
    main()
