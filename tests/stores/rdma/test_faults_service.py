"""The metadata service is killed under load: no part is lost, and everybody goes on by themselves."""

from __future__ import annotations

import faulthandler
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdeploy_routing_plugins import RoutingWriter, SyncStore
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.writer.tickets import Ticket

from .faulty import KILLS, Child, Ground, get, ground, is_right, routing, until
from .metadata.helpers import Served, served

GOES_ON = 30.0  # s within which somebody goes on, on a busy machine


@pytest.fixture
def service() -> Iterator[Served]:
    with served() as made:
        yield made


@pytest.fixture
def place(service: Served) -> Iterator[Ground]:
    with ground(str(service.address)) as made:
        yield made


class Worker(threading.Thread):
    """Does something again and again.

    Attributes:
        times: When it worked.
        wrong: What went wrong but for errors that say that the store is not available.
    """

    def __init__(self, deed: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._deed = deed
        self.over = threading.Event()
        self.times: list[float] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.over.wait(0.01):
            try:
                self._deed()
            except RoutingError as err:
                if err.code != "store_unavailable":
                    self.wrong.append(f"{err.code}: {err}")
            except Exception as err:  # noqa: BLE001 - which is what is looked for
                self.wrong.append(repr(err))
            else:
                self.times.append(time.monotonic())

    def went_on(self, since: float) -> bool:
        return bool(self.times) and self.times[-1] > since


class Load:
    """Puts into a store, submits to a writer, and gets what was acknowledged, from each of some stores."""

    def __init__(self, here: SyncStore, readers: dict[str, SyncStore], writer: RoutingWriter | None = None) -> None:
        self.acknowledged: list[str] = []
        self._here = here
        self._writer = writer
        self._number = 0
        self._tickets: dict[str, Ticket] = {}
        self.workers = {f"get {name}": Worker(self._getting(store)) for name, store in readers.items()}
        self.workers["put"] = Worker(self._put)
        if writer is not None:
            self.workers["submit"] = Worker(self._submit)

    def __enter__(self) -> Load:
        self._here.put("first", routing("first"))
        self.acknowledged.append("first")
        for worker in self.workers.values():
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.over.set()
        for worker in self.workers.values():
            worker.join()

    def _put(self) -> None:
        self._number += 1
        key = f"small:{self._number}"
        self._here.put(key, routing(key))
        self.acknowledged.append(key)

    def _submit(self) -> None:
        assert self._writer is not None
        key = f"small-too:{len(self._tickets)}"
        self._tickets[key] = self._writer.submit(key, routing(key))
        self._tickets[key].result(60)
        self.acknowledged.append(key)

    def _getting(self, store: SyncStore) -> Callable[[], None]:
        turn = 0

        def get() -> None:
            nonlocal turn
            turn += 1
            key = self.acknowledged[-1 - turn % min(50, len(self.acknowledged))]
            if not is_right(store.get(key, timeout=0), key):
                raise ValueError(f"{key} comes changed")

        return get

    def go_on(self, since: float) -> float:
        """Waits until everybody does; returns the seconds that the last one needed."""
        for name, worker in self.workers.items():
            until(lambda worker=worker: worker.went_on(since), within=GOES_ON), name
        return max(next(at for at in worker.times if at > since) - since for worker in self.workers.values())

    @property
    def wrong(self) -> list[str]:
        return [each for worker in self.workers.values() for each in worker.wrong]


def lost(store: SyncStore, keys: list[str]) -> list[str]:
    """Returns which rollouts do not come back whole."""
    return [key for key in keys if not is_right(get(store, key), key)]


def report(what: str, seconds: list[float]) -> None:
    median = statistics.median(seconds)
    print(f"{what}: {len(seconds)} kills, all go on after median {median:.2f} s, worst {max(seconds):.2f} s")


def test_a_killed_service_loses_nothing_and_everybody_goes_on(service: Served, place: Ground) -> None:
    faulthandler.cancel_dump_traceback_later()  # the long form takes longer than any other test may
    gaps = []
    with place.store() as here, place.store("shm") as shm, place.store("tcp") as tcp, place.writer() as writer:
        with Load(here, {"shm": shm, "tcp": tcp}, writer) as load:
            for kill in range(KILLS):
                time.sleep(0.3)
                service.end()
                time.sleep(0.3 * (kill % 3))
                service.start()
                gaps.append(load.go_on(time.monotonic()))
        report("service", gaps)
        assert load.wrong == []
        assert lost(tcp, load.acknowledged) == []
        shm.delete(*load.acknowledged)
    assert statistics.median(gaps) <= 10.0


def test_when_the_process_that_serves_is_killed_another_serves() -> None:
    gaps = []
    with ground() as place, ready(place.child("serve")) as first, place.store() as here, place.store("tcp") as tcp:
        serving: list[Child] = [first]
        with Load(here, {"tcp": tcp}) as load:
            for _ in range(2):
                serving.append(place.child("serve"))
                serving[-1].answer()
                server = here.run(_server)
                victim = next((each for each in serving if each.pid == server), None)
                if victim is None:
                    break  # this process does: it is not killed
                victim.kill()
                gaps.append(load.go_on(time.monotonic()))
        for each in serving[1:]:
            each.__exit__(None, None, None)
        report("embedded service", gaps)
        assert (load.wrong, bool(gaps)) == ([], True)
        assert lost(tcp, load.acknowledged) == []


def ready(child: Child) -> Child:
    """Waits until a process has opened the store."""
    child.answer()
    return child


async def _server(store: Any) -> int:
    return int(store._objects._backend.blocking._client.status()["pid"])


# --- deletes and memory -------------------------------------------------------------------------------------------


def free_bytes(writer: RoutingWriter) -> int:
    return writer.stats().arena_free_bytes


def test_memory_is_freed_after_deletes_by_others_though_the_service_was_killed(service: Served, place: Ground) -> None:
    with place.writer() as writer, place.child("hold") as plain, place.store("tcp") as reader:
        plain.answer()
        before = free_bytes(writer)
        mine, theirs = [f"w:{n}" for n in range(20)], [f"p:{n}" for n in range(20)]
        for key in mine:
            writer.submit(key, routing(key)).result(60)
        plain.ask("put", *theirs)
        service.end()
        service.start()
        until(lambda: reader.delete(*mine, *theirs) >= 0)
        assert until(lambda: free_bytes(writer) == before)
        assert until(lambda: plain.ask("held") == 0)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_what_was_deleted_stays_so_though_the_service_is_killed_at_once(
    service: Served, place: Ground, how: str
) -> None:
    with place.child("hold") as plain, place.store("tcp") as reader:
        plain.answer()
        plain.ask("put", "keep", "go")
        if how == "frozen":
            plain.signal(signal.SIGSTOP)  # so that it does not hear of the delete before the service is gone
        assert reader.delete("go") == 1
        service.end()
        service.start()
        plain.signal(signal.SIGCONT)
        assert is_right(get(reader, "keep"), "keep")
        assert until(lambda: plain.ask("held") == 1)
        assert [status.key.rollout_id for status in reader.list()] == ["keep"]


def test_a_put_during_the_service_absence_is_there_when_it_is_back(service: Served, place: Ground) -> None:
    with place.store(timeout=30.0) as store, place.store("tcp") as reader:
        store.put("x", routing("x"))
        service.end()
        thread = threading.Thread(target=lambda: store.put("y", routing("y")))
        thread.start()
        time.sleep(0.5)
        service.start()
        thread.join()
        assert is_right(get(reader, "y"), "y")


def test_without_a_service_a_get_ends_in_time_and_says_why(service: Served, place: Ground) -> None:
    with place.store("shm", timeout=1.0) as store, place.child("hold") as plain:
        plain.answer()
        plain.ask("put", "x")
        service.end()
        err = until(lambda: error_of(store, "x"))  # what was read lately is still known for a moment
        assert (err.code, "metadata service" in str(err), "fd-routing serve" in err.hint) == (
            "store_unavailable",
            True,
            True,
        )
        service.start()
        assert is_right(get(store, "x"), "x")


def error_of(store: SyncStore, key: str) -> RoutingError | None:
    """Returns what a get fails with, which must be in time."""
    began = time.monotonic()
    try:
        store.get(key)
    except RoutingError as err:
        assert time.monotonic() - began < GOES_ON
        return err
    return None
