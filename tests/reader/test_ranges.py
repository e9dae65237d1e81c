"""Which layers and tokens a rank reads: against how Megatron-LM and Paddle place ranks and cut samples."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import ParallelLayout, RankLayout, RoutingSchema
from fastdeploy_routing_plugins.errors import ConfigError, InvalidKeyError
from fastdeploy_routing_plugins.reader.splits import contiguous, even, zigzag

SCHEMA = RoutingSchema(64, 4, range(3, 61))  # DeepSeek's form: 61 layers, the first three dense


def tokens_of(ranges: Any) -> list[int]:
    return [token for start, stop in ranges for token in range(start, stop)]


# --- placing ranks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "names"),
    [("tp-cp-pp-dp", ("data", "pipe", "sep", "model")), ("tp-cp-dp-pp", ("pipe", "sharding", "sep", "model"))],
)
def test_ranks_are_placed_as_paddle_places_them(order: str, names: tuple[str, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's own, at import
        pytest.importorskip("paddle")
        from paddle.distributed.fleet.base.topology import CommunicateTopology
    axes = {"data": "dp", "sharding": "dp", "pipe": "pp", "sep": "cp", "model": "tp"}
    sizes = {"dp": 3, "pp": 2, "cp": 5, "tp": 4}
    layout = ParallelLayout(120, tp=4, cp=5, pp=2, num_layers=60, order=order)
    topology = CommunicateTopology(list(names), [sizes[axes[name]] for name in names])
    theirs = [{axes[name]: place for name, place in topology.get_coord(rank)._asdict().items()} for rank in range(120)]
    ours = [{axis: getattr(layout.rank(rank), axis) for axis in sizes} for rank in range(120)]
    assert ours == theirs


def test_every_rank_has_a_place_of_its_own() -> None:
    layout = ParallelLayout(48, tp=2, cp=3, pp=4, num_layers=60)
    assert len({layout.rank(rank) for rank in range(48)}) == 48


def test_a_place_is_the_rank_at_it() -> None:
    layout = ParallelLayout(16, tp=2, cp=2, pp=2, num_layers=60)
    assert layout.at(tp=1, cp=0, dp=1, pp=1) == layout.rank(1 + 0 * 2 + 1 * 4 + 1 * 8)


def test_data_parallel_ranks_are_what_is_left() -> None:
    assert ParallelLayout(64, tp=4, cp=2, pp=2, num_layers=60).dp == 4


def test_a_rank_travels_to_another_process() -> None:
    rank = ParallelLayout(8, pp=2, stages=[30, 31], cp=2).rank(5)
    assert pickle.loads(pickle.dumps(rank)) == rank


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"world_size": 6, "tp": 4}, "no multiple of tp"),
        ({"world_size": 0}, "world_size must be"),
        ({"tp": 1.5}, "tp must be"),
        ({"order": "tp-cp-dp"}, "order must name"),
        ({"order": "tp-tp-dp-pp"}, "order must name"),
        ({"cp_split": "ring"}, "cp_split must be"),
        ({"world_size": 2, "pp": 2}, "needs num_layers or stages"),
        ({"world_size": 2, "pp": 2, "num_layers": 61}, "no multiple of pp"),
        ({"world_size": 2, "pp": 2, "num_layers": 4, "stages": [2, 2]}, "exclude each other"),
        ({"world_size": 2, "pp": 2, "stages": [2, 2, 2]}, "3 entries for pp"),
        ({"world_size": 2, "pp": 2, "stages": [[1, 0], [2]]}, "in order"),
        ({"world_size": 2, "pp": 2, "stages": [[0, 1], 1]}, "stages must list"),
        ({"world_size": 2, "pp": 2, "stages": [3, -1]}, "stages must list"),
        ({"world_size": 2, "pp": 2, "stages": [["a"], [2]]}, "stages must list"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ParallelLayout(**wrong)


@pytest.mark.parametrize("rank", [-1, 8, "0", True])
def test_a_rank_that_does_not_exist_is_refused(rank: Any) -> None:
    with pytest.raises(ConfigError, match="rank must be an integer from 0 to 7"):
        ParallelLayout(8).rank(rank)


def test_a_place_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="cp rank must be from 0 to 1"):
        ParallelLayout(8, cp=2).at(cp=2)


# --- layers ---------------------------------------------------------------------------------------------------------


def test_stages_are_even_parts_of_all_layers() -> None:
    layout = ParallelLayout(4, pp=4, num_layers=64)
    assert layout.at(pp=2).layer_ids(RoutingSchema(8, 2, range(64))) == tuple(range(32, 48))


def test_dense_layers_count_as_layers_and_are_not_read() -> None:
    assert ParallelLayout(4, pp=4, num_layers=64).at(pp=0).layer_ids(SCHEMA) == tuple(range(3, 16))


def test_positions_are_those_among_the_recorded_layers() -> None:
    assert ParallelLayout(4, pp=4, num_layers=64).at(pp=1).layer_ranges(SCHEMA) == ((13, 29),)


def test_a_stage_of_dense_layers_has_no_range() -> None:
    layout = ParallelLayout(2, pp=2, stages=[3, 58])
    assert (layout.at(pp=0).layer_ranges(SCHEMA), layout.at(pp=1).layer_ranges(SCHEMA)) == ((), ((0, 58),))


def test_stages_may_list_layers() -> None:
    layout = ParallelLayout(2, pp=2, stages=[range(20), [*range(20, 61)]])
    assert layout.at(pp=0).layer_ids(SCHEMA) == tuple(range(3, 20))


def test_an_interleaved_rank_has_several_ranges() -> None:
    layout = ParallelLayout(2, pp=2, num_layers=16, virtual=2)
    assert layout.at(pp=1).layer_ranges(RoutingSchema(8, 2, range(2, 16))) == ((2, 6), (10, 14))


def test_dense_layers_in_between_do_not_split_a_range() -> None:
    layout = ParallelLayout(2, pp=2, num_layers=8)
    assert layout.at(pp=1).layer_ranges(RoutingSchema(8, 2, [0, 2, 4, 6])) == ((2, 4),)


def test_without_a_pipeline_all_layers_are_read() -> None:
    assert ParallelLayout(4, tp=4).rank(3).layer_ids(SCHEMA) == SCHEMA.layer_ids


def test_recorded_layers_in_no_stage_are_named() -> None:
    with pytest.raises(ConfigError, match=r"layers 58, 59, 60 are in no pipeline stage"):
        ParallelLayout(2, pp=2, num_layers=58).check(SCHEMA)


def test_recorded_layers_in_two_stages_are_named() -> None:
    with pytest.raises(ConfigError, match="layers 30 are in more than one"):
        ParallelLayout(2, pp=2, stages=[range(31), range(30, 61)]).check(SCHEMA)


# --- tokens ---------------------------------------------------------------------------------------------------------


def megatron(length: int, multiple: int, rank: int, size: int) -> list[int]:
    """What a context-parallel rank has: the padded sequence as 2 * size chunks, of which it takes two."""
    padded = np.arange(-(-length // multiple) * multiple)
    chunks = padded.reshape(2 * size, -1)
    return np.concatenate([chunks[rank], chunks[2 * size - 1 - rank]]).tolist()


@given(st.integers(0, 200), st.integers(1, 6), st.data())
def test_zigzag_is_how_megatron_cuts(length: int, size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    theirs = [token for token in megatron(length, 2 * size, rank, size) if token < length]
    assert tokens_of(zigzag(length, rank, size)) == theirs


@given(st.integers(0, 200), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.data())
def test_a_rank_has_its_slice_of_the_padded_sample(
    length: int, cp: int, tp: int, sequence_parallel: bool, data: st.DataObject
) -> None:
    layout = ParallelLayout(cp * tp, tp=tp, cp=cp, sequence_parallel=sequence_parallel)
    rank = layout.at(tp=data.draw(st.integers(0, tp - 1)), cp=data.draw(st.integers(0, cp - 1)))
    total = data.draw(st.integers(0, length))
    slices = tp if sequence_parallel else 1
    mine = megatron(length, slices * (2 * cp if cp > 1 else 2), rank.cp, cp) if cp > 1 else None
    if mine is None:
        mine = list(range(-(-length // slices) * slices))
    each = len(mine) // slices
    mine = mine[rank.tp * each : (rank.tp + 1) * each] if slices > 1 else mine
    assert (rank.local_length(length), tokens_of(rank.token_ranges(length, total))) == (
        len(mine),
        [token for token in mine if token < total],
    )


@given(
    st.integers(0, 300), st.integers(1, 5), st.integers(1, 3), st.sampled_from(["zigzag", "contiguous"]), st.booleans()
)
def test_ranks_together_have_every_token_once(
    length: int, cp: int, tp: int, cp_split: str, sequence_parallel: bool
) -> None:
    layout = ParallelLayout(cp * tp, tp=tp, cp=cp, cp_split=cp_split, sequence_parallel=sequence_parallel)
    places = [(t, c) for t in range(tp if sequence_parallel else 1) for c in range(cp)]
    shares = [tokens_of(layout.at(tp=t, cp=c).token_ranges(length)) for t, c in places]
    assert sorted(token for share in shares for token in share) == list(range(length))


@given(st.integers(0, 100), st.integers(1, 5), st.data())
def test_padding_comes_after_all_tokens_of_a_rank(length: int, cp: int, data: st.DataObject) -> None:
    rank = ParallelLayout(cp, cp=cp).at(cp=data.draw(st.integers(0, cp - 1)))
    padded = megatron(length, 2 * cp, rank.cp, cp)
    total = data.draw(st.integers(0, length))
    assert padded[: len(tokens_of(rank.token_ranges(length, total)))] == tokens_of(rank.token_ranges(length, total))


def test_neighbouring_pieces_are_one_range() -> None:
    assert ParallelLayout(2, cp=2).at(cp=1).token_ranges(16) == ((4, 12),)


def test_contiguous_pieces_are_equal_but_for_padding() -> None:
    assert [contiguous(10, rank, 4) for rank in range(4)] == [((0, 3),), ((3, 6),), ((6, 9),), ((9, 10),)]


def test_without_sequence_parallelism_tensor_ranks_share_tokens() -> None:
    assert not ParallelLayout(4, tp=4).rank(1).splits_tokens


def test_more_recorded_tokens_than_are_divided_are_refused() -> None:
    with pytest.raises(InvalidKeyError, match="11 tokens are recorded, more than the 10"):
        ParallelLayout(2, cp=2).rank(0).token_ranges(10, 11)


@pytest.mark.parametrize("length", [-1, 1.0, None])
def test_a_length_that_is_none_is_refused(length: Any) -> None:
    with pytest.raises(InvalidKeyError, match="length must be an integer from 0 on"):
        ParallelLayout(2, cp=2).rank(0).token_ranges(length)


# --- samples --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 100), st.integers(1, 12))
def test_even_parts_differ_by_at_most_one(total: int, size: int) -> None:
    sizes = [stop - start for start, stop in (even(total, rank, size) for rank in range(size))]
    assert (sum(sizes), max(sizes) - min(sizes) <= 1) == (total, True)


def test_a_rank_has_the_samples_of_its_data_parallel_place() -> None:
    layout = ParallelLayout(8, tp=2, pp=2, num_layers=60)
    assert [layout.at(dp=place).samples(list("abcde")) for place in range(2)] == [["a", "b", "c"], ["d", "e"]]


def test_a_share_of_nobody_is_refused() -> None:
    with pytest.raises(InvalidKeyError, match="rank 3 is not one of 3"):
        even(10, 3, 3)


def test_a_rank_says_where_it_is() -> None:
    assert str(ParallelLayout(8, tp=2, cp=2).rank(3)) == "tp 1 of 2, cp 1 of 2, dp 0 of 2, pp 0 of 1"


def test_ranks_of_equal_layouts_are_equal() -> None:
    assert ParallelLayout(2, pp=2, stages=[1, 2]).rank(1) == RankLayout(
        ParallelLayout(2, pp=2, stages=[[0], [1, 2]]), pp=1
    )


@pytest.mark.parametrize("how", [{"order": 5}, {"stages": 5}, {"stages": "12"}, {"stages": [10**12, 1]}])
def test_what_is_no_layout_has_a_typed_error(how: Any) -> None:
    with pytest.raises(ConfigError):
        ParallelLayout(2, pp=2, **{"num_layers": None if "stages" in how else 4, **how})
