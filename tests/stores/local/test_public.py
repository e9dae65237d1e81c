"""``local`` through the public API: damage anywhere in a file is found, and nothing of it reaches the trainer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingSchema, open_store
from fastdeploy_routing_plugins.errors import CorruptDataError, RoutingError
from fastdeploy_routing_plugins.stores.local import layout

if TYPE_CHECKING:
    from pathlib import Path

    from fastdeploy_routing_plugins import SyncStore

SCHEMA = RoutingSchema(64, 4, range(2, 5))
ROUTING = (np.arange(3 * 50)[:, None] * 7 + np.arange(4) * 11).astype(np.uint8).reshape(3, 50, 4) % 64


def store_in(folder: Path) -> SyncStore:
    return open_store(
        {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder)}}, schema=SCHEMA
    )


def put(folder: Path) -> Path:
    with store_in(folder) as store:
        return folder / layout.place(store.put("x:1", ROUTING).name)


def test_the_hosts_own_json_opens_the_store(tmp_path: Path) -> None:
    config = {
        "enable_routing_replay": True,
        "routing_store_type": "local",
        "local_store_dir": str(tmp_path / "s"),
        "rdma_store_server": "",
        "only_last_turn": False,
        "use_fused_put": False,
    }
    with open_store(json.dumps(config), schema=SCHEMA) as store:
        store.put("x:1", ROUTING)
    assert (tmp_path / "s" / ".fd-routing-store").exists()


@given(st.data())
def test_one_flipped_bit_anywhere_is_found_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("s")
    path = put(folder)
    damaged = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    with store_in(folder) as store:
        try:
            routing = store.get("x:1").routing
        except CorruptDataError:
            return
        np.testing.assert_array_equal(routing, ROUTING)


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -601, -1])
def test_a_file_that_was_cut_off_is_corrupt(tmp_path: Path, keep: int) -> None:
    path = put(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with store_in(tmp_path) as store, pytest.raises(CorruptDataError):
        store.get("x:1", verify=False)


def test_files_that_changed_places_are_corrupt(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        names = [store.put(f"x:{index}", (ROUTING + index) % 64).name for index in range(2)]
        one, other = [tmp_path / layout.place(name) for name in names]
        first = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(first)
        with pytest.raises(CorruptDataError):
            store.get("x:0")


def test_a_damaged_record_can_be_deleted_and_put_again(tmp_path: Path) -> None:
    path = put(tmp_path)
    path.write_bytes(b"damaged")
    with store_in(tmp_path) as store:
        with pytest.raises(RoutingError):
            store.put("x:1", ROUTING)
        store.delete("x:1")
        store.put("x:1", ROUTING)
        np.testing.assert_array_equal(store.get("x:1").routing, ROUTING)
