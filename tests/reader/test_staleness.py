"""Weight versions: which tokens are too old, by record, by share, by batch and by header."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import Freshness, ParallelLayout, RoutingReader, WeightSpan
from fastdeploy_routing_plugins import errors as e

from .places import NAMES, SCHEMA, Place, place, routing

TWO = (WeightSpan(0, 7, 5), WeightSpan(7, 10, 6))  # weights 5 made the first seven tokens


@pytest.fixture(scope="module", params=NAMES)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A store of each kind with rollouts of several versions."""
    found = place(request.param, tmp_path_factory.mktemp("stale"))
    with found.store() as store:
        store.put("two", routing(10), weight_versions=TWO)
        store.put("six", routing(4), weight_versions=[WeightSpan(0, 4, 6)])
        store.put("unstated", routing(4))
        store.put("text", routing(4), weight_versions=[WeightSpan(0, 2, "ckpt-1"), WeightSpan(2, 4, "ckpt-2")])
    return found


@pytest.fixture(scope="module")
def reader(stored: Place) -> Iterator[RoutingReader]:
    with stored.reader() as opened:
        yield opened


def spans(stale: Any) -> list[tuple[int, int, Any]]:
    return [(span.start, span.stop, span.version) for span in stale]


def test_weights_within_the_limit_are_accepted(reader: RoutingReader) -> None:
    assert reader.get("two", fresh=Freshness(6, 1)).num_tokens == 10


def test_weights_beyond_the_limit_are_refused_with_their_tokens(reader: RoutingReader) -> None:
    with pytest.raises(e.StaleError, match=r"'two' is too old for version 7 .*: tokens 0:7 of version 5 \(2 behind\)"):
        reader.get("two", fresh=Freshness(7, 1))


def test_what_is_too_old_is_a_fact_that_travels(reader: RoutingReader) -> None:
    with pytest.raises(e.StaleError) as caught:
        reader.get("two", fresh=Freshness(8, 0))
    error = pickle.loads(pickle.dumps(caught.value))
    assert (spans(error.spans), error.key.rollout_id) == ([(0, 7, 5), (7, 10, 6)], "two")


def test_only_the_tokens_that_are_read_count(reader: RoutingReader) -> None:
    assert reader.get("two", tokens=(7, 10), fresh=Freshness(6, 0)).num_tokens == 3


def test_newer_weights_than_the_trainers_are_accepted(reader: RoutingReader) -> None:
    assert reader.get("two", fresh=Freshness(3, 0)).num_tokens == 10


def test_weights_that_nobody_stated_are_refused(reader: RoutingReader) -> None:
    with pytest.raises(e.StaleError, match="tokens 0:4 of weights that nobody stated"):
        reader.get("unstated", fresh=Freshness(6, 100))


def test_weights_that_nobody_stated_are_accepted_if_asked(reader: RoutingReader) -> None:
    assert reader.get("unstated", fresh=Freshness(6, 0, accept_unstated=True)).num_tokens == 4


def test_texts_are_ordered_by_the_trainer(reader: RoutingReader) -> None:
    fresh = Freshness("ckpt-3", 1, order=["ckpt-1", "ckpt-2", "ckpt-3"])
    assert spans(fresh.of(reader.get("text"))) == [(0, 2, "ckpt-1")]


def test_a_version_that_the_trainer_forgot_is_too_old(reader: RoutingReader) -> None:
    fresh = Freshness("ckpt-3", 100, order=["ckpt-2", "ckpt-3"])
    assert [str(span) for span in fresh.of(reader.get("text"))] == [
        "tokens 0:2 of version ckpt-1 (not in the list of versions)"
    ]


def test_a_text_is_too_old_where_numbers_count(reader: RoutingReader) -> None:
    assert spans(Freshness(6, 100).of(reader.get("text"))) == [(0, 2, "ckpt-1"), (2, 4, "ckpt-2")]


def test_a_batch_with_one_that_is_too_old_is_refused(reader: RoutingReader) -> None:
    with pytest.raises(e.StaleError, match="'two'"):
        reader.get_batch(["six", "two"], fresh=Freshness(6, 0))


def test_old_tokens_lose_their_place_in_the_mask(reader: RoutingReader) -> None:
    batch = reader.get_batch(["six", "two"], on_missing="mask", fresh=Freshness(6, 0))
    assert (batch.mask.sum(axis=1).tolist(), np.flatnonzero(batch.mask[1]).tolist()) == ([4, 3], [7, 8, 9])


