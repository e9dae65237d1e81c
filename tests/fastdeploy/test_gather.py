"""``Rows``: the blocks of a request, wherever they lie, become one array in the order that is stored."""

from __future__ import annotations

import numpy as np
import pytest

from fastdeploy_routing_plugins.errors import InvalidRecordError
from fastdeploy_routing_plugins.hosts.fastdeploy.gather import Rows

LAYERS = 3


def buffer_and_table(dtype, top_k, block_size, tokens):
    rng = np.random.default_rng(tokens)
    needed = -(-tokens // block_size)
    buffer = rng.integers(0, 100, ((needed + 3) * block_size, LAYERS, top_k)).astype(dtype)
    return buffer, rng.permutation(needed + 3)[:needed].tolist()


def expected(buffer, table, block_size, tokens):
    slots = [block * block_size + offset for block in table for offset in range(block_size)][:tokens]
    return buffer[slots] if tokens else np.empty((0, LAYERS, buffer.shape[2]), buffer.dtype)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "i4", "i8"])
@pytest.mark.parametrize("top_k", [1, 3, 4, 6, 8, 16])
def test_every_word_size_is_copied_exactly(dtype, top_k):
    buffer, table = buffer_and_table(dtype, top_k, 16, 777)
    made = np.empty((777, LAYERS, top_k), dtype)
    Rows(buffer, table, 16, 777).copy_into(made)
    assert np.array_equal(made, expected(buffer, table, 16, 777))


@pytest.mark.parametrize("block_size", [1, 16, 64, 1000])
@pytest.mark.parametrize("tokens", [0, 1, 63, 64, 65, 512, 513, 2049])
def test_every_length_is_copied_exactly(block_size, tokens):
    buffer, table = buffer_and_table("u1", 8, block_size, tokens)
    made = np.empty((tokens, LAYERS, 8), "u1")
    Rows(buffer, table, block_size, tokens).copy_into(made)
    assert np.array_equal(made, expected(buffer, table, block_size, tokens))


def test_the_peak_is_that_of_the_requests_rows_alone():
    buffer = np.full((64, LAYERS, 4), 200, np.uint16)
    buffer[16:32] = 7
    assert Rows(buffer, [1], 16, 16).peak() == 7


@pytest.mark.parametrize("block", [4, 1 << 40, -1])
def test_a_block_that_is_not_there_is_refused(block):
    with pytest.raises(InvalidRecordError, match="block table"):
        Rows(np.zeros((64, LAYERS, 4), np.uint8), [0, block], 16, 20)


def test_more_tokens_than_blocks_hold_are_refused():
    with pytest.raises(InvalidRecordError, match="33 tokens do not fit 2 blocks of 16"):
        Rows(np.zeros((64, LAYERS, 4), np.uint8), [0, 1], 16, 33)
