"""Puts beside evictions, deletes and ends of others: what was acknowledged is read, what was deleted is not."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.errors import AbsentError, NotFoundError, RoutingError, StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
from fastdeploy_routing_plugins.stores.rdma.producing import Producer

from .test_through_writer import MIB, PATIENCE, SCHEMA, Place, place, read, routing, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins import SyncStore

__all__ = ["place"]  # the fixture

pytestmark = pytest.mark.parametrize("place", ["shm"], indirect=True)


@pytest.fixture
def store(place: Place) -> Iterator[SyncStore]:
    """Serves the metadata, and holds nothing."""
    with open_store(place.config(), schema=SCHEMA) as store:
        yield store


def producer(store: SyncStore) -> Producer:
    found: Producer = store._store._objects._backend.blocking._producer  # type: ignore[attr-defined]
    return found


@contextlib.contextmanager
def copied(place: Place, copies: SyncStore) -> Iterator[None]:
    """Within this context another producer serves what ``copies`` has as well; at its end it closes."""
    with open_store(place.config(producer="first"), schema=SCHEMA) as first:
        first.put("x", routing(1))
        assert copies.put("x", routing(1)).duplicate
        yield


def at_once(seconds: float, *jobs: Callable[[int], object]) -> None:
    """Does jobs, in a thread each, again and again; typed errors are no matter."""
    end = time.monotonic() + seconds

    def again(job: Callable[[int], object]) -> None:
        number = 0
        while time.monotonic() < end:
            with contextlib.suppress(RoutingError):
                job(number)
            number += 1

    threads = [threading.Thread(target=again, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_what_is_being_put_is_not_evicted(place: Place, store: SyncStore) -> None:
    with open_store(place.config(when_full="evict"), schema=SCHEMA) as full:
        array = routing(1, 200_000)
        at_once(5.0, *[lambda number, which=which: full.put(f"{which}:{number}", array) for which in "ab"])
        for status in store.list():
            assert np.array_equal(store.get(status.key).routing, routing(1, 200_000))


def test_evicting_deletes_nothing_of_others(place: Place, store: SyncStore) -> None:
    with open_store(place.config(capacity=32 * MIB), schema=SCHEMA) as roomy:
        theirs, own = [routing(number, 100_000) for number in range(4)], routing(9, 200_000)
        for number in range(4):
            roomy.put(f"theirs:{number}", theirs[number])
        with open_store(place.config(when_full="evict"), schema=SCHEMA) as full:
            at_once(
                5.0,
                lambda number: full.put(f"theirs:{number % 4}", theirs[number % 4]),
                lambda number: full.put(f"own:{number}", own),
            )
        for number in range(4):
            assert np.array_equal(store.get(f"theirs:{number}").routing, theirs[number])


def test_what_is_put_while_all_is_cleared_is_there_or_gone(
    place: Place, store: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, put, held = threading.Event(), threading.Event(), threading.Event()
    publish, lookup = Producer._publish, MetadataClient.lookup

    def publish_later(self: Producer, each: Any, again: bool) -> Any:
        if "/new/" in each.name:
            held.set()
            looked.wait(0.5)
        return publish(self, each, again)

    def wait_for_put(self: MetadataClient, names: Any, **how: Any) -> Any:
        found = lookup(self, names, **how)
        if threading.current_thread().name == "clear":
            looked.set()
            put.wait(5)
        return found

    with open_store(place.config(), schema=SCHEMA) as other:
        other.put("old", routing(0))
        monkeypatch.setattr(Producer, "_publish", publish_later)
        monkeypatch.setattr(MetadataClient, "lookup", wait_for_put)

        def clear() -> None:
            held.wait(5)
            other.clear(everything=True)

        clearing = threading.Thread(target=clear, name="clear")
        clearing.start()
        other.put("new", routing(1))
        put.set()
        clearing.join()
        monkeypatch.undo()
        time.sleep(1.2)  # what is in doubt is asked after with the next sign
        assert np.array_equal(store.get("new").routing, routing(1))
        assert producer(other).shelf.count == 1


def test_an_old_copy_does_not_come_back_in_place_of_what_was_put_since(place: Place, store: SyncStore) -> None:
    with open_store(place.config(producer="copies"), schema=SCHEMA) as copies:
        for number in range(3):
            with open_store(place.config(producer="first"), schema=SCHEMA) as first:
                first.put(f"x:{number}", routing(1))
                assert copies.put(f"x:{number}", routing(1)).duplicate
                time.sleep(0.2 + 0.15 * number)
                assert store.delete(f"x:{number}") == 1
                first.put(f"x:{number}", routing(2))
                time.sleep(1.2)
        time.sleep(1.5)
        for number in range(3):
            with pytest.raises(AbsentError):
                store.get(f"x:{number}")


def test_the_same_put_again_after_a_delete_is_a_copy_still(place: Place, store: SyncStore) -> None:
    with open_store(place.config(producer="copies"), schema=SCHEMA) as copies:
        with open_store(place.config(producer="first"), schema=SCHEMA) as first:
            first.put("x", routing(1))
            assert copies.put("x", routing(1)).duplicate
            with open_store(place.config(producer="second"), schema=SCHEMA):
                first.close()
                until(lambda: np.array_equal(read(store, "x"), routing(1)))
        assert np.array_equal(store.get("x").routing, routing(1))


def test_what_is_deleted_between_two_holders_stays_deleted(place: Place, store: SyncStore) -> None:
    with open_store(place.config(producer="copies"), schema=SCHEMA) as copies:
        copies.put("other", routing(0))
        for number in range(3):
            with open_store(place.config(producer="first"), schema=SCHEMA) as first:
                first.put(f"x:{number}", routing(1))
                assert copies.put(f"x:{number}", routing(1)).duplicate
                time.sleep(0.2 + 0.1 * number)
            store.delete(f"x:{number}")
        time.sleep(2)
        for number in range(3):
            with pytest.raises(NotFoundError):
                store.status(f"x:{number}")


@pytest.mark.parametrize("same", [True, False])
def test_what_others_put_while_this_was_taken_for_lost_is_a_copy_if_it_is_the_same(
    place: Place, store: SyncStore, same: bool
) -> None:
    with open_store(place.config(producer="back"), schema=SCHEMA) as back:
        with open_store(place.config(producer="other"), schema=SCHEMA) as other:
            other.put("x", routing(1))
            link, shelf = producer(back) if back.put("y", routing(2)) else None, producer(back).shelf
            assert link is not None
            held = shelf.hold(*_object(other, "x", routing(1 if same else 3)))
            link._outdone([(held.name, held.raw)])
            until(lambda: not same or not link._spares._copies[held.name].doubtful)
            until(lambda: same or shelf.get(held.name) is None)
        if same:
            until(lambda: np.array_equal(read(store, "x"), routing(1)))
        else:
            time.sleep(2)
            with pytest.raises(AbsentError):
                store.get("x")


def _object(store: SyncStore, key: str, array: Any) -> tuple[str, bytes, Any]:
    """Returns an object of this content as it would be put under a key that another producer has."""
    from fastdeploy_routing_plugins.backend import Buffer
    from fastdeploy_routing_plugins.digests import digest_payload, payload_of
    from fastdeploy_routing_plugins.envelope import decode_header, encode_header

    inner = producer(store).shelf
    (name,) = [seen.name for seen in inner.seen() if f"/{key}/" in seen.name]
    held = inner.get(name)
    assert held is not None
    header: Any = decode_header(held.header)
    payload = payload_of(np.ascontiguousarray(array))
    import msgspec

    fields = {
        "digests": digest_payload(payload, header.part(), SCHEMA.row_bytes),
        "whole": header.whole
        if np.array_equal(np.frombuffer(held.payload, np.uint8), array.ravel())
        else msgspec.UNSET,
    }
    return name, encode_header(msgspec.structs.replace(header, **fields)), Buffer(payload, array.shape, "uint8")


def test_copies_of_what_others_serve_make_room_for_what_is_new(place: Place, store: SyncStore) -> None:
    arrays = [routing(number, 40_000) for number in range(8)]
    with open_store(place.config(producer="first", capacity=16 * MIB), schema=SCHEMA) as first:
        for number, array in enumerate(arrays):
            first.put(f"x:{number}", array)
        with place.writer(linger=0) as writer:
            for number, array in enumerate(arrays):
                assert writer.submit(f"x:{number}", array).result(PATIENCE).duplicate
            for number, array in enumerate(arrays[:6]):
                writer.submit(f"new:{number}", array)
            assert writer.flush().failed == 0


def test_spilled_parts_wait_for_room_on_the_shelf(place: Place, store: SyncStore, tmp_path: Any) -> None:
    from fastdeploy_routing_plugins import open_writer

    limits = {**place.limits, "arena_bytes": 2 * MIB, "spill_dir": str(tmp_path), "on_full_wait": 0.05}
    config = place.config(producer="engine", capacity=2 * MIB, linger=0)
    with open_writer(config, schema=SCHEMA, limits=limits) as writer:
        for number in range(12):
            writer.submit(f"x:{number}", routing(number, 15_000))
        for number in range(12):
            assert np.array_equal(store.get(f"x:{number}", timeout=PATIENCE).routing, routing(number, 15_000))
            store.delete(f"x:{number}")
        assert writer.flush().failed == 0


def test_a_copy_of_what_another_one_evicted_takes_its_place(place: Place, store: SyncStore) -> None:
    with (
        open_store(place.config(producer="copies"), schema=SCHEMA) as copies,
        open_store(place.config(producer="full", when_full="evict"), schema=SCHEMA) as full,
    ):
        full.put("x", routing(1))
        assert copies.put("x", routing(1)).duplicate
        for number in range(6):
            full.put(f"y:{number}", routing(number, 80_000))
        until(lambda: np.array_equal(read(store, "x"), routing(1)))
        until(lambda: not producer(copies)._spares._copies)


def test_a_copy_whose_publishing_was_not_answered_is_no_copy_any_more(
    place: Place, store: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, failed = MetadataClient.publish, threading.Event()

    def unanswered(self: MetadataClient, owner: str, items: Any, again: bool = False) -> Any:
        found = publish(self, owner, items, again)
        if threading.current_thread().name == "fd-routing-link" and not failed.is_set():
            failed.set()
            raise StoreUnavailableError("no answer")
        return found

    with open_store(place.config(producer="copies"), schema=SCHEMA) as copies:
        with copied(place, copies):
            monkeypatch.setattr(MetadataClient, "publish", unanswered)
        assert failed.wait(PATIENCE)
        until(lambda: not producer(copies)._spares._copies)
        assert not producer(copies)._spares.drop()
        assert np.array_equal(store.get("x").routing, routing(1))


def test_a_put_that_meets_a_copy_being_published_waits_for_it(
    place: Place, store: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, begun = MetadataClient.publish, threading.Event()

    def slow(self: MetadataClient, owner: str, items: Any, again: bool = False) -> Any:
        if threading.current_thread().name == "fd-routing-link":
            begun.set()
            time.sleep(0.5)
        return publish(self, owner, items, again)

    with open_store(place.config(producer="copies"), schema=SCHEMA) as copies:
        with copied(place, copies):
            monkeypatch.setattr(MetadataClient, "publish", slow)
        assert begun.wait(PATIENCE)
        assert copies.put("x", routing(1)).duplicate
        assert np.array_equal(store.get("x").routing, routing(1))


def test_a_producer_without_a_thread_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "fd-routing-link":
            raise RuntimeError("can't start new thread")
        start(thread)

    with open_store(place.config(), schema=SCHEMA) as lone:
        before = set(place.folder.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(StoreUnavailableError, match="no further thread"):
                lone.put("x", routing(1))
        assert set(place.folder.iterdir()) == before
        lone.put("x", routing(1))
        assert np.array_equal(lone.get("x").routing, routing(1))
