"""Arrays in: exact values, or an error that names the cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.arrays import as_numpy, canonical, check_repeats, layer_first
from fastdeploy_routing_plugins.errors import InvalidRecordError
from fastdeploy_routing_plugins.names import Part

SCHEMA = RoutingSchema(8, 2, range(3))
PART = Part((0, 4), (0, 3))


def routing(dtype: Any = np.int64) -> np.ndarray:
    rows = np.arange(12)[:, None] + np.array([0, 1])
    return (rows % 8).reshape(3, 4, 2).astype(dtype)


def put(array: Any, schema: RoutingSchema = SCHEMA, part: Part = PART) -> np.ndarray:
    return canonical(layer_first(as_numpy(array), "layer_first"), schema, part)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a,
        np.asfortranarray,
        lambda a: a.transpose(2, 1, 0).copy().transpose(2, 1, 0),
        lambda a: a[:, ::-1].copy()[:, ::-1],
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a.astype(">i4"),
        lambda a: a.astype(">u2"),
        lambda a: a.astype(np.int8),
    ],
    ids=["C", "Fortran", "transposed", "negative stride", "sliced", ">i4", ">u2", "int8"],
)
def test_any_memory_order_and_width_keeps_its_values(make: Any) -> None:
    np.testing.assert_array_equal(put(make(routing())), routing(np.uint8))


def test_a_broadcast_array_is_stored_in_full() -> None:
    constant = np.broadcast_to(np.array([1, 2], np.uint8), (3, 4, 2))
    assert put(constant).tobytes() == bytes([1, 2] * 12)


def test_canonical_input_is_not_copied() -> None:
    array = routing(np.uint8)
    assert np.shares_memory(put(array), array)


@pytest.mark.parametrize("experts", [7, 8, 254, 255, 256, 257, 384, 512, 65_536, 65_537])
def test_the_dtype_follows_the_number_of_experts_alone(experts: int) -> None:
    expected = "uint8" if experts <= 256 else "uint16" if experts <= 65_536 else "uint32"
    array = put(np.zeros((1, 1, 1), np.int64), RoutingSchema(experts, 1, [0]), Part((0, 1), (0, 1)))
    assert array.dtype == expected


@pytest.mark.parametrize("experts", [7, 255, 256, 257, 65_536])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, ">i4"])
def test_the_highest_expert_is_legal_and_the_next_one_is_not(experts: int, dtype: Any) -> None:
    schema, part = RoutingSchema(experts, 1, [0]), Part((0, 1), (0, 1))
    assert put(np.full((1, 1, 1), experts - 1, dtype), schema, part)[0, 0, 0] == experts - 1
    with pytest.raises(InvalidRecordError, match=f"id {experts} "):
        put(np.full((1, 1, 1), experts, dtype), schema, part)


def test_a_negative_id_is_refused_with_its_place() -> None:
    array = routing()
    array[2, 1, 1] = -1
    with pytest.raises(InvalidRecordError, match=r"id -1 at layer position 2, token 1, slot 1.*padding"):
        put(array)


def test_bfloat16_bit_patterns_are_named() -> None:
    ids = np.array([[[200.0, 3.0]]], np.float32)
    patterns = (ids.view(np.uint32) >> 16).astype(np.uint16)
    with pytest.raises(InvalidRecordError, match="bfloat16 bit patterns"):
        put(patterns, RoutingSchema(256, 2, [0]), Part((0, 1), (0, 1)))


@pytest.mark.parametrize(
    "array",
    [
        routing().astype(np.float32),
        routing().astype(np.float16),
        routing().astype(bool),
        routing().astype(object),
        routing().astype("U1"),
        routing().astype(complex),
        np.zeros((3, 4, 2), [("a", "u1")]),
        np.ma.masked_array(routing(), routing() == 0),
        routing().tolist(),
        b"raw",
        None,
        "AAEC",
    ],
    ids=["f4", "f2", "bool", "object", "text", "complex", "structured", "masked", "list", "bytes", "None", "base64"],
)
def test_what_is_no_array_of_integers_is_refused(array: Any) -> None:
    with pytest.raises(InvalidRecordError):
        put(array)


@pytest.mark.parametrize("shape", [(4, 3, 2), (3, 4), (3, 4, 1), (3, 5, 2), (3, 3, 2), (24,), (1, 3, 4, 2), ()])
def test_a_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRecordError):
        put(np.zeros(shape, np.uint8))


def test_an_expert_chosen_twice_for_a_token_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="names an expert twice"):
        put(np.zeros((3, 4, 2), np.uint8))


def test_a_full_check_finds_one_repeat_in_a_million_rows() -> None:
    array = np.tile(np.array([1, 2], np.uint8), (1, 1_000_000, 1))
    array[0, 777_777] = 5
    with pytest.raises(InvalidRecordError, match="token 777777"):
        check_repeats(array, SCHEMA, every_row=True)


def test_a_paddle_tensor_of_integers_is_taken() -> None:
    paddle = pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    np.testing.assert_array_equal(put(paddle.to_tensor(routing())), routing(np.uint8))


def test_a_paddle_tensor_of_uint16_is_named_as_bfloat16() -> None:
    paddle = pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    with pytest.raises(InvalidRecordError, match="bfloat16"):
        put(paddle.full([3, 4, 2], 1, dtype="uint16"))


def test_the_patterns_inside_a_paddle_uint16_tensor_are_named() -> None:
    paddle = pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    patterns = paddle.to_tensor(np.array([[[200, 3]]], np.float32)).astype("uint16").numpy()
    with pytest.raises(InvalidRecordError, match="bfloat16"):
        put(patterns, RoutingSchema(256, 2, [0]), Part((0, 1), (0, 1)))


def test_a_torch_tensor_is_taken() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    np.testing.assert_array_equal(put(torch.from_numpy(routing())), routing(np.uint8))


def test_two_axes_are_one_layer() -> None:
    array = routing()[0]
    assert canonical(layer_first(array, "layer_first"), SCHEMA, Part((0, 4), (0, 1))).shape == (1, 4, 2)


def test_equal_layers_and_tokens_are_told_apart_by_the_stated_layout() -> None:
    square = (np.arange(9)[:, None] + np.array([0, 1])).reshape(3, 3, 2) % 8
    part = Part((0, 3), (0, 3))
    taken = canonical(layer_first(square, "token_first"), SCHEMA, part)
    np.testing.assert_array_equal(taken, square.transpose(1, 0, 2))


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="layout"):
        layer_first(routing(), "tokens_first")


@pytest.mark.parametrize(
    ("experts", "top_k", "layers"),
    [(0, 1, [0]), (8, 9, [0]), (8, 0, [0]), (8, 2, []), (8, 2, [1, 1]), (8, 2, [2, 1]), (8, 2, 5), (8, 2, "12"),
     (True, 1, [0]), (8, 2.0, [0]), (8, 2, [-1])],
)  # fmt: skip
def test_a_schema_that_no_model_has_is_refused(experts: Any, top_k: Any, layers: Any) -> None:
    with pytest.raises(InvalidRecordError):
        RoutingSchema(experts, top_k, layers)