@pytest.mark.parametrize("side", ["left", "right"])
def test_old_tokens_are_found_where_rows_are_shifted_and_cut(reader: RoutingReader, side: Any) -> None:
    batch = reader.get_batch(
        ["two", "six"], on_missing="mask", fresh=Freshness(6, 0), num_tokens=[11, 5], rows="shifted",
        tokens=[slice(4, 11), slice(None)], side=side,
    )  # fmt: skip
    # Tokens 4 to 10 were predicted from rows 3 to 9, of which 7 to 9 are of the current weights: tokens 8 to 10.
    assert np.flatnonzero(batch.mask[0]).tolist() == [4, 5, 6]


def test_old_tokens_of_a_ranks_share_are_found(stored: Place) -> None:
    with stored.reader(ParallelLayout(2, cp=2).rank(1)) as reader:  # tokens 3 to 8
        batch = reader.get_batch(["two"], on_missing="mask", fresh=Freshness(6, 0))
    assert batch.mask.tolist() == [[False] * 4 + [True] * 2]


def test_headers_alone_say_what_is_too_old(reader: RoutingReader) -> None:
    found = reader.stale(["six", "two", "unstated"], Freshness(6, 0))
    assert {key: spans(some) for key, some in found.items()} == {"two": [(0, 7, 5)], "unstated": [(0, 4, None)]}


def test_asking_for_the_age_of_what_is_not_there_says_so(reader: RoutingReader) -> None:
    with pytest.raises(e.NotFoundError):
        reader.stale(["six", "never"], Freshness(6, 0))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((6, -1), "max_staleness must be"),
        ((6, 1.5), "max_staleness must be"),
        ((6.0, 1), "version of a weight-version span"),
        (("a", 1), "is a text"),
        (("c", 1, ["a", "b"]), "order does not have the current version"),
        (("a", 1, ["a", "b", "a"]), "order has a version twice"),
    ],
)
def test_values_that_do_not_fit_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(e.InvalidRecordError, match=said):
        Freshness(*wrong)


def test_layers_of_unstated_weights_are_too_old_whatever_others_state(stored: Place) -> None:
    with stored.store() as store, stored.reader() as reader:
        rest = (1, SCHEMA.num_layers)
        store.put("mixed", routing(6)[:1], layers=(0, 1), total_tokens=6, weight_versions=[WeightSpan(0, 6, 9)])
        store.put("mixed", routing(6)[1:, :4], layers=rest, tokens=(0, 4))
        store.put("mixed", routing(6)[1:, 4:], layers=rest, tokens=(4, 6), weight_versions=[WeightSpan(4, 6, 8)])
        fresh = Freshness(9, 0)
        with pytest.raises(e.StaleError, match=r"tokens 0:4 of weights that nobody stated; tokens 4:6 of version 8"):
            reader.get("mixed", fresh=fresh)
        assert spans(reader.stale(["mixed"], Freshness(9, 1))["mixed"]) == [(0, 4, None)]
        assert reader.get("mixed", fresh=fresh, layers=(0, 1)).unstated == ()
        assert reader.get("mixed", fresh=Freshness(9, 1, accept_unstated=True)).unstated == ((0, 4),)
        batch = reader.get_batch(["mixed"], on_missing="mask", fresh=Freshness(9, 1))
        assert batch.mask.tolist() == [[False] * 4 + [True] * 2]


RANGES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=3)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 4)), max_size=6), RANGES, st.data())
def test_the_stale_tokens_are_those_of_a_token_by_token_look(
    given_spans: list[tuple[int, int, int]], unstated: list[tuple[int, int]], data: st.DataObject
) -> None:
    stated = [WeightSpan(min(a, b), max(a, b), version) for a, b, version in given_spans if a != b]
    fresh = Freshness(4, data.draw(st.integers(0, 4)), accept_unstated=data.draw(st.booleans()))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 20), st.integers(0, 20))))
    stale = fresh.stale(stated, [(start, stop)], unstated)
    found = {token for span in stale for token in range(span.start, span.stop)}
    expected = set()
    for token in range(start, stop):
        ages = [4 - span.version for span in stated if span.start <= token < span.stop]  # type: ignore[operator]
        silent = not ages or any(low <= token < high for low, high in unstated)
        if any(age > fresh.max_staleness for age in ages) or (silent and not fresh.accept_unstated):
            expected.add(token)
    assert found == expected


@pytest.mark.parametrize("order", [5, "12", None])
def test_an_order_that_is_no_list_is_refused(order: Any) -> None:
    with pytest.raises(e.InvalidRecordError, match="order must list versions"):
        Freshness(1, 0, order=order)
