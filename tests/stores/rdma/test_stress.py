"""Many readers and writers at once, attempts and deletes under readers: everything is whole and right, or an error.

``FD_ROUTING_TEST_SOAK_SECONDS=600`` makes the long form: 1,000 gets at the same time from 8 processes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from fastdeploy_routing_plugins import SyncStore
from fastdeploy_routing_plugins.errors import RoutingError

from .faulty import LONG, SECONDS, Ground, ground, is_right, routing
from .metadata.helpers import served

WRITERS = 64
WRITING = 4  # processes
READING, EACH = (8, 125) if LONG else (4, 50)  # processes, and gets at the same time in each
WINDOW = 20  # rollouts that a writer keeps
STRESS = SECONDS / 2 if LONG else 4.0  # s
RACE = SECONDS / 4 if LONG else 2.0  # s, for each transport
ENDS = 20.0  # s that a get may take at most on a busy machine; a get waits for one, and has a timeout of 5
EXPECTED = {"not_found", "deleted"}  # not yet there, and gone
STARVED = {"store_unavailable", "producer_lost"}  # from a machine on which somebody had no turn for seconds


@pytest.fixture
def place() -> Iterator[Ground]:
    with served() as service, ground(str(service.address)) as made:
        yield made


def test_many_gets_against_many_writers(place: Ground) -> None:
    faulthandler.cancel_dump_traceback_later()  # the long form takes longer than any other test may
    names = [f"writer:{number}" for number in range(WRITERS)]
    counts: Counter[str] = Counter()
    wrong, slowest = [], 0.0
    with contextlib.ExitStack() as stack:
        share = WRITERS // WRITING
        writing = [
            stack.enter_context(place.child("write", "auto", names[at : at + share], WINDOW))
            for at in range(0, WRITERS, share)
        ]
        reading = [
            stack.enter_context(place.child("follow", ("shm", "tcp")[number % 2], names, EACH, number))
            for number in range(READING)
        ]
        for child in (*writing, *reading):
            child.answer()
        time.sleep(STRESS)
        for child in reading:
            child.say("stop")
        for child in reading:
            report = child.answer()
            counts.update(report["counts"])
            wrong += report["wrong"]
            slowest = max(slowest, report["slowest"])
        for child in writing:
            report = child.ask("stop")
            counts.update({f"writer {what}": count for what, count in report["counts"].items()})
            wrong += report["wrong"]
    print(f"{READING * EACH} gets at once, {WRITERS} writers, {STRESS} s: {dict(counts)}, slowest {slowest:.2f} s")
    assert wrong == []
    assert {what for what in counts if what != "read" and not what.startswith("writer")} <= EXPECTED | STARVED
    assert counts["read"] > 0
    assert slowest < ENDS


class Racer(threading.Thread):
    """Reads a thousand times a second, as far as the machine can, each time another way."""

    def __init__(self, store: SyncStore, keys: list[str]) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._keys = keys
        self.over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        turn, began = 0, time.monotonic()
        while not self.over.is_set():
            turn += 1
            self._one(self._keys[turn % len(self._keys)], view=turn % 2 == 0)
            time.sleep(max(0.0, began + turn / 1000 - time.monotonic()))

    def _one(self, key: str, *, view: bool) -> None:
        try:
            record = self._store.get(key, view=view)
            if not is_right(record, key):
                self.wrong.append(f"{key}, attempt {record.attempt}, comes changed")
            self.counts["read"] += 1
        except RoutingError as err:
            self.counts[err.code] += 1
        except Exception as err:  # noqa: BLE001 - which is what is looked for
            self.wrong.append(f"{key}: {err!r}")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_attempts_and_deletes_under_a_fast_reader(place: Ground, transport: str) -> None:
    keys = [f"race:{number}" for number in range(3)]
    with place.store() as here, place.store(transport) as there:
        racer = Racer(there, keys)
        racer.start()
        end, rounds = time.monotonic() + RACE, 0
        while time.monotonic() < end:
            for key in keys:
                here.put(key, routing(key, 2 * rounds), attempt=2 * rounds)
                here.put(key, routing(key, 2 * rounds + 1), attempt=2 * rounds + 1)
                if rounds % 3:
                    here.delete(key)
            rounds += 1
        racer.over.set()
        racer.join()
        here.delete(*keys)
    print(f"{transport}: {rounds} rounds under {sum(racer.counts.values()) / RACE:.0f} gets/s: {dict(racer.counts)}")
    assert racer.wrong == []
    assert set(racer.counts) - {"read"} <= EXPECTED | STARVED | {"superseded"}
    assert racer.counts["read"] > 0
