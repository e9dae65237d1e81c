"""Store workers and readers that are killed under load: what was acknowledged stays, and no memory is lost."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingWriter, SyncStore
from fastdeploy_routing_plugins.errors import AbsentError, ArenaFullError, RoutingError

from .faulty import KILLS, ROOM, Ground, get, ground, is_right, routing, until
from .metadata.helpers import served

PASSING = {"not_found", "store_unavailable", "producer_lost"}  # before a part is put, or while a worker is replaced


@pytest.fixture
def place() -> Iterator[Ground]:
    with served() as service, ground(str(service.address)) as made:
        yield made


# --- store workers ------------------------------------------------------------------------------------------------


def submit(writer: RoutingWriter, key: str) -> None:
    """Hands routing over, in the engine's layout or so that the worker has to copy it, and waits for the store."""
    array = routing(key)
    if hash(key) % 3:
        writer.submit(key, array).result(60)
        return
    reservation = writer.reserve(key, array.shape[1], layout="token_first")
    reservation.view[...] = array.transpose(1, 0, 2)
    reservation.publish().result(60)


def test_what_was_acknowledged_survives_killed_workers(place: Ground) -> None:
    faulthandler.cancel_dump_traceback_later()  # the long form takes longer than any other test may
    chance = random.Random(7)
    acknowledged: list[str] = []
    gone: set[str] = set()
    gaps = []
    with place.writer() as writer, place.store("shm") as shm, place.store("tcp") as tcp:
        before = writer.stats().arena_free_bytes
        submit(writer, "key:0")
        acknowledged.append("key:0")
        keys = [f"key:{number}" for number in range(10)]
        with place.child("read", "shm", keys, 2, 0.01) as one, place.child("read", "tcp", keys, 2, 0.01) as two:
            for reader in (one, two):
                reader.answer()
            for kill in range(KILLS):
                for number in range(10):
                    key = f"key:{10 * kill + number}"
                    if key not in acknowledged:
                        submit(writer, key)
                        acknowledged.append(key)
                if kill:
                    victim = chance.choice(
                        [each for each in acknowledged if each[-1] != "0" and each not in {*gone, *keys}]
                    )
                    assert delete(shm, victim)
                    gone.add(victim)
                worker = writer.stats().worker_pid
                assert worker is not None
                os.kill(worker, signal.SIGKILL)
                began = time.monotonic()
                if kill % 2:
                    submit(writer, f"key:{10 * kill + 10}")
                    acknowledged.append(f"key:{10 * kill + 10}")
                assert is_right(get(tcp, f"key:{10 * kill}"), f"key:{10 * kill}")
                until(lambda worker=worker: writer.stats().worker_pid not in (None, worker))
                for key in chance.sample(acknowledged, min(10, len(acknowledged))):
                    if key not in gone:
                        assert is_right(get(shm, key), key)
                gaps.append(time.monotonic() - began)
            reports = [reader.ask("stop") for reader in (one, two)]
        assert [key for key in acknowledged if key not in gone and not is_right(get(tcp, key), key)] == []
        assert [key for key in gone if not absent(tcp, key)] == []
        shm.delete(*acknowledged)
        assert until(lambda: writer.stats().arena_free_bytes == before)
    print(f"store worker: {len(gaps)} kills, readable again after median {statistics.median(gaps):.2f} s; {reports}")
    assert [each for report in reports for each in report["wrong"]] == []
    assert set().union(*(report["errors"] for report in reports)) <= PASSING


def test_what_a_killed_worker_had_copied_is_taken_over_without_another_put(place: Ground) -> None:
    with place.writer() as writer, place.store("tcp") as reader:
        array = routing("x")
        reservation = writer.reserve("x", array.shape[1], layout="token_first")
        reservation.view[...] = array.transpose(1, 0, 2)
        reservation.publish().result(60)
        before = shelves(place)
        worker = writer.stats().worker_pid
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        until(lambda: shelves(place) and not shelves(place) & before)
        assert is_right(get(reader, "x"), "x")
        reader.delete("x")


def shelves(place: Ground) -> set[str]:
    return {path.name for path in place.folder.glob("*.shelf")}


def delete(store: SyncStore, key: str) -> int:
    return until(lambda: store.delete(key))  # type: ignore[no-any-return]


def absent(store: SyncStore, key: str) -> bool:
    try:
        store.get(key)
    except AbsentError:
        return True
    except RoutingError:
        return absent(store, key)
    return False


# --- readers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_killed_readers_leave_no_memory_in_use(place: Ground, transport: str) -> None:
    chance = random.Random(3)
    keys = [f"key:{number}" for number in range(30)]
    with place.writer() as writer, place.store() as here:
        before = writer.stats().arena_free_bytes
        for key in keys[:15]:
            writer.submit(key, routing(key)).result(60)
        for key in keys[15:]:
            here.put(key, routing(key))
        left = KILLS
        while left:
            with contextlib.ExitStack() as stack:
                together = min(left, 5)
                readers = [stack.enter_context(place.child("read", transport, keys, 4, 0.05)) for _ in range(together)]
                for reader in readers:
                    reader.answer()
                    until(lambda reader=reader: reader.ask("count") > 20)
                for reader in readers:
                    time.sleep(0.2 * chance.random())
                    reader.kill()
                left -= together
        here.delete(*keys)
        assert until(lambda: writer.stats().arena_free_bytes == before)
        assert until(lambda: fits(here, ROOM * 3 // 4))


def fits(store: SyncStore, nbytes: int) -> bool:
    """Whether a store's own shelf has room for so much at once."""
    array = np.ascontiguousarray(np.broadcast_to(routing("x")[:, :1], (8, nbytes // 64, 8)))
    try:
        store.put("large", array)
    except ArenaFullError:
        return False
    store.delete("large")
    return True


def test_a_reader_killed_in_the_middle_of_a_view_leaves_nothing_pinned(place: Ground) -> None:
    with place.store() as here, place.child("read", "shm", ["x"], 4, 60.0) as reader:
        here.put("x", routing("x"))
        reader.answer()
        time.sleep(0.5)  # its views last up to a minute
        here.delete("x")
        reader.kill()
        assert until(lambda: fits(here, ROOM * 3 // 4))
