"""Batches from a store that moves many objects in one go: read in the caller's thread, and as ever otherwise."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.backend import Blob, GetRequest

from ..store.memory import BlockingMemory, Shelf
from .places import Place, memory, routing

IDS = [f"b:{number}" for number in range(8)]


class Bulk(BlockingMemory):
    """Counts in which thread how much is fetched at once."""

    fetched: ClassVar[list[tuple[str, int]]] = []

    def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | e.AbsentError]:
        self.fetched.append((threading.current_thread().name, len(requests)))
        found: list[Blob | e.AbsentError] = []
        for each in requests:
            try:
                found.append(self._get(each.name, each.ranges))
            except e.NotFoundError as err:
                found.append(err)
        return found


@pytest.fixture
def place() -> Place:
    made = memory(Bulk)
    with made.store() as store:
        for number, key in enumerate(IDS):
            store.put(key, routing(5, number))
    Bulk.fetched.clear()
    return made


def test_what_is_there_is_read_in_the_callers_thread(place: Place) -> None:
    with place.reader() as reader:
        batch = reader.get_batch(IDS)
        assert Bulk.fetched == [(threading.current_thread().name, 8)]
        for number in range(8):
            np.testing.assert_array_equal(batch.routing[number], routing(5, number))
        assert reader._own().begun is None  # no other thread was needed


def test_what_is_not_there_is_waited_for_and_the_rest_is_not_read_again(place: Place) -> None:
    with place.reader() as reader, place.store() as store:
        late = threading.Timer(0.2, lambda: store.put("late", routing(5, 99)))
        late.start()
        batch = reader.get_batch([*IDS, "late"], timeout=30)
        late.join()
        np.testing.assert_array_equal(batch.routing[8], routing(5, 99))
        np.testing.assert_array_equal(batch.routing[3], routing(5, 3))
        assert sum(count for _, count in Bulk.fetched) == 9  # each once


def test_missing_ones_are_masked_or_raised_by_their_index(place: Place) -> None:
    with place.reader() as reader:
        batch = reader.get_batch([IDS[0], "never", IDS[1]], on_missing="mask")
        assert list(batch.missing) == [1]
        assert batch.mask.any(axis=1).tolist() == [True, False, True]
        with pytest.raises(e.NotFoundError) as caught:
            reader.get_batch([IDS[0], "never", IDS[1]])
        assert list(caught.value.failed) == [1]


def test_what_was_read_ahead_is_taken(place: Place) -> None:
    with place.reader() as reader:
        reader.prefetch(IDS[:3])
        begun = reader._own().begun
        assert begun is not None
        batch = reader.get_batch(IDS)
        for number in range(8):
            np.testing.assert_array_equal(batch.routing[number], routing(5, number))
        assert (threading.current_thread().name, 5) in Bulk.fetched


def test_damage_is_told_as_ever(place: Place) -> None:
    shelf = place.shelf
    assert isinstance(shelf, Shelf)
    name = next(name for name in shelf if "/b=3a2/" in name)
    header, payload = shelf[name]
    shelf[name] = header, payload[:-1] + bytes([payload[-1] ^ 1])
    with place.reader() as reader:
        with pytest.raises(e.CorruptDataError):
            reader.get_batch(IDS)
        assert list(reader.get_batch(IDS, on_missing="mask").missing) == [2]


def test_a_closed_reader_says_so(place: Place) -> None:
    reader = place.reader()
    reader.close()
    with pytest.raises(e.StoreClosedError):
        reader.get_batch(IDS)


def test_a_batch_under_which_the_reader_was_closed_opens_nothing_again(place: Place) -> None:
    reader = place.reader()
    own = reader._own()
    reader.close()
    with pytest.raises(e.StoreClosedError):
        own.concurrent()
    assert own.begun is None
