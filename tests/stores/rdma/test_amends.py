"""What puts and deletes leave behind that failed, were interrupted, or met others: nothing that stands in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import SyncStore, open_store
from fastdeploy_routing_plugins.arena.layout import PAGE
from fastdeploy_routing_plugins.buffer import Buffer
from fastdeploy_routing_plugins.errors import (
    AbortedError,
    ArenaFullError,
    ConflictError,
    CorruptDataError,
    EvictedError,
    NotFoundError,
    PendingError,
    StoreUnavailableError,
)
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
from fastdeploy_routing_plugins.stores.rdma.producing import Producer

from .test_through_writer import MIB, SCHEMA, Place, place, routing

__all__ = ["place"]  # the fixture

LARGE = 50_000  # tokens; 1.1 MiB
pytestmark = pytest.mark.parametrize("place", ["shm"], indirect=True)


@pytest.fixture
def store(place: Place) -> Iterator[SyncStore]:
    with open_store(place.config(), schema=SCHEMA) as store:
        store.put("first", routing(9))
        yield store


@pytest.fixture
def other(place: Place, store: SyncStore) -> Iterator[SyncStore]:
    with open_store(place.config(), schema=SCHEMA) as other:
        yield other


def is_there(store: SyncStore, key: str, seed: int, tokens: int = 50) -> bool:
    return bool(np.array_equal(store.get(key).routing, routing(seed, tokens)))


# --- deletes whose end is not known, or not heard of -----------------------------------------------------------------


def lose_the_answer(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Deletes happen from now on, but nobody hears of it, once."""
    delete = MetadataClient.delete

    def lost(self: MetadataClient, *args: Any) -> int:
        delete(self, *args)
        monkeypatch.setattr(MetadataClient, "delete", delete)
        raise error

    monkeypatch.setattr(MetadataClient, "delete", lost)


@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), KeyboardInterrupt()])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_delete_without_an_answer_deleted_may_be_put_again(
    store: SyncStore, other: SyncStore, monkeypatch: pytest.MonkeyPatch, error: BaseException, seed: int
) -> None:
    store.put("x", routing(1))
    lose_the_answer(monkeypatch, error)
    with pytest.raises(type(error)):
        store.delete("x")
    store.put("x", routing(seed))
    assert is_there(other, "x", seed)


