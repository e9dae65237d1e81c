"""Paddle: tensors of a batch, and replay that equals its definition in values and gradients."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="paddlepaddle is not installed")

from fastdeploy_routing_plugins import RoutingSchema  # noqa: E402
from fastdeploy_routing_plugins.errors import InvalidRecordError, NotFoundError, UnsupportedError  # noqa: E402
from fastdeploy_routing_plugins.reader.batch import RoutingBatch  # noqa: E402
from fastdeploy_routing_plugins.reader.paddle import replay_topk  # noqa: E402

from .batches import ids, record  # noqa: E402
from .replay_reference import CASES, Case, case, error, unlikely  # noqa: E402

ON_GPU = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0


def tensor(array: np.ndarray | None) -> Any:
    return None if array is None else paddle.to_tensor(array)


def replayed(given: Case, **other: Any) -> tuple[Any, Any, Any]:
    """Returns weights, experts and scores, which have a gradient once the weights had theirs."""
    scores = other.pop("scores", None)
    scores = tensor(given.scores) if scores is None else scores
    scores.stop_gradient = False
    arguments = {"mask": given.mask, "bias": given.bias, "live_ids": given.live_ids}
    options = {**{name: tensor(value) for name, value in arguments.items()}, **given.options(), **other}
    weights, chosen = replay_topk(scores, options.pop("ids", tensor(given.ids)), **options)
    return weights, chosen, scores


def gradient(given: Case, **other: Any) -> Any:
    weights, _, scores = replayed(given, **other)
    (weights * tensor(given.upstream)).sum().backward()
    return scores.grad


def equal(one: Any, other: Any) -> bool:
    return np.array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("given", CASES)
def test_weights_equal_their_definition(given: Case) -> None:
    assert error(replayed(given)[0].numpy(), given.weights()) < 1e-6


@pytest.mark.parametrize("given", CASES)
def test_gradients_equal_their_definition(given: Case) -> None:
    assert error(gradient(given).numpy(), given.gradient()) < 1e-6


@pytest.mark.parametrize("given", CASES)
def test_the_recorded_experts_are_used_and_the_live_ones_where_nothing_was_recorded(given: Case) -> None:
    np.testing.assert_array_equal(replayed(given)[1].numpy(), given.chosen())


def test_float64_keeps_its_precision() -> None:
    given = CASES[0].values[0]
    weights = replayed(given, scores=tensor(given.scores.astype(np.float64)))[0]
    assert error(weights.numpy(), given.weights()) < 1e-14


def test_a_live_selection_that_is_given_is_used_where_nothing_was_recorded() -> None:
    given = case(masked=True)
    given = replace(given, live_ids=np.roll(given.ids, 1, axis=0))
    np.testing.assert_array_equal(replayed(given)[1].numpy(), given.chosen())


def test_what_stands_where_nothing_was_recorded_does_not_matter() -> None:
    given = case(masked=True)
    marked = np.where(given.mask[..., None], given.ids, -1)
    assert equal(replayed(given, ids=tensor(marked))[0], replayed(given)[0])


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_experts_that_the_live_router_would_never_choose_still_get_weights_that_sum_up(scoring: str) -> None:
    weights = replayed(replace(unlikely(), scoring=scoring))[0]
    np.testing.assert_allclose(weights.sum(-1).numpy(), np.ones(4), rtol=1e-6)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_experts_that_the_live_router_would_never_choose_still_get_gradients(scoring: str) -> None:
    given = replace(unlikely(), scoring=scoring)
    assert error(gradient(given).numpy(), given.gradient()) < 1e-5


def test_the_selection_bias_gets_no_gradient() -> None:
    given = case(masked=True, biased=True, scoring="sigmoid")
    bias = tensor(given.bias)
    bias.stop_gradient = False
    replayed(given, bias=bias)[0].sum().backward()
    assert bias.grad is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scores_of_16_bits_are_computed_in_float32(dtype: str) -> None:
    given = case(norm="sum")
    rounded = tensor(given.scores).astype(dtype)
    weights = replayed(given, scores=rounded)[0]
    exact = replace(given, scores=rounded.astype("float32").numpy())
    assert weights.dtype == paddle.float32
    assert error(weights.numpy(), exact.weights()) < 1e-6


def test_gradients_return_in_the_dtype_of_the_scores() -> None:
    given = case(norm="sum")
    assert gradient(given, scores=tensor(given.scores).astype("bfloat16")).dtype == paddle.bfloat16


@pytest.mark.skipif(not ON_GPU, reason="Paddle's mixed precision has no effect without a GPU")
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_mixed_precision_changes_nothing(level: str) -> None:
    given = case(scoring="sigmoid", norm="sum", masked=True, biased=True)
    with paddle.amp.auto_cast(level=level, dtype="bfloat16"):
        weights = replayed(given)[0]
    assert equal(weights, replayed(given)[0])


def test_a_static_graph_for_any_number_of_tokens_computes_the_same() -> None:
    given = case(scoring="sigmoid", norm="sum", masked=True)

    def weights(scores: Any, recorded: Any, mask: Any) -> Any:  # a value that the host waits for breaks a full graph
        return replay_topk(scores, recorded, mask, norm="sum", scoring="sigmoid")[0]

    kinds = (([None, 64], "float32"), ([None, 8], "int64"), ([None], "bool"))
    specs = [paddle.static.InputSpec(shape, dtype) for shape, dtype in kinds]
    static = paddle.jit.to_static(weights, input_spec=specs, full_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's own, about its tracer
        traced = static(*map(tensor, (given.scores, given.ids, given.mask)))
    assert equal(traced, replayed(given)[0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_no_token_at_all_is_legal(shape: tuple[int, ...], masked: bool) -> None:
    given = case(shape=shape, masked=masked, norm="sum")
    assert tuple(gradient(given, check=True).shape) == (*shape, 64)


@pytest.mark.parametrize("dtype", ["int32", "int16", "int8", "uint8"])
def test_every_integer_dtype_means_the_same(dtype: str) -> None:
    given = case()
    weights, chosen, _ = replayed(given, ids=tensor(given.ids).astype(dtype))
    assert chosen.dtype == paddle.int64
    assert equal(weights, replayed(given)[0])


def test_paddles_uint16_is_refused_as_bfloat16() -> None:
    with pytest.raises(InvalidRecordError, match="bfloat16"):
        replayed(case(), ids=tensor(case().ids).astype("uint16"))


@pytest.mark.parametrize("wrong", [-1, 64])
def test_an_id_that_is_no_expert_is_named_if_asked_for(wrong: int) -> None:
    given = case()
    given.ids[5, 3] = wrong
    with pytest.raises(InvalidRecordError, match=f"id {wrong} is not in 0..63"):
        replayed(given, check=True)


@pytest.mark.parametrize("wrong", [-1, -64, 64])
def test_an_id_that_is_no_expert_never_gives_weights(wrong: int) -> None:
    given = case()
    given.ids[5, 3] = wrong
    with pytest.raises((IndexError, ValueError, OSError)):
        replayed(given)


def test_numpy_arrays_are_refused_with_the_way_to_tensors() -> None:
    with pytest.raises(InvalidRecordError, match=r"ids must be a paddle tensor, got ndarray.*to_paddle"):
        replayed(case(), ids=case().ids)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="do not fit"):
        replayed(case(), ids=tensor(case().ids[:5]))


# --- tensors of a batch -------------------------------------------------------------------------------------------

GONE = NotFoundError("nobody put it")


def batch(experts: int = 256) -> RoutingBatch:
    """Returns ids of the highest and lowest experts, of two lengths, and a missing sample."""
    schema = RoutingSchema(experts, 2, [0, 1])
    low = record("a", 3, schema=schema)
    high = replace(record("b", 2, schema=schema), routing=(experts - 1 - ids(2, 2, schema)).astype(schema.dtype))
    return RoutingBatch.build([low, high, GONE], ["a", "b", "c"])


@pytest.mark.parametrize("experts", [8, 256, 257, 65_536, 65_537, 2**31])
@pytest.mark.parametrize("dtype", ["int64", "int32", paddle.int64, paddle.int32, np.int32])
def test_every_expert_arrives_as_it_was(experts: int, dtype: Any) -> None:
    made = batch(experts)
    np.testing.assert_array_equal(made.to_paddle(dtype).routing.numpy(), made.routing)


def test_the_highest_possible_expert_arrives_in_int64() -> None:
    made = batch(2**32)
    np.testing.assert_array_equal(made.to_paddle().routing.numpy(), made.routing)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_dtype_is_the_one_asked_for(dtype: str) -> None:
    assert batch(257).to_paddle(dtype).routing.dtype == getattr(paddle, dtype)


def test_mask_and_lengths_come_along() -> None:
    _, mask, lengths = batch().to_paddle()
    assert (mask.tolist(), lengths.tolist()) == ([[True] * 3, [True, True, False], [False] * 3], [3, 2, 0])


@pytest.mark.parametrize("dtype", [paddle.int16, "uint16", paddle.bfloat16, paddle.float32, paddle.uint8])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(InvalidRecordError, match="int32 or int64"):
        batch().to_paddle(dtype)


def test_minus_one_marks_padding_if_asked_for() -> None:
    routing, mask, _ = batch().to_paddle(fill=-1)
    np.testing.assert_array_equal((routing.numpy() == -1).all(-1), np.repeat(~mask.numpy()[:, None], 2, axis=1))


@pytest.mark.parametrize("fill", [2**31, 1.5, "x"])
def test_a_mark_that_the_dtype_does_not_hold_is_refused(fill: Any) -> None:
    with pytest.raises(InvalidRecordError, match="is no value of int32"):
        batch().to_paddle("int32", fill=fill)


def test_tensors_are_copies_of_the_batch() -> None:
    made = batch()
    for each in made.to_paddle():
        each.zero_()
    assert (made.mask.any(), made.lengths.tolist(), made.routing.any()) == (True, [3, 2, 0], True)


@pytest.mark.parametrize("place", ["cpu", paddle.CPUPlace()])
def test_tensors_go_to_the_place_asked_for(place: Any) -> None:
    assert all(each.place.is_cpu_place() for each in batch().to_paddle(place=place))


@pytest.mark.skipif(paddle.is_compiled_with_cuda(), reason="this build of Paddle has these places")
@pytest.mark.parametrize("place", ["gpu:0", "gpu_pinned", "nowhere"])
@pytest.mark.parametrize("form", [batch, lambda: batch().packed()], ids=["padded", "packed"])
def test_a_place_that_paddle_does_not_have_is_refused_in_a_sentence(form: Any, place: str) -> None:
    with pytest.raises(UnsupportedError, match=f"Paddle does not make a tensor at .*{place}"):
        form().to_paddle(place=place)


@pytest.mark.skipif(not ON_GPU, reason="Paddle pins memory for a GPU, and none is here")
def test_pinned_memory_is_pinned() -> None:
    made = batch(257).to_paddle(place=paddle.CUDAPinnedPlace())
    assert all(each.place.is_cuda_pinned_place() for each in made)


def test_a_packed_batch_arrives_whole() -> None:
    packed = batch(257).packed()
    routing, mask, cu_seqlens = packed.to_paddle("int32")
    np.testing.assert_array_equal(routing.numpy(), packed.routing)
    assert (mask.tolist(), cu_seqlens.tolist(), cu_seqlens.dtype) == ([True] * 5, [0, 3, 5, 5], paddle.int32)


def test_eight_bits_are_taken_over_by_dlpack_without_a_copy() -> None:
    made = batch()
    paddle.utils.dlpack.from_dlpack(made)[0, 0, 0, 0] = 77
    assert made.routing[0, 0, 0, 0] == 77


def test_sixteen_bits_are_not_taken_over_by_dlpack() -> None:
    with pytest.raises(BufferError, match="16-bit"):
        paddle.utils.dlpack.from_dlpack(batch(257))


def test_a_batch_is_replayed_layer_by_layer() -> None:
    made = batch()
    routing, mask, _ = made.to_paddle()
    _, chosen = replay_topk(paddle.randn([3, 3, 256]), routing[:, made.layer_ids.index(1)], mask)
    np.testing.assert_array_equal(chosen[0].numpy(), made.layer(1)[0])
