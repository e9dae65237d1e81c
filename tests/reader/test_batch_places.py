"""Batches whose rollouts are copied to their places as they come, against batches made of single records."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import Freshness, ParallelLayout, RoutingBatch, RoutingKey, WeightSpan
from fastdeploy_routing_plugins import errors as e

from .places import SCHEMA, Place, memory, routing
from .test_at_once import Bulk

LENGTHS = {f"r:{number}:0:0": (7, 1, 12, 12, 5, 3)[number % 6] for number in range(14)}
LAYOUTS = {
    "everything": None,
    "pipeline": ParallelLayout(2, pp=2, stages=[5, 6]).rank(1),
    "context": ParallelLayout(2, cp=2).rank(1),
}


@pytest.fixture(scope="module")
def place() -> Place:
    made = memory(Bulk)
    with made.store() as store:
        for number, (key, length) in enumerate(LENGTHS.items()):
            spans = [WeightSpan(0, length, number)] if number % 2 else []
            store.put(key, routing(length, number), weight_versions=spans)
    return made


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
