"""Comparing two routings: the same numbers as Python's sets give, and clear words where nothing can be compared."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_routing_plugins import Part, RoutingKey, RoutingRecord, RoutingSchema
from fastdeploy_routing_plugins import comparison as module
from fastdeploy_routing_plugins.comparison import Comparison, compare
from fastdeploy_routing_plugins.errors import InvalidKeyError, LengthMismatchError, SchemaMismatchError

EXAMPLES = int(os.environ.get("FD_ROUTING_TEST_EXAMPLES", "200"))


def record(routing: Any, schema: RoutingSchema, start: int = 0, first_layer: int = 0) -> RoutingRecord:
    array = np.asarray(routing, schema.dtype)
    part = Part((start, start + array.shape[1]), (first_layer, first_layer + array.shape[0]))
    return RoutingRecord(array, RoutingKey("a"), schema, part, None, 0)


def drawn(seed: int, layer_ids: Any, tokens: int, experts: int = 16, top_k: int = 3, start: int = 0) -> RoutingRecord:
    """Returns random routing, of which every layer is the same for the same seed, and much of it for another one."""
    schema = RoutingSchema(experts, top_k, layer_ids)
    shape, layers = (tokens, experts), schema.layer_ids
    scores = np.stack([np.random.default_rng([0, layer]).random(shape) for layer in layers])
    scores += np.stack([np.random.default_rng([seed, layer]).random(shape) > 0.95 for layer in layers])
    return record(np.argsort(scores, axis=-1)[..., :top_k], schema, start)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[RoutingRecord, RoutingRecord]:
    experts, top_k = draw(st.sampled_from([(4, 1), (4, 3), (16, 3), (300, 4), (70_000, 2)]))
    sides = []
    for _ in range(2):
        layers = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(sorted))
        start, tokens = draw(st.integers(0, 3)), draw(st.integers(0, 8))
        schema = RoutingSchema(experts, top_k, layers)
        rows = st.lists(st.integers(0, min(experts, 5) - 1), min_size=top_k, max_size=top_k, unique=True)
        cells = st.lists(st.lists(rows, min_size=tokens, max_size=tokens), min_size=len(layers), max_size=len(layers))
        routing = np.array(draw(cells), np.int64).reshape(len(layers), tokens, top_k) * (experts // 5 or 1)
        sides.append(record(routing, schema, start))
    return sides[0], sides[1]


def by_sets(a: RoutingRecord, b: RoutingRecord) -> dict[int, tuple[int, int, int]]:
    """Returns rows, shared experts and equal rows of each common layer, cell by cell."""
    start, stop = max(a.part.tokens[0], b.part.tokens[0]), min(a.part.tokens[1], b.part.tokens[1])
    found = {}
    for layer in set(a.layer_ids) & set(b.layer_ids):
        cells = [
            tuple(set(side.layer(layer)[token - side.part.tokens[0]].tolist()) for side in (a, b))
            for token in range(start, stop)
        ]
        found[layer] = (len(cells), sum(len(x & y) for x, y in cells), sum(x == y for x, y in cells))
    return found


@settings(max_examples=EXAMPLES, deadline=None)
@given(pairs())
def test_the_numbers_are_those_of_sets(pair: tuple[RoutingRecord, RoutingRecord]) -> None:
    try:
        found = compare(*pair)
    except (SchemaMismatchError, LengthMismatchError):
        expected = by_sets(*pair)
        assert not expected or not any(rows for rows, _, _ in expected.values())
        return

    assert {each.layer_id: (each.rows, each.shared, each.same) for each in found.layers} == by_sets(*pair)


@settings(max_examples=EXAMPLES, deadline=None)
@given(pairs())
def test_the_other_way_round_only_changes_sides(pair: tuple[RoutingRecord, RoutingRecord]) -> None:
    a, b = pair
    try:
        found = compare(a, b)
    except (SchemaMismatchError, LengthMismatchError) as err:
        with pytest.raises(type(err)):
            compare(b, a)
        return
    turned = compare(b, a)

    assert (turned.layers, turned.only_a, turned.only_b) == (found.layers, found.only_b, found.only_a)


@pytest.mark.parametrize("limit", [1, 7, 64, 1 << 24])
def test_large_routing_is_compared_block_by_block(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(1, range(2), 200), drawn(2, range(2), 200)
    monkeypatch.setattr(module, "_PAIRS", limit)

    found = compare(a, b)

    assert {each.layer_id: (each.rows, each.shared, each.same) for each in found.layers} == by_sets(a, b)


def test_the_order_of_a_tokens_experts_does_not_matter() -> None:
    a = drawn(1, [3, 4], 50)
    turned = record(a.routing[..., ::-1], a.schema)

    assert compare(a, turned).same


def test_one_expert_of_one_token_makes_a_difference() -> None:
    a = drawn(1, [3, 4], 50)
    other = a.routing.copy()
    other[1, 20, 0] = next(iter(set(range(16)) - set(other[1, 20].tolist())))
    found = compare(a, record(other, a.schema))

    assert (found.same, [each.same for each in found.layers], found.shared) == (False, [50, 49], 2 * 50 * 3 - 1)


def test_an_expert_that_stands_twice_counts_once() -> None:
    schema = RoutingSchema(8, 2, [0])

    (layer,) = compare(record([[[1, 1]]], schema), record([[[1, 2]]], schema)).layers

    assert (layer.shared, layer.same) == (1, 0)


def test_shares_are_means_over_tokens() -> None:
    schema = RoutingSchema(8, 2, [0])
    a, b = record([[[1, 2], [3, 4]]], schema), record([[[2, 1], [4, 5]]], schema)

    (layer,) = compare(a, b).layers

    assert (layer.agreement, layer.same_share) == (0.75, 0.5)


def test_layers_are_compared_by_the_models_numbers() -> None:
    late, early = drawn(1, [3, 4, 5], 20), drawn(1, [2, 3, 4], 20)
    found = compare(late, early)

    assert (found.agreement, [each.layer_id for each in found.layers]) == (1.0, [3, 4])


def test_layers_that_only_one_has_are_named_and_a_difference() -> None:
    found = compare(drawn(1, [3, 4, 5], 20), drawn(1, [2, 3, 4], 20))

    assert (found.only_a.layer_ids, found.only_b.layer_ids, found.same) == ((5,), (2,), False)


def test_tokens_that_only_one_has_are_named_and_a_difference() -> None:
    a = drawn(1, [0], 20)
    found = compare(a, record(a.routing[:, 4:15], a.schema, start=4))

    assert (found.tokens, found.only_a.tokens, found.only_b.tokens, found.same) == (
        (4, 15),
        ((0, 4), (15, 20)),
        (),
        False,
    )


@pytest.mark.parametrize("tokens", [(4, 15), slice(4, 15), range(4, 15)])
def test_only_the_tokens_asked_for_are_compared(tokens: Any) -> None:
    a = drawn(1, [0], 20)
    other = a.routing.copy()
    other[0, [3, 15]] = other[0, [3, 15]][:, ::-1] // 2

    found = compare(a, record(other, a.schema), tokens=tokens)

    assert (found.same, found.tokens) == (True, (4, 15))


def test_tokens_asked_for_that_only_one_has_are_a_difference() -> None:
    a = drawn(1, [0], 20)
    found = compare(a, record(a.routing[:, :10], a.schema), tokens=(5, 12))

    assert (found.tokens, found.only_a.tokens, found.same) == ((5, 10), ((10, 12),), False)


def test_only_the_layers_asked_for_are_compared() -> None:
    found = compare(drawn(1, [3, 4, 5], 20), drawn(1, [2, 3, 4], 20), layer_ids={3, 4})

    assert (found.same, found.only_a, found.only_b) == (True, module.OnlyOne(), module.OnlyOne())


def test_a_record_of_some_layers_is_compared_by_its_own() -> None:
    schema = RoutingSchema(16, 3, [3, 4, 5])
    a = drawn(1, [3, 4, 5], 20)

    found = compare(a, record(a.routing[1:], schema, first_layer=1), layer_ids=[4, 5])

    assert found.same


def test_two_routings_without_tokens_are_the_same() -> None:
    empty = drawn(1, [3, 4], 0)

    assert (compare(empty, empty).same, compare(empty, empty).agreement) == (True, 1.0)


@pytest.mark.parametrize(("experts", "top_k"), [(17, 3), (16, 2), (300, 3)])
def test_another_model_is_a_schema_mismatch(experts: int, top_k: int) -> None:
    with pytest.raises(SchemaMismatchError, match=rf"A is of 16 experts, top-3.* B of {experts} experts, top-{top_k}"):
        compare(drawn(1, [3], 5), drawn(1, [3], 5, experts, top_k))


def test_no_layer_in_common_is_a_schema_mismatch() -> None:
    with pytest.raises(SchemaMismatchError, match=r"no layer in common: A has layers \(3,\), B has \(4,\)"):
        compare(drawn(1, [3], 5), drawn(1, [4], 5))


@pytest.mark.parametrize(("tokens", "start"), [(5, 20), (0, 0), (0, 5)])
def test_no_token_in_common_is_a_length_mismatch(tokens: int, start: int) -> None:
    with pytest.raises(LengthMismatchError, match="no token in common: A has tokens 0:5"):
        compare(drawn(1, [3], 5), drawn(1, [3], tokens, start=start))


@pytest.mark.parametrize("wrong", [{"tokens": (5, 9)}, {"layer_ids": [7]}, {"tokens": (3, 1)}, {"tokens": -1}])
def test_what_neither_has_cannot_be_asked_for(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidKeyError):
        compare(drawn(1, [3], 5), drawn(1, [3], 5), **wrong)


def test_totals_are_those_of_the_layers() -> None:
    found: Comparison = compare(drawn(1, [3, 4], 40), drawn(2, [3, 4], 40))
    sums = [sum(getattr(each, name) for each in found.layers) for name in ("rows", "shared", "same")]

    assert sums == [found.rows, found.shared, found.same_rows]
