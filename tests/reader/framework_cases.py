"""What Paddle and torch must do alike: replay that equals its definition, and tensors of a batch.

A test file of a framework subclasses both classes of cases and says in a ``Framework`` how the framework is called.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.errors import InvalidRecordError, NotFoundError
from fastdeploy_routing_plugins.reader.batch import RoutingBatch

from .batches import ids, record
from .replay_reference import CASES, Case, case, error, unlikely

GONE = NotFoundError("nobody put it")


def batch(experts: int = 256) -> RoutingBatch:
    """Returns ids of the highest and lowest experts, of two lengths, and a missing sample."""
    schema = RoutingSchema(experts, 2, [0, 1])
    low = record("a", 3, schema=schema)
    high = msgspec.structs.replace(
        record("b", 2, schema=schema), routing=(experts - 1 - ids(2, 2, schema)).astype(schema.dtype)
    )
    return RoutingBatch.build([low, high, GONE], ["a", "b", "c"])


class Framework:
    """How a framework is called.

    Attributes:
        name: The module's name.
        replay_topk: Its own.
        no_ids: What is raised for ids that are no experts, where nobody asked for a check.
    """

    name: str
    replay_topk: Any
    no_ids: tuple[type[Exception], ...]

    def tensor(self, array: np.ndarray, dtype: str | None = None) -> Any:
        """Returns a tensor, of the dtype of this name or of the array's."""
        raise NotImplementedError

    def numpy(self, tensor: Any) -> np.ndarray:
        """Returns a tensor's values."""
        raise NotImplementedError

    def differentiable(self, tensor: Any) -> Any:
        """Returns the tensor after asking for its gradient."""
        raise NotImplementedError

    def tensors(self, made: Any, *arguments: Any, **options: Any) -> Any:
        """Returns ``to_paddle(...)`` or ``to_torch(...)`` of a batch."""
        return getattr(made, f"to_{self.name}")(*arguments, **options)

    def from_dlpack(self, made: RoutingBatch) -> Any:
        """Returns a tensor over the batch's memory."""
        raise NotImplementedError

    # --- what the cases need ------------------------------------------------------------------------------------

    def dtype_of(self, tensor: Any) -> str:
        """Returns the name of a tensor's dtype."""
        return str(tensor.dtype).rpartition(".")[2]

    def given(self, array: np.ndarray | None) -> Any:
        """Returns a tensor, or None for None."""
        return None if array is None else self.tensor(array)

    def replayed(self, given: Case, **other: Any) -> tuple[Any, Any, Any]:
        """Returns weights, experts and scores, which have a gradient once the weights had theirs."""
        scores = other.pop("scores", None)
        scores = self.differentiable(self.tensor(given.scores) if scores is None else scores)
        arguments = {"mask": given.mask, "bias": given.bias, "live_ids": given.live_ids}
        options = {**{name: self.given(value) for name, value in arguments.items()}, **given.options(), **other}
        weights, chosen = self.replay_topk(scores, options.pop("ids", self.given(given.ids)), **options)
        return weights, chosen, scores

    def gradient(self, given: Case, **other: Any) -> Any:
        """Returns the gradient that arrives at the scores."""
        weights, _, scores = self.replayed(given, **other)
        (weights * self.tensor(given.upstream)).sum().backward()
        return scores.grad

    def weights(self, given: Case, **other: Any) -> np.ndarray:
        """Returns the weights as an array."""
        return self.numpy(self.replayed(given, **other)[0])

    def chosen(self, given: Case, **other: Any) -> np.ndarray:
        """Returns the experts used as an array."""
        return self.numpy(self.replayed(given, **other)[1])


