"""Rows and tokens: the caller says how they belong together, and a count that does not fit is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.errors import InvalidRecordError
from fastdeploy_routing_plugins.reader.alignment import ROWS, align
from fastdeploy_routing_plugins.reader.padding import spread_rows

from .batches import SCHEMA, ids, record

edges = st.none() | st.integers(-25, 25)


def expected_row(rule: str, position: int, num_tokens: int) -> int | None:
    """Returns which recorded row a token has, by the words of the documentation."""
    if rule == "shifted":
        return position - 1 if position > 0 else None
    return None if rule == "n-1" and position == num_tokens - 1 else position


@given(st.sampled_from(ROWS), st.integers(0, 20), edges, edges)
def test_every_token_that_python_would_keep_has_its_own_row_or_none(
    rule: str, num_tokens: int, first: int | None, last: int | None
) -> None:
    recorded = ids(2, num_tokens if rule == "n" else max(num_tokens - 1, 0))
    keep = slice(first, last)
    aligned = align(recorded, num_tokens, rule, tokens=keep, schema=SCHEMA)
    positions = list(range(num_tokens))[keep]
    rows = [expected_row(rule, position, num_tokens) for position in positions]
    got = [aligned.routing[:, i].tolist() if there else None for i, there in enumerate(aligned.mask)]
    assert got == [None if row is None else recorded[:, row].tolist() for row in rows]


@given(st.sampled_from(ROWS), st.integers(0, 20), edges, edges)
def test_a_record_is_aligned_as_its_array_is(rule: str, num_tokens: int, first: int | None, last: int | None) -> None:
    whole = record(tokens=num_tokens if rule == "n" else max(num_tokens - 1, 0))
    keep = slice(first, last)
    of_record = align(whole, num_tokens, rule, tokens=keep)
    of_array = align(whole.routing, num_tokens, rule, tokens=keep, schema=SCHEMA)
    np.testing.assert_array_equal(of_record.routing, of_array.routing)


def test_the_last_sampled_token_has_no_row() -> None:
    assert align(record(tokens=4), 5, "n-1").mask.tolist() == [True] * 4 + [False]


def test_shifted_rows_belong_to_the_token_predicted_from_them() -> None:
    recorded = record(tokens=4)
    np.testing.assert_array_equal(align(recorded, 5, "shifted").routing[:, 1:], recorded.routing)


def test_the_first_token_is_predicted_from_nothing() -> None:
    assert align(record(tokens=4), 5, "shifted").mask.tolist() == [False] + [True] * 4


@pytest.mark.parametrize("rule", ["n-1", "shifted"])
def test_one_token_alone_has_no_row(rule: Any) -> None:
    assert align(record(tokens=0), 1, rule).mask.tolist() == [False]


@pytest.mark.parametrize("rule", ROWS)
def test_no_token_at_all_is_legal(rule: Any) -> None:
    assert align(record(tokens=0), 0, rule).routing.shape == (4, 0, 3)


@pytest.mark.parametrize(
    ("rows", "tokens", "rule"),
    [(32, 33, "n"), (33, 33, "n-1"), (33, 33, "shifted"), (32, 34, "n-1"), (34, 33, "n"), (0, 2, "n-1"), (1, 0, "n"),
     (1, 0, "n-1"), (8193, 8192, "n")],
)  # fmt: skip
def test_a_count_that_does_not_fit_is_refused_with_both_numbers(rows: int, tokens: int, rule: Any) -> None:
    with pytest.raises(InvalidRecordError, match=f"{rows} rows were recorded for {tokens} tokens"):
        align(record(tokens=rows), tokens, rule)


def test_the_hint_names_the_rule_that_would_fit() -> None:
    with pytest.raises(InvalidRecordError, match="rows='n-1'"):
        align(record(tokens=4), 5, "n")


@pytest.mark.parametrize(
    "keep", [slice(None, 4000), slice(-4000, None), slice(48, 4048)], ids=["right", "left", "both"]
)
def test_what_the_trainer_cuts_off_takes_its_rows_along(keep: slice) -> None:
    recorded = ids(1, 4095)
    aligned = align(recorded, 4096, "n-1", tokens=keep, schema=SCHEMA)
    kept = range(4096)[keep]
    last = min(kept.stop, 4095)
    np.testing.assert_array_equal(aligned.routing[:, aligned.mask], recorded[:, kept.start : last])


def test_a_cut_longer_than_the_rollout_keeps_all_of_it() -> None:
    assert align(record(tokens=5), 5, "n", tokens=slice(-4000, None)).routing.shape[1] == 5


@pytest.mark.parametrize("edge", [0, 3, 5])
def test_an_empty_cut_is_legal(edge: int) -> None:
    assert align(record(tokens=5), 5, "n", tokens=slice(edge, edge)).mask.size == 0


def test_the_position_of_the_first_kept_token_is_told() -> None:
    assert align(record(tokens=5), 5, "n", tokens=slice(-2, None)).start == 3


@pytest.mark.parametrize("keep", [slice(None, None, 2), slice(None, None, -1), slice("a"), 3, (1, 2), slice(0.5)])
def test_what_is_no_slice_of_neighbours_is_refused(keep: Any) -> None:
    with pytest.raises(InvalidRecordError, match="slice"):
        align(record(tokens=5), 5, "n", tokens=keep)


@pytest.mark.parametrize("count", [-1, 2.0, None, "5", True])
def test_what_is_no_count_of_tokens_is_refused(count: Any) -> None:
    with pytest.raises(InvalidRecordError, match="num_tokens"):
        align(record(tokens=5), count, "n")


@pytest.mark.parametrize("rule", ["N", "n+1", None, 1])
def test_an_unknown_rule_is_refused(rule: Any) -> None:
    with pytest.raises(InvalidRecordError, match="rows must be one of"):
        align(record(tokens=5), 5, rule)


def test_a_range_that_was_read_serves_the_tokens_within_it() -> None:
    response = record(tokens=10, start=50, total=60)
    aligned = align(response, 61, "n-1", tokens=slice(50, None))
    np.testing.assert_array_equal(aligned.routing[:, aligned.mask], response.routing)


def test_a_range_that_was_read_does_not_serve_other_tokens() -> None:
    with pytest.raises(InvalidRecordError, match="need the rows 49:60; read were the rows 50:60"):
        align(record(tokens=10, start=50, total=60), 61, "n-1", tokens=slice(49, None))


def test_a_range_is_counted_against_the_whole_rollout() -> None:
    with pytest.raises(InvalidRecordError, match="60 rows were recorded for 62 tokens"):
        align(record(tokens=10, start=50, total=60), 62, "n-1", tokens=slice(50, 60))


def test_a_range_without_a_known_total_must_end_within_the_rollout() -> None:
    with pytest.raises(InvalidRecordError, match="60 rows were recorded for 59 tokens"):
        align(record(tokens=10, start=50, total=None), 59, "n", tokens=slice(50, 55))


def test_a_range_without_a_known_total_serves_its_tokens() -> None:
    aligned = align(record(tokens=10, start=50, total=None), 90, "n", tokens=slice(52, 60))
    assert aligned.mask.all()


def test_rows_are_not_copied_where_every_token_has_one() -> None:
    whole = record(tokens=5)
    assert np.shares_memory(align(whole, 6, "n-1", tokens=slice(0, 5)).routing, whole.routing)


def test_a_view_of_the_callers_array_is_read_only() -> None:
    assert not align(ids(2, 5), 5, "n").routing.flags.writeable


def test_aligning_leaves_the_callers_array_writable() -> None:
    array = ids(2, 5)
    align(array, 5, "n")
    assert array.flags.writeable


def test_a_position_without_a_row_holds_distinct_experts() -> None:
    filler = align(record(tokens=4), 5, "n-1").routing[:, ~align(record(tokens=4), 5, "n-1").mask]
    assert all(len(set(row)) == 3 for row in filler.reshape(-1, 3).tolist())


def test_a_fill_that_is_asked_for_is_used() -> None:
    assert align(ids(2, 4), 5, "n-1", fill=9).routing[:, 4].tolist() == [[9] * 3] * 2


def test_minus_one_does_not_enter_an_unsigned_array() -> None:
    with pytest.raises(InvalidRecordError, match="fill=-1 is no value of uint8"):
        align(record(tokens=4), 5, "n-1", fill=-1)


def test_minus_one_enters_a_signed_array() -> None:
    assert align(ids(2, 4).astype(np.int64), 5, "n-1", fill=-1).routing[0, 4].tolist() == [-1] * 3


def test_an_array_without_a_schema_is_not_padded_by_guesswork() -> None:
    with pytest.raises(InvalidRecordError, match="how many experts"):
        align(ids(2, 4), 5, "n-1")


def test_an_array_without_a_schema_needs_none_if_all_tokens_have_rows() -> None:
    assert align(ids(2, 4), 4, "n").mask.all()


def test_padding_that_the_dtype_does_not_hold_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="int8 does not hold the ids of 256 experts"):
        align(np.zeros((1, 4, 3), np.int8), 5, "n-1", schema=RoutingSchema(256, 3, [0]))


def test_two_axes_are_one_layer() -> None:
    assert align(ids(1, 4)[0], 4, "n").routing.shape == (1, 4, 3)


@pytest.mark.parametrize("shape", [(4,), (1, 2, 4, 3), ()])
def test_other_ranks_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRecordError, match="3 axes"):
        align(np.zeros(shape, np.uint8), 4, "n")


def test_what_is_printed_holds_no_data() -> None:
    assert repr(align(ids(1, 4), 4, "n")) == "AlignedRows(shape=(1, 4, 3), start=0, recorded=4)"


# --- padding ------------------------------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int]:
    num_experts = draw(st.integers(1, 300))
    return num_experts, draw(st.integers(1, min(num_experts, 20)))


@given(tables(), st.integers(0, 700), st.integers(0, 10_000))
def test_padding_names_distinct_experts_in_each_row(table: tuple[int, int], count: int, start: int) -> None:
    rows = np.sort(spread_rows(count, *table, start=start), axis=1)
    assert not (rows[:, 1:] == rows[:, :-1]).any()


@given(tables(), st.integers(0, 700), st.integers(0, 10_000))
def test_padding_names_every_expert_equally_often(table: tuple[int, int], count: int, start: int) -> None:
    times = np.bincount(spread_rows(count, *table, start=start).ravel(), minlength=table[0])
    assert len(times) == table[0]
    assert times.max() - times.min() <= 1


@given(tables(), st.integers(0, 400), st.integers(0, 400))
def test_runs_of_padding_go_on_where_the_last_one_ended(table: tuple[int, int], first: int, second: int) -> None:
    runs = [spread_rows(first, *table), spread_rows(second, *table, start=first)]
    np.testing.assert_array_equal(np.concatenate(runs), spread_rows(first + second, *table))


def test_ten_thousand_rows_of_eight_of_eight_experts_are_balanced() -> None:
    assert np.bincount(spread_rows(10_000, 8, 8).ravel()).tolist() == [10_000] * 8


def test_eight_distinct_experts_of_seven_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="7 experts do not make a row of 8 distinct ids"):
        spread_rows(1, 7, 8)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_row_of_padding_reaches_every_expert_parallel_rank_equally(ranks: int) -> None:
    assert np.bincount(spread_rows(1, 256, 8)[0] // (256 // ranks), minlength=ranks).tolist() == [8 // ranks] * ranks


@pytest.mark.parametrize(
    ("experts", "dtype"),
    [(254, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (2**32, "uint32")],
)
def test_padding_has_the_stored_dtype_and_legal_distinct_ids(experts: int, dtype: str) -> None:
    rows = spread_rows(1_000, experts, 8, start=2**33)
    assert rows.dtype == dtype
    assert rows.max() < experts
    assert all(len(set(row)) == 8 for row in rows.tolist())


def test_padding_of_known_shapes_stays_what_it_is() -> None:
    assert spread_rows(3, 8, 2).tolist() == [[0, 5], [2, 7], [4, 1]]
