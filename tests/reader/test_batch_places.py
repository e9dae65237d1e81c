"""Batches whose rollouts are copied to their places as they come, against batches made of single records."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import Freshness, ParallelLayout, RoutingBatch, RoutingKey, WeightSpan
from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.backend import Blob, GetRequest
from fastdeploy_routing_plugins.stores.rdma.transport import sharing

from ..store.memory import Shelf
from .places import RDMA, SCHEMA, Place, memory, routing
from .places import place as place_of
from .test_at_once import Bulk

LENGTHS = {f"r:{number}:0:0": (7, 1, 12, 12, 5, 3)[number % 6] for number in range(14)}
LAYOUTS = {
    "everything": None,
    "pipeline": ParallelLayout(2, pp=2, stages=[5, 6]).rank(1),
    "context": ParallelLayout(2, cp=2).rank(1),
}


class Obliging(Bulk):
    """Puts what is read where the reader would like to have it."""

    def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | e.AbsentError]:
        return [_put_into(*each) for each in zip(super()._get_many(requests), requests, strict=True)]


def _put_into(found: Blob | e.AbsentError, request: GetRequest) -> Blob | e.AbsentError:
    if request.into is None or isinstance(found, e.AbsentError):
        return found
    request.into[:] = memoryview(b"".join(found.payload))
    return Blob(found.header, (request.into,))


def filled(made: Place) -> Iterator[Place]:
    with made.store() as store:
        for number, (key, length) in enumerate(LENGTHS.items()):
            spans = [WeightSpan(0, length, number)] if number % 2 else []
            store.put(key, routing(length, number), weight_versions=spans)
        yield made  # what `rdma` holds goes with who put it


@pytest.fixture(scope="module", params=["memory", "obliging memory", *RDMA, "rdma, shm, two threads"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    name, _, threads = request.param.partition(", two")
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        if threads:
            patch.setattr(sharing, "WORTH", 1)
        yield from filled(place_of(name, folder) if name in RDMA else memory(Bulk if name == "memory" else Obliging))


def same(one: RoutingBatch, other: RoutingBatch) -> bool:
    plain = ("routing", "mask", "lengths", "starts")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in plain) and (
        (one.keys, one.attempts, one.layer_ids, sorted(one.missing))
        == (other.keys, other.attempts, other.layer_ids, sorted(other.missing))
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(40))
def test_a_batch_is_that_of_its_records(place: Place, layout: str, seed: int) -> None:
    chosen = random.Random(seed)
    ids = chosen.sample(list(LENGTHS), chosen.randint(2, len(LENGTHS)))
    if seed % 3 == 0:
        ids = [key for key in ids if LENGTHS[key] == 12] or ids  # nothing is padded
    if seed % 4 == 0:
        ids += chosen.choices(ids, k=3)  # some stand there several times
    if seed % 5 == 0:
        ids.insert(chosen.randrange(len(ids)), "never")
    how: dict[str, Any] = {"side": chosen.choice(["left", "right"]), "fill": chosen.choice([None, 7])}
    if chosen.random() < 0.4:
        how["pad_to"] = chosen.choice([16, 24])
    if layout == "everything" and chosen.random() < 0.5:
        rows = chosen.choice(["n", "n-1", "shifted"])
        how.update(rows=rows, num_tokens=[LENGTHS.get(key, 4) + (rows != "n") for key in ids])
        if chosen.random() < 0.5:
            how["tokens"] = slice(0, chosen.randint(1, 5))
    with place.reader(LAYOUTS[layout]) as reader:
        found = reader.get_batch(ids, on_missing="mask", **how)
        conditions = {"pad_to": how["pad_to"]} if layout == "context" and "pad_to" in how else {}
        items = []
        for key in ids:
            try:
                items.append(reader.get(key, **conditions))
            except e.NotFoundError as err:
                items.append(err)
        if layout == "context" and "pad_to" in how:
            how["pad_to"] //= 2
        expected = RoutingBatch.build(items, ids, schema=SCHEMA, layer_ids=reader.layer_ids, **how)
    assert same(found, expected)
    if "tokens" not in how:  # else the batch has the spans of the rows that it read
        assert found.weight_versions == expected.weight_versions


def test_the_usual_batch_is_copied_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdeploy_routing_plugins.reader import building

    made: list[Any] = []
    monkeypatch.setattr(building, "new_batch", lambda *args: made.append(args))  # would be a second memory
    with place.reader() as reader:
        batch = reader.get_batch(list(LENGTHS))
    assert not made
    for index, (number, length) in enumerate(enumerate(LENGTHS.values())):
        np.testing.assert_array_equal(batch.routing[index, :, :length], routing(length, number))


def test_what_needs_no_padding_is_put_where_it_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdeploy_routing_plugins.reader import places

    told: list[bool] = []
    room = places.Places.room

    def noted(self: places.Places, each: Any) -> memoryview | None:
        found = room(self, each)
        told.append(found is not None)
        return found

    monkeypatch.setattr(places.Places, "room", noted)
    ids = [key for key, length in LENGTHS.items() if length == 12]
    with place.reader() as reader, place.reader(LAYOUTS["pipeline"]) as rank:
        batch, share = reader.get_batch(ids), rank.get_batch(ids)
        reader.get_batch([*ids, "r:0:0:0"])
        reader.get_batch(ids, pad_to=13)
    count = len(ids)
    assert told == [True] * 2 * count + [True] * count + [False] + [False] * count
    for index, key in enumerate(ids):
        whole = routing(12, list(LENGTHS).index(key))
        np.testing.assert_array_equal(batch.routing[index], whole)
        np.testing.assert_array_equal(share.routing[index], whole[-share.routing.shape[1] :])


def test_nothing_of_what_is_damaged_stays_in_the_batch() -> None:
    made = memory(Obliging)
    ids = ["one", "two", "three"]
    with made.store() as store:
        for number, key in enumerate(ids):
            store.put(key, routing(9, number))
    assert isinstance(made.shelf, Shelf)
    name = next(name for name in made.shelf if "/two/" in name)
    header, payload = made.shelf[name]
    made.shelf[name] = header, payload[:-1] + bytes([payload[-1] ^ 1])
    with made.reader() as reader:
        batch = reader.get_batch(ids, on_missing="mask", fill=199)
    assert list(batch.missing) == [1]
    assert (batch.routing[1] == 199).all()
    np.testing.assert_array_equal(batch.routing[2], routing(9, 2))


def test_a_batch_keeps_its_rows_when_the_next_one_is_read(place: Place) -> None:
    with place.reader() as reader:
        first, second = list(LENGTHS)[:7], list(LENGTHS)[7:]
        batch = reader.get_batch(first)
        before = batch.routing.copy()
        others = [reader.get_batch(second), reader.get_batch(second[::-1])]
        np.testing.assert_array_equal(batch.routing, before)
        assert len({each.routing.__array_interface__["data"][0] for each in [batch, *others]}) == 3


def test_choices_of_one_id_have_places_of_their_own(place: Place) -> None:
    keys = [RoutingKey("choice", number) for number in range(3)]
    with place.store() as store, place.reader() as reader:
        for number, key in enumerate(keys):
            store.put(key, routing(4, 50 + number))
        batch = reader.get_batch(keys)
    for number in range(3):
        np.testing.assert_array_equal(batch.routing[number], routing(4, 50 + number))


def test_a_record_that_is_too_old_leaves_its_place_to_padding(place: Place) -> None:
    ids = list(LENGTHS)[:6]
    with place.reader() as reader:
        batch = reader.get_batch(ids, on_missing="mask", fresh=Freshness(10, 5))
        assert batch.mask.any(axis=1).tolist() == [False] * 5 + [True]  # what says no version is no better
