"""Parts whose digests are made while they are copied: the same objects as ever, and the same answers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingSchema, SyncStore, open_store
from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.digests import CHUNK_TOKENS, copy_and_digest, digest_payload, no_digests, payload_of
from fastdeploy_routing_plugins.envelope import PartHeader, encode_header
from fastdeploy_routing_plugins.names import Part
from fastdeploy_routing_plugins.store.undigested import WORTH, Undigested

LAYERS, TOP_K = 5, 4
_numbers = itertools.count()


def routing(tokens: int, seed: int = 0, experts: int = 256) -> np.ndarray:
    first = np.random.default_rng(seed).integers(experts, size=(LAYERS, tokens, 1))
    dtype = np.uint8 if experts <= 256 else np.uint16
    return ((first + np.arange(TOP_K)) % experts).astype(dtype)


def header_of(array: np.ndarray, digests: str, experts: int = 256) -> PartHeader:
    layers, tokens, top_k = array.shape
    return PartHeader(
        namespace="ns", rollout_id="x", choice=0, kind="routing", attempt=0, producer="p", time_ns=1,
        num_experts=experts, top_k=top_k, layer_ids=tuple(range(layers)), dtype=str(array.dtype), layers=(0, layers),
        tokens=(0, tokens), total_tokens=tokens, digests=digests,
    )  # fmt: skip


@given(
    tokens=st.one_of(st.integers(1, 50), st.integers(CHUNK_TOKENS - 2, CHUNK_TOKENS + 2), st.integers(20_000, 30_000)),
    experts=st.sampled_from([200, 256, 257]),
)
@settings(max_examples=60, deadline=None)
def test_copy_and_digests_are_those_of_two_passes(tokens: int, experts: int) -> None:
    array = routing(tokens, tokens, experts)
    payload, part, row = payload_of(array), Part((0, tokens), (0, LAYERS)), TOP_K * array.itemsize
    target = bytearray(payload.nbytes)
    expected = digest_payload(payload, part, row)
    assert copy_and_digest(payload, memoryview(target), part, row) == expected
    assert (bytes(target), len(no_digests(part))) == (payload.tobytes(), len(expected))


@pytest.mark.parametrize("tokens", [1, 100, CHUNK_TOKENS, CHUNK_TOKENS + 1])
def test_the_header_is_as_long_as_the_one_it_takes_the_place_of(tokens: int) -> None:
    array = routing(tokens)
    payload, part = payload_of(array), Part((0, tokens), (0, LAYERS))
    before = header_of(array, no_digests(part))
    buffer = Undigested(payload, array.shape, before)
    made = buffer.copy_into(memoryview(bytearray(payload.nbytes)))
    right = header_of(array, digest_payload(payload, part, TOP_K))
    assert made == encode_header(right)
    assert (len(made), buffer.digested()) == (len(encode_header(before)), right)


# --- in the store that copies ---------------------------------------------------------------------------------------


def config(folder: Path, namespace: str, **options: Any) -> dict[str, Any]:
    own = {"namespace": namespace, "arena_dir": str(folder), "capacity": 64 << 20, **options}
    return {"routing_store_type": "rdma", "routing_store_config": own}


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[SyncStore, SyncStore]]:
    """Two producers of one namespace."""
    schema, where = (
        RoutingSchema(256, TOP_K, range(LAYERS)),
        config(tmp_path, f"copies-{os.getpid()}-{next(_numbers)}"),
    )
    with open_store(where, schema=schema) as one, open_store(where, schema=schema) as other:
        yield one, other


SMALL, LARGE = 1000, 5 * WORTH // 4 // LAYERS // TOP_K


@pytest.mark.parametrize("tokens", [SMALL, LARGE])
def test_what_was_put_is_read_and_verified(stores: tuple[SyncStore, SyncStore], tokens: int) -> None:
    one, other = stores
    array = routing(tokens)
    one.put("x", array)
    for store in stores:
        np.testing.assert_array_equal(store.get("x").routing, array)
        assert store.verify("x").problems == ()
    parts = (array[:2], array[2:])
    one.put("y", parts[0], layers=(0, 2), total_tokens=tokens)
    other.put("y", parts[1], layers=(2, LAYERS), total_tokens=tokens)
    np.testing.assert_array_equal(one.get("y", layers=(1, 4), tokens=(5, 900)).routing, array[1:4, 5:900])


@pytest.mark.parametrize("tokens", [SMALL, LARGE])
def test_the_same_is_a_duplicate_and_other_routing_a_conflict(
    stores: tuple[SyncStore, SyncStore], tokens: int
) -> None:
    array, different = routing(tokens), routing(tokens)
    different[3, tokens // 2] += np.uint8(1)  # distinct ids stay distinct
    stores[0].put("x", array)
    for store in stores:
        assert store.put("x", array).duplicate
        with pytest.raises(e.ConflictError):
            store.put("x", different)
        np.testing.assert_array_equal(store.get("x").routing, array)


def test_token_first_and_wide_ids_are_stored_alike(stores: tuple[SyncStore, SyncStore]) -> None:
    array = routing(LARGE)
    stores[0].put("x", array.transpose(1, 0, 2).astype(np.int64), layout="token_first")
    assert stores[1].put("x", array).duplicate
    np.testing.assert_array_equal(stores[1].get("x").routing, array)


def test_a_full_shelf_makes_room_and_digests_are_right(tmp_path: Path) -> None:
    where = config(tmp_path, f"copies-{os.getpid()}-{next(_numbers)}", when_full="evict", capacity=24 << 20)
    with open_store(where, schema=RoutingSchema(256, TOP_K, range(LAYERS))) as store:
        for number in range(6):
            store.put(f"x{number}", routing(LARGE, number))
        assert store.verify("x5").problems == ()
        with pytest.raises(e.AbsentError):
            store.get("x0")