def test_a_delete_without_an_answer_frees_its_room_later(
    place: Place, store: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = fill(store)
    lose_the_answer(monkeypatch, StoreUnavailableError("no answer"))
    with pytest.raises(StoreUnavailableError):
        store.delete(*keys)
    assert len(fill(store)) == len(keys)


def fill(store: SyncStore) -> list[str]:
    """Puts rollouts until there is no room for one more."""
    keys: list[str] = []
    while True:
        try:
            store.put(f"fill:{len(keys)}", routing(len(keys), LARGE))
        except ArenaFullError:
            return keys
        keys.append(f"fill:{len(keys)}")


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers do not hear what others delete."""
    monkeypatch.setattr(Producer, "_dropped", lambda self, items: None)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_another_one_deleted_may_be_put_at_once(
    deaf: None, store: SyncStore, other: SyncStore, seed: int
) -> None:
    store.put("x", routing(1))
    other.delete("x")
    assert not store.put("x", routing(seed)).duplicate
    assert is_there(other, "x", seed)


def test_a_seal_after_another_ones_delete_is_kept(deaf: None, store: SyncStore, other: SyncStore) -> None:
    store.put("x", routing(1), tokens=(0, 50))
    store.seal("x", 50)
    other.delete("x")
    store.put("x", routing(1), tokens=(0, 50))
    with pytest.raises(PendingError):
        other.get("x")
    store.seal("x", 50)
    assert is_there(other, "x", 1)


def test_what_is_put_during_a_clear_stays_readable(
    store: SyncStore, other: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear = MetadataClient.delete_prefix

    def beside(self: MetadataClient, prefix: str) -> int:
        count = clear(self, prefix)
        store.put("x", routing(1))
        return count

    store.put("x", routing(1))
    monkeypatch.setattr(MetadataClient, "delete_prefix", beside)
    assert store.clear(everything=True) == 2
    assert is_there(other, "x", 1)
    with pytest.raises(NotFoundError):
        other.get("never")


# --- full shelves ----------------------------------------------------------------------------------------------------


def test_what_is_stored_may_be_put_again_when_there_is_no_room(store: SyncStore) -> None:
    for number, key in enumerate(fill(store)):
        assert store.put(key, routing(number, LARGE)).duplicate
        with pytest.raises(ConflictError):
            store.put(key, routing(number + 1, LARGE))


def test_evicting_repeats_nothing_and_keeps_the_rollout_that_is_put(place: Place) -> None:
    with open_store(place.config(when_full="evict"), schema=SCHEMA) as store:
        store.put("oldest", routing(0, LARGE)[:, :100], tokens=(0, 100))
        count = 8 * MIB // routing(0, LARGE).nbytes
        for number in range(count):
            store.put(f"x:{number}", routing(number, LARGE))
        listed = {status.key.rollout_id for status in store.list()}
        store.put(f"x:{count - 1}", routing(count - 1, LARGE))
        assert {status.key.rollout_id for status in store.list()} == listed
        store.put("oldest", routing(0, LARGE)[:, 100:], tokens=(100, LARGE))
        store.seal("oldest", LARGE)
        assert is_there(store, "oldest", 0, LARGE)


def test_what_can_never_fit_evicts_nothing(place: Place) -> None:
    with open_store(place.config(when_full="evict"), schema=SCHEMA) as store:
        for number in range(5):
            store.put(f"x:{number}", routing(number, LARGE))
        with pytest.raises(ArenaFullError, match="do not fit the shelf of this producer, which has"):
            store.put("huge", routing(9, 10 * LARGE))
        assert len(store.list()) == 5


def test_what_goes_on_with_an_evicted_half_is_refused(place: Place) -> None:
    with open_store(place.config(when_full="evict"), schema=SCHEMA) as store:
        store.put("half", routing(0, LARGE)[:, :100], tokens=(0, 100))
        store.put("whole", routing(1, LARGE))
        number = 0
        while {status.key.rollout_id for status in store.list()} & {"half", "whole"}:
            store.put(f"x:{number}", routing(number, LARGE))
            number += 1
        with pytest.raises(EvictedError, match="evicted before it was complete"):
            store.put("half", routing(0, LARGE)[:, 100:], tokens=(100, LARGE))
        with pytest.raises(EvictedError):
            store.seal("half", LARGE)
        with pytest.raises(EvictedError):
            store.get("half", timeout=0.2)
        store.abort("half", "its first part went")
        with pytest.raises(AbortedError):
            store.get("half")
        store.put("half", routing(2, LARGE), attempt=1)
        store.put("whole", routing(1, LARGE))
        assert is_there(store, "half", 2, LARGE)
        assert is_there(store, "whole", 1, LARGE)


def test_puts_that_break_off_take_no_room(store: SyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Buffer, target: memoryview) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Buffer, "copy_into", broken)
        for number in range(20):
            with pytest.raises(KeyboardInterrupt):
                store.put(f"x:{number}", routing(number, 10_000))
    assert len(fill(store)) == 8 * MIB // routing(0, LARGE).nbytes


# --- forks -----------------------------------------------------------------------------------------------------------

CHILD = """
import os, sys
sys.path.insert(0, {root!r})
from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.errors import StoreClosedError
from tests.stores.rdma.test_through_writer import SCHEMA, routing
import numpy as np
with open_store({config!r}, schema=SCHEMA) as store:
    for number in range(5):
        store.put(f"x:{{number}}", routing(number))
    child = os.fork()
    if not child:
        refused = 0
        for number in range(5, 10):
            try:
                store.put(f"x:{{number}}", routing(number))
            except StoreClosedError as err:
                refused += "open it in the child" in str(err)
        right = [np.array_equal(store.get(f"x:{{number}}").routing, routing(number)) for number in range(5)]
        store.delete("x:0")
        os._exit(0 if refused == 5 and all(right) else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    right = [np.array_equal(store.get(f"x:{{number}}").routing, routing(number)) for number in range(1, 5)]
    store.put("x:0", routing(7))
    right.append(np.array_equal(store.get("x:0").routing, routing(7)))
    sys.exit(status or not all(right))
"""


def test_a_forked_child_puts_nothing_into_its_parents_memory(place: Place) -> None:
    code = CHILD.format(root=str(Path(__file__).parents[3]), config=place.config())
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_other_calls_than_puts_make_no_producer(place: Place) -> None:
    reads: list[Callable[[SyncStore], object]] = [
        lambda store: store.list(),
        lambda store: store.delete("x"),
        lambda store: store.clear(everything=True),
        lambda store: store.flush(),
    ]
    with open_store(place.config(), schema=SCHEMA) as store:
        for read in reads:
            read(store)
        assert not [name for name in os.listdir(place.folder) if name.endswith(".shelf")]


def test_what_is_damaged_in_shared_memory_is_called_so(place: Place, store: SyncStore) -> None:
    with open_store(place.config(timeout=0.5), schema=SCHEMA) as reader:
        assert is_there(reader, "first", 9)
        shelf = store._store._objects._backend.blocking._producer.shelf  # type: ignore[attr-defined]
        (path,) = place.folder.glob("*.shelf")
        with path.open("r+b") as file:
            for name, _ in shelf.inventory():
                file.seek(shelf.get(name).place.card * PAGE)
                file.write(bytes(PAGE))
        with pytest.raises(CorruptDataError, match="is damaged where its producer keeps it"):
            reader.get("first")
        with pytest.raises(NotFoundError):
            reader.get("never")
