"""What several producers were given: it is there as long as any of them lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import WeightSpan, open_store
from fastdeploy_routing_plugins.errors import ConflictError, DeletedError, NotFoundError, RoutingError

from .test_through_writer import MIB, PATIENCE, SCHEMA, Place, place, read, routing, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins import SyncStore

__all__ = ["place"]  # the fixture

pytestmark = pytest.mark.parametrize("place", ["shm"], indirect=True)
OTHER = """
import json, sys
from fastdeploy_routing_plugins import open_store
from tests.stores.rdma.test_through_writer import SCHEMA, routing
with open_store(json.loads(sys.argv[1]), schema=SCHEMA) as store:
    for name in sys.argv[2:]:
        store.put(name, routing(int(name[-1])))
    print("put", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def store(place: Place) -> Iterator[SyncStore]:
    """Serves the metadata, and holds nothing."""
    with open_store(place.config(), schema=SCHEMA) as store:
        yield store


@contextmanager
def other(place: Place, *names: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds some rollouts, until a line comes."""
    import json

    command = [sys.executable, "-c", OTHER, json.dumps(place.config(producer="other")), *names]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    before = set(place.folder.iterdir())
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "put\n"
            its_own = set(place.folder.iterdir()) - before
            yield process
        finally:
            process.kill()
    for path in its_own:  # it may have been killed, and has no heir
        path.unlink(missing_ok=True)


def is_there(store: SyncStore, name: str) -> bool:
    try:
        return np.array_equal(read(store, name), routing(int(name[-1])))
    except RoutingError:
        return False


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_put_twice_outlives_who_put_it_first(place: Place, store: SyncStore, killed: bool) -> None:
    with other(place, "x:1", "x:2") as process, open_store(place.config(), schema=SCHEMA) as second:
        assert second.put("x:1", routing(1)).duplicate
        shelf = second._store._objects._backend.blocking._producer.shelf  # type: ignore[attr-defined]
        assert shelf.inventory() == []
        with place.writer(linger=0) as writer:
            assert writer.submit("x:2", routing(2)).result(PATIENCE).duplicate
            if killed:
                os.kill(process.pid, signal.SIGKILL)
            else:
                process.communicate("\n")
            process.wait()
            until(shelf.inventory)  # it is published
            until(lambda: is_there(store, "x:1") and is_there(store, "x:2"))


def test_copies_of_what_is_deleted_go(place: Place, store: SyncStore) -> None:
    with other(place, "x:1") as process, open_store(place.config(), schema=SCHEMA) as second:
        second.put("x:1", routing(1))
        store.delete("x:1")
        shelf = second._store._objects._backend.blocking._producer.shelf  # type: ignore[attr-defined]
        until(lambda: shelf.count == 0)
        process.communicate("\n")
        time.sleep(2.5)
        with pytest.raises(DeletedError):
            store.get("x:1")


def test_a_copy_takes_no_room_that_is_needed(place: Place, store: SyncStore) -> None:
    large = routing(1, 100_000)
    with open_store(place.config(), schema=SCHEMA) as second:
        store.put("twice", large)
        room = 0
        while True:
            try:
                second.put(f"y:{room}", routing(room, 100_000))
            except RoutingError:
                break
            room += 1
        second.delete(*[f"y:{number}" for number in range(room)])
        assert second.put("twice", large).duplicate
        for number in range(room):
            second.put(f"z:{number}", routing(number, 100_000))
    assert room * large.nbytes > 4 * MIB


def test_evicting_leaves_alone_what_another_one_serves(place: Place, store: SyncStore) -> None:
    large = routing(1, 100_000)
    store.put("theirs", large)
    with (
        open_store(place.config(when_full="evict"), schema=SCHEMA) as second,
        place.writer(when_full="evict") as writer,
    ):
        assert second.put("theirs", large).duplicate
        assert writer.submit("theirs", large).result(PATIENCE).duplicate
        for number in range(8):
            second.put(f"y:{number}", routing(number, 100_000))
            writer.submit(f"z:{number}", routing(number, 100_000)).result(PATIENCE)
        assert np.array_equal(store.get("theirs").routing, large)
        store.clear(everything=True)


def test_no_copy_is_kept_of_what_contradicts(place: Place, store: SyncStore) -> None:
    store.put("x:1", routing(1))
    with open_store(place.config(), schema=SCHEMA) as second:
        with pytest.raises(ConflictError):
            second.put("x:1", routing(2))
        with pytest.raises(ConflictError, match="none stated, not 5"):
            second.put("x:1", routing(1), weight_versions=[WeightSpan(0, routing(1).shape[1], 5)])
        second.put("x:3", routing(3))
        shelf = second._store._objects._backend.blocking._producer.shelf  # type: ignore[attr-defined]
        assert shelf.count == 1


def test_status_says_that_it_was_deleted(store: SyncStore) -> None:
    store.put("x:1", routing(1))
    store.delete("x:1")
    for ask in (store.status, store.stat, store.verify):
        with pytest.raises(NotFoundError, match="nothing is stored for 'x:1'") as info:
            ask("x:1")
        assert info.value.hint == "it was here, and was deleted or released"
    with pytest.raises(NotFoundError) as info:
        store.status("x:2")
    assert info.value.hint == "is the producer using this store and namespace?"
