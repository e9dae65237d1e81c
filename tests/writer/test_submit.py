"""What is submitted is what another process reads: any layout, dtype, memory order, part, attempt and choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingKey, RoutingSchema, RoutingWriter, SyncStore, WeightSpan
from fastdeploy_routing_plugins.errors import AbortedError, NotFoundError, SupersededError

from .helpers import BIG, PATIENCE, SCHEMA, Place, routing, same

DTYPES = ["u1", "i1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", ">i2", ">u2", ">i4", ">i8"]


@pytest.fixture(scope="module")
def writer(shared_place: Place) -> Iterator[RoutingWriter]:
    with shared_place.writer() as writer:
        yield writer


@pytest.fixture(scope="module")
def store(writer: RoutingWriter, shared_place: Place) -> Iterator[SyncStore]:
    with shared_place.read() as store:
        yield store


@pytest.fixture
def rollout(request: pytest.FixtureRequest) -> str:
    """An id of the test's own."""
    return f"{request.node.name}:0:0:0"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_integer_dtype_comes_back_as_the_schemas_own(
    writer: RoutingWriter, store: SyncStore, rollout: str, dtype: str
) -> None:
    writer.submit(rollout, routing(seed=rollout).astype(dtype)).result(PATIENCE)
    assert store.get(rollout).routing.tobytes() == routing(seed=rollout).tobytes()


@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i2"])
def test_token_first_comes_back_layer_first(writer: RoutingWriter, store: SyncStore, rollout: str, dtype: str) -> None:
    given = routing(300, seed=rollout).transpose(1, 0, 2).astype(dtype, order="C")
    writer.submit(rollout, given, layout="token_first").result(PATIENCE)
    assert same(store, rollout, routing(300, seed=rollout))


def _reversed(array: np.ndarray) -> np.ndarray:
    return array[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1]


def _every_other(array: np.ndarray) -> np.ndarray:
    wide = np.zeros(tuple(2 * size for size in array.shape), array.dtype)
    wide[::2, ::2, ::2] = array
    return wide[::2, ::2, ::2]


def _broken_rows(array: np.ndarray) -> np.ndarray:
    return array.transpose(2, 0, 1).copy().transpose(1, 2, 0)


@pytest.mark.parametrize("order", [np.asfortranarray, _reversed, _every_other, _broken_rows])
@pytest.mark.parametrize("dtype", ["u1", "<i8"])
def test_memory_order_does_not_matter(
    writer: RoutingWriter, store: SyncStore, rollout: str, order: Any, dtype: str
) -> None:
    writer.submit(rollout, order(routing(seed=rollout).astype(dtype))).result(PATIENCE)
    assert same(store, rollout, routing(seed=rollout))


