"""However an engine ends, what it had handed over is stored, and nothing of it stays behind.

The stores here take ten parts a second; engines hand sixty over and end at once. All of them run side by side.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .helpers import PATIENCE, Place, until, workers

SIXTY = """
import os, signal, sys, time, multiprocessing, threading

def hand_over():
    writer = place.writer("slow", delay=0.1, limits={"lanes": 1, "exit_wait": 0.5})
    for number in range(60):
        writer.submit(f"x:{number:02}", routing(seed=number))
    return writer

"""
ENDS = {
    "normal exit": "writer = hand_over()\n",
    "exit without a name for the writer": "hand_over()\n",
    "sys.exit": "writer = hand_over()\nsys.exit(3)\n",
    "an exception": "writer = hand_over()\nraise RuntimeError('engine')\n",
    "os._exit": "writer = hand_over()\nos._exit(0)\n",
    "SIGKILL": "writer = hand_over()\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "SIGTERM": "writer = hand_over()\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "SIGINT to the process group": (
        # Whoever starts tests in the background may have them ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "writer = hand_over()\nos.killpg(0, signal.SIGINT)\ntime.sleep(60)\n"
    ),
    "SIGTERM to the process group": "writer = hand_over()\nos.killpg(0, signal.SIGTERM)\n",
    "in a thread": "threading.Thread(target=hand_over).start()\n",
    "the end of a forked process": (
        "engine = multiprocessing.get_context('fork').Process(target=hand_over)\nengine.start()\nengine.join()\n"
    ),
    "close with a deadline": "hand_over().close(0.1)\n",
}
CODES = {
    "sys.exit": 3,
    "an exception": 1,
    "SIGKILL": -signal.SIGKILL,
    "SIGTERM": -signal.SIGTERM,
    "SIGINT to the process group": -signal.SIGINT,
    "SIGTERM to the process group": -signal.SIGTERM,
}


@dataclass(frozen=True)
class Ended:
    """An engine that has ended."""

    place: Place
    code: int


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[dict[str, Ended]]:
    """An engine for each way to end; all have ended, their workers perhaps not."""
    places = {end: Place(tmp_path_factory.mktemp("engine"), site).make() for end in ENDS}
    running = {
        end: place.engine(SIXTY + ENDS[end], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end, place in places.items()
    }
    yield {end: Ended(places[end], process.wait(2 * PATIENCE)) for end, process in running.items()}
    for place in places.values():
        assert place.is_left_clean()


@pytest.mark.parametrize("end", ENDS)
def test_sixty_of_sixty_parts_are_readable_soon_after(engines: dict[str, Ended], end: str) -> None:
    place = engines[end].place
    until(lambda: len(place.ids()) == 60)


@pytest.mark.parametrize("end", ENDS)
def test_no_engine_dies_of_its_writer(engines: dict[str, Ended], end: str) -> None:
    assert engines[end].code == CODES.get(end, 0)


@pytest.mark.parametrize("end", ENDS)
def test_worker_and_shared_memory_go_when_all_is_stored(engines: dict[str, Ended], end: str) -> None:
    place = engines[end].place
    until(lambda: not workers(place.arena_dir))
    assert os.listdir(place.arena_dir) == []


def test_an_engines_pipes_close_with_the_engine(place: Place) -> None:
    place.flag.touch()
    code = (
        "import os\nwriter = place.writer('unavailable')\nwriter.submit('x', routing())\nprint('over', flush=True)\n"
    )
    done = place.run(code + "os._exit(0)\n")  # returns when nobody has the pipes any more
    left = workers(place.arena_dir)
    place.flag.unlink()
    assert (done.stdout, len(left)) == ("over\n", 1)


def test_a_normal_exit_waits_for_what_is_pending(place: Place) -> None:
    code = "writer = place.writer('slow', delay=0.2, limits={'lanes': 1, 'exit_wait': 25.0})\n"
    place.run(code + "for number in range(5): writer.submit(f'x:{number}', routing())\n")
    assert (len(place.ids()), os.listdir(place.arena_dir)) == (5, [])


def test_a_writer_that_is_closed_leaves_nothing_to_do_at_exit(place: Place) -> None:
    done = place.run("with place.writer() as writer:\n    writer.submit('x', routing())\nprint('over')\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
