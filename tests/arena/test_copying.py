"""The one pass into the arena against NumPy's own copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.arena.copying import copy_into

from .helpers import FEWER

DTYPES = ["u1", "i1", "<u2", ">u2", "<i4", ">i4", "<u4", "<i8", ">i8"]
SHAPES = st.tuples(
    st.integers(1, 7), st.integers(0, 40) | st.sampled_from([255, 256, 257, 511, 512, 513, 1100]), st.integers(1, 9)
)


def counted(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Returns an array in C order in which neighbours differ."""
    return (np.arange(int(np.prod(shape))) * 2_654_435_761 % 251).astype(dtype).reshape(shape)


def c_order(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return counted(shape, dtype)


def fortran(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return np.asfortranarray(counted(shape, dtype))


def token_first(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    return counted((tokens, layers, top_k), dtype).transpose(1, 0, 2)


def top_k_first(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    return counted((top_k, layers, tokens), dtype).transpose(1, 2, 0)


def tokens_sliced(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    return counted((layers, 2 * tokens + 1, top_k), dtype)[:, 1::2][:, :tokens]


def token_first_sliced(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    return counted((tokens + 3, layers + 2, top_k), dtype)[3:, 2:].transpose(1, 0, 2)


def ids_sliced(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    return counted((tokens, layers, top_k + 2), dtype)[:, :, 1:-1].transpose(1, 0, 2)


def every_second_id(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    return counted((tokens, layers, 2 * top_k), dtype)[:, :, ::2].transpose(1, 0, 2)


def backwards(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return counted(shape, dtype)[::-1, ::-1]


def token_first_backwards(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return token_first(shape, dtype)[::-1, ::-1]


def ids_backwards(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return token_first(shape, dtype)[:, :, ::-1]


def broadcast_layers(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return np.broadcast_to(counted(shape[1:], dtype), shape)


def broadcast_tokens(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, _, top_k = shape
    return np.broadcast_to(counted((layers, 1, top_k), dtype), shape)


def broadcast_ids(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return np.broadcast_to(counted((*shape[:2], 1), dtype), shape)


def broadcast_token_first(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    return np.broadcast_to(counted((tokens, 1, top_k), dtype), (tokens, layers, top_k)).transpose(1, 0, 2)


def unaligned(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 1, "u1")
    view = memory[1:].view(dtype).reshape(tokens, layers, top_k)
    view[...] = counted((tokens, layers, top_k), dtype)
    return view.transpose(1, 0, 2)


def field_of_records(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    layers, tokens, top_k = shape
    records = np.zeros((tokens, layers), [("tag", "u1"), ("ids", dtype, (top_k,))])
    records["ids"] = counted((tokens, layers, top_k), dtype)
    return records["ids"].transpose(1, 0, 2)


def read_only(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    array = token_first(shape, dtype)
    array.flags.writeable = False
    return array


LAYOUTS = [
    c_order, fortran, token_first, top_k_first, tokens_sliced, token_first_sliced, ids_sliced, every_second_id,
    backwards, token_first_backwards, ids_backwards, broadcast_layers, broadcast_tokens, broadcast_ids,
    broadcast_token_first, unaligned, field_of_records, read_only,
]  # fmt: skip


def copied(source: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], bytes]:
    """Returns what ``copy_into`` makes of an array, and the bytes before and behind it, which it must not touch."""
    native = source.dtype.newbyteorder("=")
    size = source.size * source.itemsize
    memory = np.full(size + 128, 0xEE, "u1")
    target: npt.NDArray[Any] = np.frombuffer(memory, native, source.size, 64).reshape(source.shape)
    copy_into(target, source)
    return target, memory[:64].tobytes() + memory[64 + size :].tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@FEWER
@given(st.data())
def test_whatever_the_memory_order_the_ids_arrive(layout: Any, data: st.DataObject) -> None:
    source = layout(data.draw(SHAPES), data.draw(st.sampled_from(DTYPES)))
    expected = np.empty(source.shape, source.dtype.newbyteorder("="))
    np.copyto(expected, source)
    target, around = copied(source)
    assert (target.tobytes(), around) == (expected.tobytes(), b"\xee" * 128)


@pytest.mark.parametrize("top_k", range(1, 10))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_transposition_beyond_one_block_of_tokens_is_whole(dtype: str, top_k: int) -> None:
    source = token_first((5, 1300, top_k), dtype)
    assert np.array_equal(copied(source)[0], source)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_tokens_are_no_ids(layout: Any) -> None:
    assert copied(layout((3, 0, 8), "u1"))[0].shape == (3, 0, 8)


def test_every_bit_pattern_of_a_wide_row_arrives() -> None:
    source = np.frombuffer(np.random.default_rng(1).bytes(16 * 4096), "u1").reshape(4096 // 4, 4, 16)
    source = source.copy()
    source[0, :, :] = 0xFF  # as complex numbers: not a number, twice
    source[1, :, 7] = 0x7F
    assert copied(source.transpose(1, 0, 2))[0].tobytes() == np.ascontiguousarray(source.transpose(1, 0, 2)).tobytes()


def test_the_source_stays_as_it_is() -> None:
    source = token_first((4, 300, 8), "u1")
    before = source.tobytes()
    copied(source)
    assert source.tobytes() == before