class ReplayCases(Framework):
    """``replay_topk``."""

    @pytest.mark.parametrize("given", CASES)
    def test_weights_equal_their_definition(self, given: Case) -> None:
        assert error(self.weights(given), given.weights()) < 1e-6

    @pytest.mark.parametrize("given", CASES)
    def test_gradients_equal_their_definition(self, given: Case) -> None:
        assert error(self.numpy(self.gradient(given)), given.gradient()) < 1e-6

    @pytest.mark.parametrize("given", CASES)
    def test_the_recorded_experts_are_used_and_the_live_ones_where_nothing_was_recorded(self, given: Case) -> None:
        np.testing.assert_array_equal(self.chosen(given), given.chosen())

    def test_float64_keeps_its_precision(self) -> None:
        given = CASES[0].values[0]

        assert error(self.weights(given, scores=self.tensor(given.scores, "float64")), given.weights()) < 1e-14

    def test_a_live_selection_that_is_given_is_used_where_nothing_was_recorded(self) -> None:
        given = case(masked=True)
        given = replace(given, live_ids=np.roll(given.ids, 1, axis=0))

        np.testing.assert_array_equal(self.chosen(given), given.chosen())

    def test_what_stands_where_nothing_was_recorded_does_not_matter(self) -> None:
        given = case(masked=True)
        marked = np.where(given.mask[..., None], given.ids, -1)

        np.testing.assert_array_equal(self.weights(given, ids=self.tensor(marked)), self.weights(given))

    @pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
    def test_experts_that_the_live_router_would_never_choose_still_get_weights_that_sum_up(self, scoring: str) -> None:
        weights = self.weights(replace(unlikely(), scoring=scoring))

        np.testing.assert_allclose(weights.sum(-1), np.ones(4), rtol=1e-6)

    @pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
    def test_experts_that_the_live_router_would_never_choose_still_get_gradients(self, scoring: str) -> None:
        given = replace(unlikely(), scoring=scoring)

        assert error(self.numpy(self.gradient(given)), given.gradient()) < 1e-5

    def test_the_selection_bias_gets_no_gradient(self) -> None:
        given = case(masked=True, biased=True, scoring="sigmoid")
        bias = self.differentiable(self.tensor(given.bias))
        self.replayed(given, bias=bias)[0].sum().backward()

        assert bias.grad is None

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_scores_of_16_bits_are_computed_in_float32(self, dtype: str) -> None:
        given = case(norm="sum")
        rounded = self.tensor(given.scores, dtype)
        weights = self.replayed(given, scores=rounded)[0]
        exact = replace(given, scores=self.numpy(rounded))

        assert (self.dtype_of(weights), error(self.numpy(weights), exact.weights()) < 1e-6) == ("float32", True)

    def test_gradients_return_in_the_dtype_of_the_scores(self) -> None:
        given = case(norm="sum")

        assert self.dtype_of(self.gradient(given, scores=self.tensor(given.scores, "bfloat16"))) == "bfloat16"

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("shape", [(0,), (3, 0)])
    def test_no_token_at_all_is_legal(self, shape: tuple[int, ...], masked: bool) -> None:
        given = case(shape=shape, masked=masked, norm="sum")

        assert tuple(self.gradient(given, check=True).shape) == (*shape, 64)

    @pytest.mark.parametrize("dtype", ["int32", "int16", "uint8"])
    def test_every_integer_dtype_means_the_same(self, dtype: str) -> None:
        given = case()
        weights, chosen, _ = self.replayed(given, ids=self.tensor(given.ids, dtype))

        np.testing.assert_array_equal(self.numpy(weights), self.weights(given))
        assert self.dtype_of(chosen) == "int64"

    @pytest.mark.parametrize("wrong", [-1, 64])
    def test_an_id_that_is_no_expert_is_named_if_asked_for(self, wrong: int) -> None:
        given = case()
        given.ids[5, 3] = wrong

        with pytest.raises(InvalidRecordError, match=f"id {wrong} is not in 0..63"):
            self.replayed(given, check=True)

    @pytest.mark.parametrize("wrong", [-1, -64, 64])
    def test_an_id_that_is_no_expert_never_gives_weights(self, wrong: int) -> None:
        given = case()
        given.ids[5, 3] = wrong

        with pytest.raises(self.no_ids):
            self.replayed(given)

    def test_numpy_arrays_are_refused_with_the_way_to_tensors(self) -> None:
        with pytest.raises(
            InvalidRecordError, match=rf"ids must be a {self.name} tensor, got ndarray.*to_{self.name}"
        ):
            self.replayed(case(), ids=case().ids)

    def test_shapes_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(InvalidRecordError, match="do not fit"):
            self.replayed(case(), ids=self.tensor(case().ids[:5]))

    def test_every_argument_is_explained(self) -> None:
        words = self.replay_topk.__doc__ or ""
        parameters = inspect.signature(self.replay_topk).parameters

        assert [name for name in parameters if f"\n    {name}: " not in words] == []

    def test_a_batch_is_replayed_layer_by_layer(self) -> None:
        made = batch()
        routing, mask, _ = self.tensors(made)
        scores = self.tensor(np.random.default_rng(0).standard_normal((3, 3, 256), np.float32))
        _, chosen = self.replay_topk(scores, routing[:, made.layer_ids.index(1)], mask)

        np.testing.assert_array_equal(self.numpy(chosen)[0], made.layer(1)[0])


