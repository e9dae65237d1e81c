"""torch: tensors of a batch, and replay that equals its definition in values and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fastdeploy_routing_plugins import RoutingSchema  # noqa: E402
from fastdeploy_routing_plugins.errors import InvalidRecordError, NotFoundError, UnsupportedError  # noqa: E402
from fastdeploy_routing_plugins.reader.batch import RoutingBatch  # noqa: E402
from fastdeploy_routing_plugins.reader.torch import replay_topk  # noqa: E402

from .batches import ids, record  # noqa: E402
from .replay_reference import CASES, Case, case, error, unlikely  # noqa: E402


def tensor(array: np.ndarray | None) -> Any:
    return None if array is None else torch.tensor(array)


def replayed(given: Case, **other: Any) -> tuple[Any, Any, Any]:
    """Returns weights, experts and scores, which have a gradient once the weights had theirs."""
    scores = other.pop("scores", None)
    scores = (tensor(given.scores) if scores is None else scores).requires_grad_()
    arguments = {"mask": given.mask, "bias": given.bias, "live_ids": given.live_ids}
    options = {**{name: tensor(value) for name, value in arguments.items()}, **given.options(), **other}
    weights, chosen = replay_topk(scores, options.pop("ids", tensor(given.ids)), **options)
    return weights, chosen, scores


def gradient(given: Case, **other: Any) -> Any:
    weights, _, scores = replayed(given, **other)
    (weights * tensor(given.upstream)).sum().backward()
    return scores.grad


@pytest.mark.parametrize("given", CASES)
def test_weights_equal_their_definition(given: Case) -> None:
    assert error(replayed(given)[0].detach(), given.weights()) < 1e-6


@pytest.mark.parametrize("given", CASES)
def test_gradients_equal_their_definition(given: Case) -> None:
    assert error(gradient(given), given.gradient()) < 1e-6


@pytest.mark.parametrize("given", CASES)
def test_the_recorded_experts_are_used_and_the_live_ones_where_nothing_was_recorded(given: Case) -> None:
    np.testing.assert_array_equal(replayed(given)[1], given.chosen())


def test_float64_keeps_its_precision() -> None:
    given = CASES[0].values[0]
    assert error(replayed(given, scores=tensor(given.scores).double())[0].detach(), given.weights()) < 1e-14


def test_a_live_selection_that_is_given_is_used_where_nothing_was_recorded() -> None:
    given = case(masked=True)
    given = replace(given, live_ids=np.roll(given.ids, 1, axis=0))
    np.testing.assert_array_equal(replayed(given)[1], given.chosen())


def test_what_stands_where_nothing_was_recorded_does_not_matter() -> None:
    given = case(masked=True)
    marked = np.where(given.mask[..., None], given.ids, -1)
    assert torch.equal(replayed(given, ids=tensor(marked))[0], replayed(given)[0])


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_experts_that_the_live_router_would_never_choose_still_get_weights_that_sum_up(scoring: str) -> None:
    weights = replayed(replace(unlikely(), scoring=scoring))[0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_experts_that_the_live_router_would_never_choose_still_get_gradients(scoring: str) -> None:
    given = replace(unlikely(), scoring=scoring)
    assert error(gradient(given), given.gradient()) < 1e-5


def test_the_selection_bias_gets_no_gradient() -> None:
    given = case(masked=True, biased=True, scoring="sigmoid")
    bias = tensor(given.bias).requires_grad_()
    replayed(given, bias=bias)[0].sum().backward()
    assert bias.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_16_bits_are_computed_in_float32(dtype: Any) -> None:
    given = case(norm="sum")
    rounded = tensor(given.scores).to(dtype)
    weights = replayed(given, scores=rounded)[0]
    exact = replace(given, scores=rounded.detach().float().numpy())
    assert weights.dtype == torch.float32
    assert error(weights.detach(), exact.weights()) < 1e-6


def test_gradients_return_in_the_dtype_of_the_scores() -> None:
    given = case(norm="sum")
    assert gradient(given, scores=tensor(given.scores).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("given", CASES[:6])
def test_autocast_changes_nothing(given: Case) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = replayed(given)[0]
    assert torch.equal(weights, replayed(given)[0])


@pytest.mark.parametrize("given", [CASES[0], CASES[9]])
def test_one_graph_without_a_break_computes_the_same(given: Case) -> None:
    torch._dynamo.reset()  # a value that the host waits for breaks a graph
    compiled = torch.compile(replay_topk, fullgraph=True, backend="eager")
    arguments = [tensor(each) for each in (given.scores, given.ids, given.mask)]
    weights, _ = compiled(*arguments, bias=tensor(given.bias), **given.options())
    assert torch.equal(weights, replayed(given)[0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_no_token_at_all_is_legal(shape: tuple[int, ...], masked: bool) -> None:
    given = case(shape=shape, masked=masked, norm="sum")
    assert gradient(given, check=True).shape == (*shape, 64)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.uint16, torch.uint32])
def test_every_integer_dtype_means_the_same(dtype: Any) -> None:
    given = case()
    weights, chosen, _ = replayed(given, ids=tensor(given.ids).to(dtype))
    assert chosen.dtype == torch.int64
    assert torch.equal(weights, replayed(given)[0])


@pytest.mark.parametrize("wrong", [-1, 64])
def test_an_id_that_is_no_expert_is_named_if_asked_for(wrong: int) -> None:
    given = case()
    given.ids[5, 3] = wrong
    with pytest.raises(InvalidRecordError, match=f"id {wrong} is not in 0..63"):
        replayed(given, check=True)


@pytest.mark.parametrize("wrong", [-1, 64])
def test_an_id_that_is_no_expert_never_gives_weights(wrong: int) -> None:
    given = case()
    given.ids[5, 3] = wrong
    with pytest.raises((RuntimeError, IndexError)):
        replayed(given)


def test_numpy_arrays_are_refused_with_the_way_to_tensors() -> None:
    with pytest.raises(InvalidRecordError, match=r"ids must be a torch tensor, got ndarray.*to_torch"):
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
@pytest.mark.parametrize("dtype", ["int64", "int32", torch.int64, torch.int32, np.int32])
def test_every_expert_arrives_as_it_was(experts: int, dtype: Any) -> None:
    made = batch(experts)
    np.testing.assert_array_equal(made.to_torch(dtype).routing, made.routing)


def test_the_highest_possible_expert_arrives_in_int64() -> None:
    made = batch(2**32)
    np.testing.assert_array_equal(made.to_torch().routing, made.routing)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_dtype_is_the_one_asked_for(dtype: str) -> None:
    assert batch().to_torch(dtype).routing.dtype == getattr(torch, dtype)


def test_mask_and_lengths_come_along() -> None:
    _, mask, lengths = batch().to_torch()
    assert (mask.tolist(), lengths.tolist()) == ([[True] * 3, [True, True, False], [False] * 3], [3, 2, 0])


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.float32, torch.uint8])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(InvalidRecordError, match="int32 or int64"):
        batch().to_torch(dtype)


def test_minus_one_marks_padding_if_asked_for() -> None:
    routing, mask, _ = batch().to_torch(fill=-1)
    assert ((routing == -1).all(-1) == ~mask[:, None]).all()


def test_tensors_are_copies_of_the_batch() -> None:
    made = batch()
    for each in made.to_torch():
        each.zero_()
    assert (made.mask.any(), made.lengths.tolist(), made.routing.any()) == (True, [3, 2, 0], True)


def test_tensors_go_to_the_device_asked_for() -> None:
    assert {each.device.type for each in batch().to_torch(device="meta")} == {"meta"}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator that memory is pinned for")
@pytest.mark.parametrize("form", [batch, lambda: batch().packed()], ids=["padded", "packed"])
def test_pinned_memory_without_an_accelerator_is_refused_in_a_sentence(form: Any) -> None:
    with pytest.raises(UnsupportedError, match="torch cannot pin memory here"):
        form().to_torch(pin=True)


@pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="memory is pinned for an accelerator, and none is here"
)
@pytest.mark.parametrize("experts", [256, 257])
def test_pinned_memory_is_pinned_and_travels(experts: int) -> None:
    made = batch(experts)
    assert all(each.is_pinned() for each in made.to_torch(pin=True))
    there = made.to_torch(device=torch.accelerator.current_accelerator(), pin=True)
    np.testing.assert_array_equal(there.routing.cpu(), made.routing)


def test_a_read_only_batch_becomes_tensors_without_a_warning() -> None:
    made = batch()
    made.routing.flags.writeable = False
    np.testing.assert_array_equal(made.to_torch().routing, made.routing)


def test_a_packed_batch_arrives_whole() -> None:
    packed = batch(257).packed()
    routing, mask, cu_seqlens = packed.to_torch("int32")
    np.testing.assert_array_equal(routing, packed.routing)
    assert (mask.tolist(), cu_seqlens.tolist(), cu_seqlens.dtype) == ([True] * 5, [0, 3, 5, 5], torch.int32)


def test_eight_bits_are_taken_over_by_dlpack_without_a_copy() -> None:
    made = batch()
    torch.from_dlpack(made)[0, 0, 0, 0] = 77
    assert made.routing[0, 0, 0, 0] == 77


def test_a_batch_is_replayed_layer_by_layer() -> None:
    made = batch()
    routing, mask, _ = made.to_torch()
    scores = torch.randn(3, 3, 256)
    _, chosen = replay_topk(scores, routing[:, made.layer_ids.index(1)], mask)
    np.testing.assert_array_equal(chosen[0], made.layer(1)[0])
