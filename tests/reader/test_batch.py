"""A batch: every recorded row where it belongs, the rest marked, and padding that harms nobody."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingKey, RoutingSchema, WeightSpan, open_store
from fastdeploy_routing_plugins.errors import (
    AbortedError,
    AbsentError,
    InvalidRecordError,
    MissingDependencyError,
    NotFoundError,
    SchemaMismatchError,
)
from fastdeploy_routing_plugins.reader.alignment import align
from fastdeploy_routing_plugins.reader.batch import RoutingBatch
from fastdeploy_routing_plugins.reader.share import RoutingShare, nothing
from fastdeploy_routing_plugins.reader.tensors import integer_name

from .batches import SCHEMA, ids, record

if TYPE_CHECKING:
    from pathlib import Path

NAMES = "abcdefgh"
GONE = NotFoundError("nobody put it", hint="look at the engine")

samples = st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=8)


def items(lengths: list[int | None]) -> list[Any]:
    pairs = zip(NAMES, lengths, strict=False)
    return [GONE if length is None else record(name, length) for name, length in pairs]


def batch(lengths: list[int | None], **how: Any) -> RoutingBatch:
    return RoutingBatch.build(items(lengths), NAMES[: len(lengths)], schema=SCHEMA, **how)


@given(samples, st.sampled_from(["right", "left"]), st.none() | st.integers(12, 20))
def test_every_sample_comes_back_as_it_was_recorded(lengths: list[int | None], side: Any, pad_to: int | None) -> None:
    made = batch(lengths, side=side, pad_to=pad_to)
    got = [made.sample(index).tolist() for index in range(len(lengths))]
    assert got == [record(name, length or 0).routing.tolist() for name, length in zip(NAMES, lengths, strict=False)]


@given(samples, st.sampled_from(["right", "left"]), st.none() | st.integers(12, 20))
def test_the_mask_is_true_exactly_where_rows_were_recorded(
    lengths: list[int | None], side: Any, pad_to: int | None
) -> None:
    width = pad_to or max([length or 0 for length in lengths])
    rows = [[True] * (n or 0) + [False] * (width - (n or 0)) for n in lengths]
    assert batch(lengths, side=side, pad_to=pad_to).mask.tolist() == [r[::-1] if side == "left" else r for r in rows]


@given(samples, st.sampled_from(["right", "left"]), st.none() | st.integers(12, 40))
def test_padding_is_balanced_over_the_batch_and_distinct_in_each_row(
    lengths: list[int | None], side: Any, pad_to: int | None
) -> None:
    made = batch(lengths, side=side, pad_to=pad_to)
    padding = made.routing.transpose(0, 2, 1, 3)[~made.mask]
    times = [np.bincount(padding[:, layer].ravel(), minlength=16) for layer in range(4)]
    assert all(each.max() - each.min() <= 1 for each in times)
    assert all(len(set(row)) == 3 for row in padding.reshape(-1, 3).tolist())


@given(
    st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=8),
    st.sampled_from(["n", "n-1", "shifted"]),
    st.none() | st.integers(-10, 10),
    st.none() | st.integers(-10, 10),
    st.sampled_from(["right", "left"]),
)
@example([None, 1], "shifted", None, -1, "left")
def test_each_sample_of_a_batch_is_aligned_as_it_is_alone(
    counts: list[int | None], rule: Any, first: int | None, last: int | None, side: Any
) -> None:
    keep = slice(first, last)
    rows = [None if count is None else count if rule == "n" else count - 1 for count in counts]
    made = batch(rows, num_tokens=[count or 4 for count in counts], rows=rule, tokens=keep, side=side)
    alone = [align(item, count, rule, tokens=keep) for item, count in zip(items(rows), counts, strict=True) if count]
    index = [i for i, count in enumerate(counts) if count]
    masks = [made.mask[i, made.columns(i)].tolist() for i in index]
    assert masks == [each.mask.tolist() for each in alone]
    got = [made.sample(i)[:, made.mask[i, made.columns(i)]].tolist() for i in index]
    assert got == [each.routing[:, each.mask].tolist() for each in alone]


@given(samples, st.sampled_from(["right", "left"]))
def test_packing_puts_the_samples_behind_one_another(lengths: list[int | None], side: Any) -> None:
    packed = batch(lengths, side=side, pad_to=15).packed()
    parts = [packed.routing[a:b] for a, b in zip(packed.cu_seqlens, packed.cu_seqlens[1:], strict=False)]
    wanted = [record(name, n or 0).routing.transpose(1, 0, 2) for name, n in zip(NAMES, lengths, strict=False)]
    assert [part.tolist() for part in parts] == [each.tolist() for each in wanted]


def test_packing_keeps_positions_without_a_row() -> None:
    packed = batch([4, None], num_tokens=[5, 2], rows="n-1").packed()
    assert packed.mask.tolist() == [True] * 4 + [False] * 3


def test_packed_lengths_are_what_kernels_take() -> None:
    packed = batch([4, 0, 2]).packed()
    assert (packed.cu_seqlens.dtype, packed.cu_seqlens.tolist(), packed.max_seqlen) == ("int32", [0, 4, 4, 6], 4)


def test_packing_nothing_gives_nothing() -> None:
    packed = RoutingBatch.build([], schema=SCHEMA).packed()
    assert (packed.routing.shape, packed.cu_seqlens.tolist(), packed.max_seqlen) == ((0, 4, 3), [0], 0)


def test_rows_come_from_a_real_store(tmp_path: Path) -> None:
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(tmp_path / "store")}}
    with open_store(config, schema=SCHEMA) as store:
        for name, tokens in (("x", 7), ("y", 3)):
            store.put(name, ids(4, tokens))
        made = RoutingBatch.build([store.get("x"), store.get("y", layers=(0, 4))])
    np.testing.assert_array_equal(made.sample(0), ids(4, 7))


def test_a_missing_sample_is_told_by_its_index() -> None:
    assert batch([3, None, 2]).missing == {1: GONE}


def test_a_missing_sample_has_the_positions_that_the_trainer_has() -> None:
    made = batch([3, None], num_tokens=[4, 9], rows="n-1", tokens=slice(-6, None))
    assert (made.lengths.tolist(), made.starts.tolist()) == ([4, 6], [0, 3])


def test_attempts_and_versions_stand_by_their_samples() -> None:
    spans = (WeightSpan(0, 2, 7),)
    made = RoutingBatch.build([record("a", 2, attempt=5, weight_versions=spans), GONE], ["a", "b"])
    assert (made.attempts, made.weight_versions) == ((5, -1), (spans, ()))


def test_a_batch_of_missing_samples_has_the_schemas_shape() -> None:
    assert batch([None, None], pad_to=5).routing.shape == (2, 4, 5, 3)


def test_a_batch_of_missing_samples_has_the_layers_that_are_stated() -> None:
    assert RoutingBatch.build([GONE], ["a"], schema=SCHEMA, layer_ids=[3, 5]).layer_ids == (3, 5)


def test_a_batch_of_missing_samples_needs_a_schema() -> None:
    with pytest.raises(InvalidRecordError, match="needs schema="):
        RoutingBatch.build([GONE], ["a"])


def test_an_empty_batch_is_legal() -> None:
    assert RoutingBatch.build([], schema=SCHEMA).routing.shape == (0, 4, 0, 3)


def test_errors_need_keys_beside_them() -> None:
    with pytest.raises(InvalidRecordError, match="keys are needed"):
        RoutingBatch.build([record(), GONE])


def test_records_need_no_keys() -> None:
    assert RoutingBatch.build([record("x"), record("y")]).keys == (RoutingKey("x"), RoutingKey("y"))


def test_a_record_in_the_place_of_another_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="'b' stands where 'a'"):
        RoutingBatch.build([record("b"), record("a")], ["a", "b"])


def test_keys_are_counted() -> None:
    with pytest.raises(InvalidRecordError, match="1 keys were given for 2 items"):
        RoutingBatch.build([record("a"), record("b")], ["a"])


@pytest.mark.parametrize("item", [None, ids(4, 3), ValueError("x"), InvalidRecordError("x")])
def test_what_is_neither_record_nor_store_error_is_refused(item: Any) -> None:
    with pytest.raises(InvalidRecordError, match="records and store errors"):
        RoutingBatch.build([item], ["a"], schema=SCHEMA)


def test_records_of_two_models_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="MoE layers"):
        RoutingBatch.build([record("a"), record("b", schema=RoutingSchema(16, 3, [2, 3, 5, 7]))])


def test_records_of_another_model_than_stated_are_refused() -> None:
    with pytest.raises(SchemaMismatchError):
        RoutingBatch.build([record("a")], schema=RoutingSchema(16, 3, range(4)))


def test_records_of_two_stages_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match=r"layers \(5, 6\), not \(2, 3\)"):
        RoutingBatch.build([record("a", layers=(0, 2)), record("b", layers=(2, 4))])


def test_records_of_other_layers_than_stated_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match=r"not \(5, 6\)"):
        RoutingBatch.build([record("a", layers=(0, 2))], layer_ids=[5, 6])


def test_a_layer_that_the_model_does_not_record_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="layer 4 is not recorded"):
        RoutingBatch.build([GONE], ["a"], schema=SCHEMA, layer_ids=[4])


def test_layers_are_addressed_by_the_models_own_index() -> None:
    made = RoutingBatch.build([record("a", layers=(1, 3))])
    np.testing.assert_array_equal(made.layer(5)[0], record("a", layers=(1, 3)).routing[1])


def test_a_layer_that_is_not_in_the_batch_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="layer 6 is not in this batch"):
        RoutingBatch.build([record("a", layers=(1, 3))]).layer(6)


def test_a_count_that_does_not_fit_names_the_sample() -> None:
    with pytest.raises(InvalidRecordError, match="'b': 4 rows were recorded for 6 tokens"):
        batch([3, 4], num_tokens=[4, 6], rows="n-1")


@pytest.mark.parametrize("how", [{"num_tokens": [3]}, {"num_tokens": [3, 3], "tokens": [slice(None)]}])
def test_counts_and_cuts_are_one_for_each_sample(how: Any) -> None:
    with pytest.raises(InvalidRecordError, match="1 entries for 2 items"):
        batch([3, 3], **how)


@pytest.mark.parametrize("how", [{"rows": "n-1"}, {"rows": "shifted"}, {"tokens": slice(2)}])
def test_alignment_needs_the_trainers_counts(how: Any) -> None:
    with pytest.raises(InvalidRecordError, match="need num_tokens"):
        batch([3], **how)


def test_each_sample_can_be_cut_its_own_way() -> None:
    made = batch([5, 5], num_tokens=[5, 5], tokens=[slice(1, 3), slice(-1, None)])
    assert (made.lengths.tolist(), made.starts.tolist()) == ([2, 1], [1, 4])


def test_a_range_that_was_read_begins_at_its_own_token() -> None:
    made = RoutingBatch.build([record("a", 10, start=50)])
    assert (made.lengths.tolist(), made.starts.tolist()) == ([10], [50])


@pytest.mark.parametrize("width", [4, -1, 5.5, "9"])
def test_no_sample_is_ever_clipped(width: Any) -> None:
    with pytest.raises(InvalidRecordError, match="does not hold the longest sample, which has 5 positions"):
        batch([5, 3], pad_to=width)


def test_an_unknown_side_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="side"):
        batch([3], side="middle")


def share(padding: int) -> RoutingShare:
    spans = (WeightSpan(2, 12, 1),)
    return RoutingShare(ids(2, 5), RoutingKey("a"), SCHEMA, (3, 5), ((2, 4), (9, 12)), 5 + padding, 20, 6, spans)


def test_a_ranks_share_keeps_its_order_and_its_padding() -> None:
    made = RoutingBatch.build([share(2), GONE], ["a", "b"], schema=SCHEMA)
    assert (made.mask[0].tolist(), made.lengths.tolist()) == ([True] * 5 + [False] * 2, [7, 0])


def test_a_ranks_share_has_the_models_schema_and_the_ranks_layers() -> None:
    made = RoutingBatch.build([share(0)])
    assert (made.schema, made.layer_ids, made.starts.tolist()) == (SCHEMA, (3, 5), [2])


def test_a_ranks_share_keeps_its_attempt_and_versions() -> None:
    made = RoutingBatch.build([share(0)])
    assert (made.attempts, made.weight_versions) == ((6,), ((WeightSpan(2, 12, 1),),))


def test_a_rank_without_layers_has_positions_all_the_same() -> None:
    made = RoutingBatch.build([nothing(RoutingKey("a"), SCHEMA, 7)])
    assert (made.routing.shape, made.lengths.tolist(), made.mask.any()) == ((1, 0, 7, 3), [7], False)


def test_a_ranks_share_takes_no_other_count() -> None:
    with pytest.raises(InvalidRecordError, match="'a': a rank's share has its own count"):
        RoutingBatch.build([share(0)], num_tokens=[5])


# --- padding and dtypes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experts", "dtype"), [(255, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")]
)
def test_a_batch_has_the_stored_dtype_whatever_is_in_it(experts: int, dtype: str) -> None:
    schema = RoutingSchema(experts, 3, [0])
    assert RoutingBatch.build([record("a", 3, schema=schema), GONE], ["a", "b"]).routing.dtype == dtype


def test_padding_can_be_asked_for() -> None:
    made = batch([2, 0], fill=15)
    assert made.routing[1].tolist() == [[[15] * 3] * 2] * 4


@pytest.mark.parametrize(("fill", "experts"), [(-1, 255), (-1, 256), (256, 256), (65_536, 257), (1.0, 8), ("0", 8)])
def test_padding_that_the_dtype_does_not_hold_is_refused(fill: Any, experts: int) -> None:
    with pytest.raises(InvalidRecordError, match="is no value of"):
        RoutingBatch.build([GONE], ["a"], schema=RoutingSchema(experts, 3, [0]), pad_to=1, fill=fill)


def test_a_thousand_padded_positions_of_eight_of_eight_experts_are_balanced() -> None:
    made = RoutingBatch.build([GONE] * 10, [str(i) for i in range(10)], schema=RoutingSchema(8, 8, [0]), pad_to=1000)
    assert np.bincount(made.routing.ravel()).tolist() == [10_000] * 8


@pytest.mark.parametrize("dtype", ["int16", "uint16", np.uint16, np.int16, "paddle.bfloat16", "torch.float16"])
def test_sixteen_bits_are_refused_with_the_reason(dtype: Any) -> None:
    with pytest.raises(InvalidRecordError, match="Paddle's uint16 is bfloat16"):
        integer_name(dtype, 8)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int8", np.float64, None, "long", bool])
def test_what_frameworks_do_not_index_with_is_refused(dtype: Any) -> None:
    with pytest.raises(InvalidRecordError, match="int32 or int64"):
        integer_name(dtype, 8)


@pytest.mark.parametrize("dtype", ["int32", np.int32, np.dtype("int32"), "torch.int32"])
def test_int32_has_many_names(dtype: Any) -> None:
    assert integer_name(dtype, 8) == "int32"


@pytest.mark.parametrize(("experts", "holds"), [(2**31, True), (2**31 + 1, False)])
def test_int32_is_only_granted_if_it_holds_every_expert(experts: int, holds: bool) -> None:
    try:
        name = integer_name("int32", experts)
    except InvalidRecordError as err:
        name = str(err)
    assert (name == "int32") is holds


# --- what is missing ----------------------------------------------------------------------------------------------


def test_the_share_of_missing_samples_is_told() -> None:
    assert batch([1, None, 2, None]).missing_fraction == 0.5


def test_nothing_is_missing_from_an_empty_batch() -> None:
    assert RoutingBatch.build([], schema=SCHEMA).missing_fraction == 0.0


def test_any_missing_sample_is_too_much_unless_stated() -> None:
    with pytest.raises(AbsentError, match=r"2 of 4 samples are missing, allowed is 0.00%; first 'b': nobody put it"):
        batch([1, None, 2, None]).check_missing()


def test_missing_samples_within_the_limit_are_let_through() -> None:
    made = batch([1, None, 2, None])
    assert made.check_missing(0.5) is made


def test_the_error_lists_what_is_missing() -> None:
    aborted = AbortedError("given up", reason="preempted")
    made = RoutingBatch.build([record("a"), aborted], ["a", "b"])
    with pytest.raises(AbsentError) as caught:
        made.check_missing()
    assert caught.value.missing == {1: aborted}


# --- leaving ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [lambda b: pickle.loads(pickle.dumps(b)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_batch_crosses_process_borders(again: Any) -> None:
    made = batch([3, None, 1])
    there = again(made)
    np.testing.assert_array_equal(there.routing, made.routing)
    assert (there.keys, there.schema, str(there.missing[1])) == (made.keys, made.schema, str(made.missing[1]))


def test_the_arrays_are_the_batchs_own() -> None:
    whole = record("a", 4)
    made = RoutingBatch.build([whole])
    assert made.routing.flags.writeable
    assert not np.shares_memory(made.routing, whole.routing)


def test_a_batch_is_exported_without_a_copy() -> None:
    made = batch([3, 2])
    assert np.shares_memory(np.from_dlpack(made), made.routing)


def test_sixteen_bits_are_not_exported() -> None:
    made = RoutingBatch.build([record("a", schema=RoutingSchema(257, 3, [0]))])
    with pytest.raises(BufferError, match="16-bit"):
        np.from_dlpack(made)


def test_what_is_printed_holds_no_data() -> None:
    made = batch([3, None], fill=13)
    shape = "2 samples, 1 missing, shape=(2, 4, 3, 3), dtype=uint8"
    assert repr(made) == f"RoutingBatch({shape}, 16 experts, top-3, 4 MoE layers (2,3,5,6))"


def test_what_is_printed_of_a_packed_batch_holds_no_data() -> None:
    assert repr(batch([3, 1]).packed()).startswith("PackedRouting(2 samples, shape=(4, 4, 3), 16 experts")


def test_a_batch_needs_no_framework() -> None:
    code = "import sys, fastdeploy_routing_plugins.reader.batch; print({'paddle', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["paddle", "torch"])
def test_a_framework_that_is_not_installed_is_named_with_its_install_command(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None\nimport fastdeploy_routing_plugins.reader.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert f"{MissingDependencyError.__name__}: {name} is not installed (pip install" in last