class TensorCases(Framework):
    """Tensors of a batch."""

    @pytest.mark.parametrize("experts", [8, 256, 257, 65_536, 65_537, 2**31])
    @pytest.mark.parametrize("dtype", ["int64", "int32", np.int32])
    def test_every_expert_arrives_as_it_was(self, experts: int, dtype: Any) -> None:
        made = batch(experts)

        np.testing.assert_array_equal(self.numpy(self.tensors(made, dtype).routing), made.routing)

    def test_the_highest_possible_expert_arrives_in_int64(self) -> None:
        made = batch(2**32)

        np.testing.assert_array_equal(self.numpy(self.tensors(made).routing), made.routing)

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_the_dtype_is_the_one_asked_for(self, dtype: str) -> None:
        assert self.dtype_of(self.tensors(batch(257), dtype).routing) == dtype

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_the_frameworks_own_dtype_may_be_asked_for(self, dtype: str) -> None:
        own = self.tensor(np.zeros(1, dtype)).dtype

        assert self.tensors(batch(257), own).routing.dtype == own

    def test_mask_and_lengths_come_along(self) -> None:
        _, mask, lengths = self.tensors(batch())

        assert (mask.tolist(), lengths.tolist()) == ([[True] * 3, [True, True, False], [False] * 3], [3, 2, 0])

    @pytest.mark.parametrize("dtype", ["int16", "uint16", "bfloat16", "float32", "uint8"])
    def test_other_dtypes_are_refused(self, dtype: str) -> None:
        with pytest.raises(InvalidRecordError, match="int32 or int64"):
            self.tensors(batch(), dtype)

    @pytest.mark.parametrize("dtype", ["int16", "bfloat16", "float32", "uint8"])
    def test_other_dtypes_of_the_framework_are_refused(self, dtype: str) -> None:
        own = self.tensor(np.zeros(1, np.float32), dtype).dtype

        with pytest.raises(InvalidRecordError, match="int32 or int64"):
            self.tensors(batch(), own)

    def test_minus_one_marks_padding_if_asked_for(self) -> None:
        routing, mask, _ = self.tensors(batch(), fill=-1)

        np.testing.assert_array_equal(
            (self.numpy(routing) == -1).all(-1), np.repeat(~self.numpy(mask)[:, None], 2, axis=1)
        )

    @pytest.mark.parametrize("fill", [2**31, 1.5, "x"])
    def test_a_mark_that_the_dtype_does_not_hold_is_refused(self, fill: Any) -> None:
        with pytest.raises(InvalidRecordError, match="is no value of int32"):
            self.tensors(batch(), "int32", fill=fill)

    def test_tensors_are_copies_of_the_batch(self) -> None:
        made = batch()
        for each in self.tensors(made):
            each.zero_()

        assert (made.mask.any(), made.lengths.tolist(), made.routing.any()) == (True, [3, 2, 0], True)

    def test_a_packed_batch_arrives_whole(self) -> None:
        packed = batch(257).packed()
        routing, mask, cu_seqlens = self.tensors(packed, "int32")

        np.testing.assert_array_equal(self.numpy(routing), packed.routing)
        assert (mask.tolist(), cu_seqlens.tolist(), self.dtype_of(cu_seqlens)) == ([True] * 5, [0, 3, 5, 5], "int32")

    def test_eight_bits_are_taken_over_by_dlpack_without_a_copy(self) -> None:
        made = batch()
        self.from_dlpack(made)[0, 0, 0, 0] = 77

        assert made.routing[0, 0, 0, 0] == 77

    def test_sixteen_bits_are_not_taken_over_by_dlpack(self) -> None:
        with pytest.raises(BufferError, match="16-bit"):
            self.from_dlpack(batch(257))
