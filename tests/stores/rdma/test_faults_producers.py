"""Producers that freeze: readers are told in time, and nothing is lost when they go on."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from fastdeploy_routing_plugins import SyncStore, open_reader
from fastdeploy_routing_plugins.errors import ProducerLostError, RoutingError, StoreUnavailableError

from .faulty import LONG, SCHEMA, frozen, get, ground, is_right, routing
from .metadata.helpers import served

SUSPECT, LOST = 5.0, 20.0  # s on a busy machine; a quiet one is held to 2.5 and 12
FREEZE = 20.0 if LONG else 11.5  # s


@dataclass
class Observer:
    """Reads one rollout again and again, and notes when which answer came first."""

    store: SyncStore
    key: str
    first: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def watch(self, began: float, over: threading.Event) -> None:
        while not over.wait(0.02):
            asked = time.monotonic()
            try:
                record = self.store.get(self.key)
            except RoutingError as err:
                if not isinstance(err, (StoreUnavailableError, ProducerLostError)):
                    self.wrong.append(f"{err.code}: {err}")
                self.first.setdefault(err.code, time.monotonic() - began)
            else:
                if not is_right(record, self.key):
                    self.wrong.append("it comes changed")
            self.slowest = max(self.slowest, time.monotonic() - asked)


@pytest.fixture(scope="module")
def observers() -> list[Observer]:
    """What readers saw, over each transport, of a plain process and a store worker that were frozen for a while."""
    with served() as service, ground(str(service.address)) as place, place.child("hold") as plain:
        plain.answer()
        with place.store("shm") as shm, place.store("tcp") as tcp, place.writer() as writer:
            plain.ask("put", "plain")
            writer.submit("worker", routing("worker")).result(60)
            worker = writer.stats().worker_pid
            assert worker is not None
            found = [Observer(store, key) for store in (shm, tcp) for key in ("plain", "worker")]
            for observer in found:
                assert is_right(observer.store.get(observer.key), observer.key)
            _watch(found, plain.pid, worker)
            for observer in found:
                if not is_right(get(observer.store, observer.key), observer.key):
                    observer.wrong.append("it is lost")
            writer.submit("next", routing("next")).result(60)
            plain.ask("put", "another")
            shm.delete("worker", "next")
    for observer, name in zip(found, ("shm plain", "shm worker", "tcp plain", "tcp worker"), strict=True):
        print(f"{name}: {observer.first}, slowest get {observer.slowest:.2f} s")
    return found


def _watch(observers: list[Observer], *pids: int) -> None:
    over = threading.Event()
    with frozen(*pids):
        began = time.monotonic()
        threads = [threading.Thread(target=each.watch, args=(began, over)) for each in observers]
        for thread in threads:
            thread.start()
        time.sleep(FREEZE)
        over.set()
        for thread in threads:
            thread.join()


def test_a_frozen_producer_is_unavailable_in_time(observers: list[Observer]) -> None:
    assert [each for each in observers if each.first.get("store_unavailable", 99.0) > SUSPECT] == []


def test_a_frozen_producer_is_lost_in_time(observers: list[Observer]) -> None:
    assert [each for each in observers if each.first.get("producer_lost", 99.0) > LOST] == []


def test_no_get_takes_longer_than_a_producer_needs_to_become_suspect(observers: list[Observer]) -> None:
    assert [each for each in observers if each.slowest > SUSPECT - 0.5] == []


def test_nothing_of_a_frozen_producer_is_wrong_or_lost(observers: list[Observer]) -> None:
    assert [each.wrong for each in observers if each.wrong] == []


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_batch_waits_until_a_killed_producer_is_known_to_be_lost(transport: str) -> None:
    with served() as service, ground(str(service.address)) as place, place.child("hold") as dead:
        dead.answer()
        dead.ask("put", "dead")
        with place.store() as living, open_reader(place.config(transport=transport), schema=SCHEMA) as reader:
            living.put("living", routing("living"))
            dead.kill()
            time.sleep(2.5)  # nothing is heard of it, and it is not known to be lost
            batch = reader.get_batch(["dead", "living"], timeout=30, on_missing="mask")
            assert {index: type(err) for index, err in batch.missing.items()} == {0: ProducerLostError}
            assert batch.mask.any(axis=1).tolist() == [False, True]
