"""A forked child is no owner: it cannot use the writer, and it cannot spoil it."""

from __future__ import annotations

import os

import pytest

from .helpers import Place, until, workers

CHILD = """
import os, sys, time
writer = place.writer()
ticket = writer.submit("before", routing())
slot = writer.reserve("reserved", 10)

def child(function):
    "Runs a function in a forked child; prints what it raises."
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            print(function())
        except BaseException as err:
            print(type(err).__name__, err)
        finally:
            sys.stdout.flush()
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def over():
    slot.cancel()
    print(writer.submit("after", routing()).result(20).code or "goes on", writer.close().ok)

"""
REFUSED = "StoreClosedError this writer was opened in another process (open it after the fork)"
VERBS = (
    "writer.submit('x', routing())",
    "writer.reserve('x', 10)",
    "slot.publish()",
    "writer.seal('x', 10)",
    "writer.abort('x', 'why')",
    "writer.delete('x')",
    "writer.delete_prefix('x')",
    "writer.clear()",
    "writer.flush()",
)
HARMLESS = {"writer.close().pending": "0", "slot.cancel()": "None", "writer.stats().pending >= 0": "True"}


@pytest.fixture(scope="module")
def said(shared_place: Place) -> list[str]:
    """What children said to each call, and the parent at the end."""
    calls = "".join(f"child(lambda: {call})\n" for call in (*VERBS, *HARMLESS))
    done = shared_place.run(CHILD + calls + "over()\n")
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("verb", VERBS)
def test_in_a_child_a_verb_raises(said: list[str], verb: str) -> None:
    assert said[VERBS.index(verb)] == REFUSED


@pytest.mark.parametrize("call", HARMLESS)
def test_in_a_child_ending_things_is_harmless(said: list[str], call: str) -> None:
    assert said[len(VERBS) + list(HARMLESS).index(call)] == HARMLESS[call]


def test_the_parent_goes_on(said: list[str]) -> None:
    assert said[-1] == "goes on True"


def test_a_ticket_ends_in_a_child_too(place: Place) -> None:
    place.flag.touch()
    code = CHILD.replace("place.writer()", "place.writer('unavailable')")
    done = place.run(code + "child(lambda: ticket.result())\nplace.flag.unlink()\nover()\n")
    assert done.stdout.startswith("StoreClosedError this was handed over by another process")


def test_a_child_that_ends_normally_ends_nothing(place: Place) -> None:
    fork = "pid = os.fork()\nif pid == 0:\n    sys.exit(7)\nprint(os.waitpid(pid, 0)[1] >> 8)\nover()\n"
    done = place.run(CHILD + fork)
    assert (done.stdout, done.stderr) == ("7\ngoes on True\n", "")


def test_a_child_may_open_a_writer_of_its_own(place: Place) -> None:
    code = "def own():\n    with place.writer() as mine:\n        mine.submit('own', routing())\n    return 'stored'\n"
    done = place.run(CHILD + code + "child(own)\nover()\n")
    assert (done.stdout, place.ids()) == ("stored\ngoes on True\n", ["after", "before", "own"])


def test_a_fork_while_threads_submit_does_not_stop_the_child(place: Place) -> None:
    code = """
import threading
stop = threading.Event()
def work(name):
    number = 0
    while not stop.is_set():
        writer.submit(f"{name}:{number}", routing(), attempt=number)
        number += 1
        time.sleep(0.001)
threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
for thread in threads:
    thread.start()
for _ in range(20):
    child(lambda: (writer.close().ok, writer.stats().worker_pid is not None))
stop.set()
for thread in threads:
    thread.join()
over()
"""
    assert place.run(CHILD + code).stdout == "(True, True)\n" * 20 + "goes on True\n"


def test_a_child_does_not_keep_the_worker_after_the_engines_death(place: Place) -> None:
    code = CHILD + "if os.fork() == 0:\n    time.sleep(600)\nprint('forked', flush=True)\ntime.sleep(600)\n"
    with place.running(code) as (engine, _):
        engine.kill()
        until(lambda: not workers(place.arena_dir))
        assert (os.listdir(place.arena_dir), place.ids()) == ([], ["before"])


def test_a_command_that_the_engine_starts_does_not_keep_the_worker(place: Place) -> None:
    code = CHILD + "import subprocess\nsubprocess.Popen(['sleep', '600'], close_fds=False)\nprint(flush=True)\n"
    with place.running(code + "time.sleep(600)\n") as (engine, _):
        engine.kill()
        until(lambda: not workers(place.arena_dir))
        assert (os.listdir(place.arena_dir), place.ids()) == ([], ["before"])