def test_a_read_only_array_is_taken(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    given = routing(seed=rollout)
    given.flags.writeable = False
    writer.submit(rollout, given).result(PATIENCE)
    assert same(store, rollout, given)


def test_a_paddle_tensor_is_taken(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    paddle = pytest.importorskip("paddle")
    given = paddle.to_tensor(routing(seed=rollout).astype("int32"))
    writer.submit(rollout, given).result(PATIENCE)
    assert same(store, rollout, routing(seed=rollout))


def test_the_caller_may_overwrite_its_array_right_after(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    given = routing(20_000, seed=rollout)
    expected = given.copy()
    ticket = writer.submit(rollout, given)
    given[...] = 0
    ticket.result(PATIENCE)
    assert same(store, rollout, expected)


@pytest.mark.parametrize("layers", [range(6), reversed(range(6))], ids=["ascending", "descending"])
def test_layers_one_by_one_make_a_whole_rollout(
    writer: RoutingWriter, store: SyncStore, rollout: str, layers: Any
) -> None:
    expected = routing(40, seed=rollout)
    for layer in layers:
        writer.submit(rollout, expected[layer], layers=layer)
    writer.flush()
    assert same(store, rollout, expected)


def test_tokens_in_parts_make_a_whole_rollout_once_it_is_sealed(
    writer: RoutingWriter, store: SyncStore, rollout: str
) -> None:
    expected = routing(100, seed=rollout)
    for start in range(0, 100, 30):
        stop = min(start + 30, 100)
        writer.submit(rollout, expected[:, start:stop], tokens=(start, stop))
    writer.seal(rollout, 100)
    writer.flush()
    assert same(store, rollout, expected)


def test_without_a_seal_parts_stay_pending(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.submit(rollout, routing(5), tokens=(0, 5)).result(PATIENCE)
    assert store.status(rollout).state == "pending"


def test_a_stated_total_needs_no_seal(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    expected = routing(50, seed=rollout)
    writer.submit(rollout, expected[:, 20:], tokens=slice(20, None), total_tokens=50)
    writer.submit(rollout, expected[:, :20], tokens=range(20))
    writer.flush()
    assert same(store, rollout, expected)


def test_a_rollout_without_tokens_is_complete(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.submit(rollout, routing(0)).result(PATIENCE)
    assert store.get(rollout).routing.shape == (SCHEMA.num_layers, 0, SCHEMA.top_k)


def test_a_higher_attempt_replaces_a_lower_one(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.submit(rollout, routing(seed="first"), attempt=1)
    writer.submit(rollout, routing(seed="second"), attempt=2).result(PATIENCE)
    assert same(store, rollout, routing(seed="second"))


def test_a_lower_attempt_fails_as_superseded(writer: RoutingWriter, rollout: str) -> None:
    writer.submit(rollout, routing(), attempt=2)
    with pytest.raises(SupersededError):
        writer.submit(rollout, routing(), attempt=1).result(PATIENCE)


def test_a_sealed_attempt_is_read_as_that_attempt(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.submit(rollout, routing(), tokens=(0, 10), attempt=7)
    writer.seal(rollout, 10, attempt=7).result(PATIENCE)
    assert store.get(rollout).attempt == 7


def test_choices_are_apart(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    for choice in range(3):
        writer.submit(rollout, routing(seed=choice), choice=choice)
    writer.flush()
    assert all(same(store, rollout, routing(seed=choice), choice=choice) for choice in range(3))


def test_a_routing_key_is_as_good_as_an_id(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    key = RoutingKey(rollout, 4, "shadow")
    writer.submit(key, routing(seed=rollout)).result(PATIENCE)
    assert same(store, key, routing(seed=rollout))


@pytest.mark.parametrize("rollout_id", ["../../etc/passwd", "a/b\\c", "数据:1:0:0", " ", "x" * 4096, "\n\x01"])
def test_an_id_is_any_text(writer: RoutingWriter, store: SyncStore, rollout_id: str) -> None:
    writer.submit(rollout_id, routing(seed=rollout_id[:9])).result(PATIENCE)
    assert same(store, rollout_id, routing(seed=rollout_id[:9]))


def test_one_version_is_that_of_all_tokens(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.submit(rollout, routing(), weight_versions=17).result(PATIENCE)
    assert store.get(rollout).weight_versions == (WeightSpan(0, routing().shape[1], 17),)


def test_weight_versions_arrive(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    spans = (WeightSpan(0, 4, 17), WeightSpan(4, 10, "step-18"))
    writer.submit(rollout, routing(), weight_versions=spans).result(PATIENCE)
    assert store.get(rollout).weight_versions == spans


def test_the_writers_process_is_named_as_producer(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.submit(rollout, routing()).result(PATIENCE)
    assert store.get(rollout).producers == (writer.resolved.producer,)


def test_an_aborted_rollout_tells_its_reader_why(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.submit(rollout, routing(5), tokens=(0, 5))
    writer.abort(rollout, "the client went away \ud800").result(PATIENCE)
    with pytest.raises(AbortedError, match="the client went away"):
        store.get(rollout)


def test_a_deleted_rollout_is_gone(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    writer.submit(rollout, routing())
    writer.delete(rollout).result(PATIENCE)
    with pytest.raises(NotFoundError):
        store.get(rollout)


def test_a_delete_says_how_many_it_found(writer: RoutingWriter, rollout: str) -> None:
    writer.submit(rollout, routing())
    assert [writer.delete(rollout).result(PATIENCE).count for _ in range(2)] == [1, 0]


def test_delete_prefix_knows_where_a_number_ends(writer: RoutingWriter, store: SyncStore, rollout: str) -> None:
    for rollout_id in (f"{rollout}:1", f"{rollout}:1:5", f"{rollout}:10"):
        writer.submit(rollout_id, routing())
    writer.delete_prefix(f"{rollout}:1").result(PATIENCE)
    assert [status.key.rollout_id for status in store.list(rollout)] == [f"{rollout}:10"]


def test_the_same_part_twice_is_a_duplicate(writer: RoutingWriter, rollout: str) -> None:
    writer.submit(rollout, routing())
    assert writer.submit(rollout, routing()).result(PATIENCE).duplicate


@pytest.mark.parametrize("num_experts", [256, 257, 65_536, 65_537])
def test_the_schemas_width_follows_from_its_experts(place: Place, num_experts: int) -> None:
    schema = RoutingSchema(num_experts, 2, [3])
    expected = np.array([[[0, num_experts - 1]]], schema.dtype)
    with place.writer(schema=schema) as writer, place.read() as store:
        writer.submit("x", expected.astype("i8"))
        writer.flush()
        assert store.get("x").routing.tobytes() == expected.tobytes()


def test_clear_comes_after_what_was_before_and_before_what_follows(place: Place) -> None:
    with place.writer("slow", delay=0.02) as writer:
        for number in range(20):
            writer.submit(f"before:{number}", routing())
        count = writer.clear()
        writer.submit("after", routing())
        assert (count.result(PATIENCE).count, writer.flush().ok and place.ids()) == (20, ["after"])


def test_clear_of_everything_deletes_what_others_wrote(place: Place) -> None:
    with place.read() as store:
        store.put("theirs", routing(), schema=SCHEMA)
    with place.writer() as writer:
        kept = writer.clear().result(PATIENCE).count
        assert (kept, writer.clear(everything=True).result(PATIENCE).count) == (0, 1)


@pytest.mark.parametrize("store_name", ["slow_async", "blind"])
def test_other_forms_of_stores_get_it_exactly_too(place: Place, store_name: str) -> None:
    expected = routing(3000, seed=1, schema=BIG)
    with place.writer(store_name, schema=BIG) as writer, place.read() as store:
        writer.submit("x:0:0:0", expected.transpose(1, 0, 2), layout="token_first").result(PATIENCE)
        assert same(store, "x:0:0:0", expected)
