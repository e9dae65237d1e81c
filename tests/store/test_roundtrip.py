"""Exact round trips: every dtype, memory order and way of cutting a rollout, on every store that keeps it."""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingSchema, SyncStore, open_store
from fastdeploy_routing_plugins.spec import StoreContext

from .memory import AsyncMemory, Shelf, open_memory, resolved

if TYPE_CHECKING:
    from collections.abc import Iterator

SQLITE = Path(__file__).parents[2] / "examples" / "fd-routing-sqlite" / "src"
EXPERTS = (7, 8, 254, 255, 256, 257, 384, 512, 65_536)
DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
COUNTER = itertools.count()


def as_is(array: np.ndarray) -> np.ndarray:
    return array


def mapped(array: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryFile() as file:
        if not array.size:
            return array
        memory = np.memmap(file, array.dtype, "w+", shape=array.shape)
        memory[...] = array
        return memory


def frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


ORDERS = {
    "C": as_is,
    "Fortran": np.asfortranarray,
    "transposed": lambda a: a.transpose(1, 2, 0).copy().transpose(2, 0, 1),
    "negative stride": lambda a: a[:, ::-1].copy()[:, ::-1],
    "sliced": lambda a: np.pad(a, ((1, 1), (2, 0), (0, 3)))[1:-1, 2:, :-3],
    "read-only": frozen,
    "memmap": mapped,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
}


def open_sqlite(folder: Path) -> SyncStore:
    sys.path.insert(0, str(SQLITE))
    try:
        from fd_routing_sqlite.plugin import fd_routing_store
    finally:
        sys.path.remove(str(SQLITE))
    spec = fd_routing_store()
    config = spec.load_config()(path=str(folder / "routing.db"))
    store = resolved(lambda: spec.create(StoreContext("sqlite", config, "default", "me")), has=spec.capabilities)
    return SyncStore(store)


@pytest.fixture(scope="module", params=["local", "sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    folder = tmp_path_factory.mktemp("roundtrip")
    if request.param == "sqlite":
        opened = open_sqlite(folder)
    elif request.param == "local":
        opened = open_store({"routing_store_type": "local", "local_store_dir": str(folder / "store")})
    else:
        opened = open_memory(Shelf(), form=AsyncMemory)
    with opened:
        yield opened


def draw_routing(rng: np.random.Generator, layers: int, tokens: int, top_k: int, experts: int) -> np.ndarray:
    first = rng.integers(0, experts, (layers, tokens, 1))
    if first.size:
        first.flat[0] = experts - 1
    return (first + np.arange(top_k) * max(1, experts // top_k)) % experts


def cut(layers: tuple[int, int], tokens: tuple[int, int], rng: random.Random) -> list[tuple[Any, Any]]:
    """Cuts a rectangle into parts at random."""
    (l0, l1), (t0, t1) = layers, tokens
    if l1 - l0 > 1 and rng.random() < 0.5:
        at = rng.randrange(l0 + 1, l1)
        return cut((l0, at), tokens, rng) + cut((at, l1), tokens, rng)
    if t1 - t0 > 1 and rng.random() < 0.5:
        at = rng.randrange(t0 + 1, t1)
        return cut(layers, (t0, at), rng) + cut(layers, (at, t1), rng)
    return [(layers, tokens)]


@given(
    experts=st.sampled_from(EXPERTS),
    dtype=st.sampled_from(DTYPES),
    order=st.sampled_from(sorted(ORDERS)),
    form=st.sampled_from(["whole", "per layer", "parts", "overlapping parts"]),
    tokens=st.sampled_from([0, 1, 2, 33, 4096, 4097, 9000]),
    layers=st.integers(1, 5),
    top_k=st.integers(1, 6),
    sealed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_goes_in_comes_out(
    store: SyncStore,
    experts: int,
    dtype: str,
    order: str,
    form: str,
    tokens: int,
    layers: int,
    top_k: int,
    sealed: bool,
    seed: int,
) -> None:
    if np.iinfo(dtype).max < experts - 1:
        dtype = "i8"
    rng = random.Random(seed)
    schema = RoutingSchema(experts, top_k, range(3, 3 + layers))
    data = draw_routing(np.random.default_rng(seed), layers, tokens, top_k, experts)
    array = ORDERS[order](data.astype(dtype))
    key = f"rollout:{next(COUNTER)}"
    if form == "whole":
        store.put(key, array, schema=schema)
    else:
        rects = cut((0, layers), (0, tokens), rng)
        if form == "per layer":
            rects = [((layer, layer + 1), (0, tokens)) for layer in range(layers)]
        if form == "overlapping parts":
            rects += cut((0, layers), (0, tokens), rng)
        rng.shuffle(rects)
        for number, (on_layers, on_tokens) in enumerate(rects):
            total = None if sealed or number else tokens
            piece = array[slice(*on_layers), slice(*on_tokens)]
            store.put(key, piece, schema=schema, layers=on_layers, tokens=on_tokens, total_tokens=total)
        if sealed:
            store.seal(key, tokens)
    record = store.get(key)
    assert record.routing.dtype == schema.dtype
    assert record.routing.tobytes() == data.astype(schema.dtype).tobytes()
    on_layers, on_tokens = rng.choice(cut((0, layers), (0, tokens), rng))
    part = store.get(key, layers=on_layers, tokens=on_tokens, verify=rng.random() < 0.5)
    np.testing.assert_array_equal(part.routing, data[slice(*on_layers), slice(*on_tokens)])
    store.delete(key)
