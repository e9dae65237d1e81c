"""bfloat16 recovered, padding left out, and rows gathered from blocks."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.errors import InvalidRecordError
from fastdeploy_routing_plugins.hosts.fastdeploy.arrays import integers, real_rows, without_padding
from fastdeploy_routing_plugins.hosts.fastdeploy.gather import Rows
from fastdeploy_routing_plugins.patterns import decoded, fill_value

SCHEMA = RoutingSchema(num_experts=256, top_k=2, layer_ids=range(3))
WIDE = RoutingSchema(num_experts=257, top_k=2, layer_ids=range(3))


def bits(values: Any) -> Any:
    """The upper half of float32, which is bfloat16 of what it can hold."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_every_id_up_to_255_is_recovered() -> None:
    assert decoded(bits(np.arange(256))).tolist() == list(range(256))


@pytest.mark.parametrize("value", [256.0, 0.5, -1.0, float("nan"), float("inf"), 1e30, 1e-40])
def test_a_pattern_that_is_no_id_is_refused(value: float) -> None:
    with pytest.raises(InvalidRecordError, match="no bfloat16 integer from 0 to 255"):
        decoded(bits([1.0, value]))


def test_integers_that_are_no_patterns_stay_as_they_are() -> None:
    given_ids = np.array([[[0, 255]]], np.uint16)
    assert integers(given_ids, SCHEMA) is given_ids


def test_a_paddle_tensor_of_its_uint16_is_recovered() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paddle = pytest.importorskip("paddle")
    tensor = paddle.to_tensor(np.arange(256, dtype="int32").reshape(1, 128, 2)).cast("uint16")
    assert real_rows(tensor, SCHEMA).ravel().tolist() == list(range(256))


def test_a_paddle_tensor_of_its_uint16_is_refused_for_more_experts() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paddle = pytest.importorskip("paddle")
    with pytest.raises(InvalidRecordError, match="which rounds above 256"):
        real_rows(paddle.to_tensor(np.zeros((1, 1, 2), "int32")).cast("uint16"), WIDE)


@pytest.mark.parametrize("fill", [0xBF80, 0xFFFF], ids=["minus one", "all bits"])
def test_rows_that_nobody_filled_are_left_out_before_bfloat16_is_looked_at(fill: int) -> None:
    array = np.full((3, 10, 2), fill, np.uint16)
    array[:, :7] = bits([254, 255])
    assert np.array_equal(real_rows(array, SCHEMA), np.full((3, 7, 2), [254, 255]))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_rows_that_nobody_filled_at_the_end_are_left_out(dtype: str) -> None:
    array = np.full((3, 10, 2), fill_value(dtype), dtype)
    array[:, :7] = 1
    assert without_padding(array).shape == (3, 7, 2)


def test_a_gap_in_the_middle_stays_for_the_check_of_ids_to_find() -> None:
    array = np.full((3, 10, 2), 255, np.uint8)
    array[:, :4], array[:, 6:] = 1, 1
    assert without_padding(array).shape == (3, 10, 2)


def test_rows_that_nobody_filled_at_all_are_an_error() -> None:
    with pytest.raises(InvalidRecordError, match="captured no routing"):
        without_padding(np.full((3, 10, 2), -1, np.int32))


@given(
    st.sampled_from(["uint8", "uint16", "uint32", "int64"]),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 70),
    st.integers(0, 2**32 - 1),
)
def test_gathering_is_what_indexing_row_by_row_gives(
    dtype: str, size: int, layers: int, top_k: int, tokens: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    blocks = -(-70 // size)
    buffer = random.integers(0, 100, (blocks * size, layers, top_k)).astype(dtype)
    table = random.permutation(blocks) if seed % 2 else np.arange(blocks)
    rows = Rows(buffer, table.tolist(), size, tokens)
    got = np.empty((rows.tokens, layers, top_k), dtype)
    rows.copy_into(got)
    where = np.arange(tokens)
    expected = buffer[table[where // size] * size + where % size]
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("table", [[0], [0, 4], [0, -1], []])
def test_blocks_that_do_not_hold_the_rows_are_an_error(table: list[int]) -> None:
    with pytest.raises(InvalidRecordError):
        Rows(np.zeros((16, 3, 2), np.uint8), table, 4, 6)
