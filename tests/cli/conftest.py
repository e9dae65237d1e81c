"""A store in a folder, filled with what the commands have to deal with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins import open_store

from .helpers import SCHEMA, routing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastdeploy_routing_plugins import SyncStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The store's folder."""
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncStore]:
    """An empty local store, open in this process."""
    for variable in ("FD_ROUTING_STORE_CONFIG", "FD_ROUTING_NAMESPACE", "FD_ROUTING_STORES_ALLOWED"):
        monkeypatch.delenv(variable, raising=False)
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder)}}
    with open_store(config, schema=SCHEMA) as opened:
        yield opened


@pytest.fixture
def filled(store: SyncStore) -> SyncStore:
    """The same store with rollouts ``a:0:0:0``, ``x:1``, ``x:10`` and ``x:1:0`` of 20 tokens."""
    for seed, rollout_id in enumerate(["a:0:0:0", "x:1", "x:10", "x:1:0"]):
        store.put(rollout_id, routing(20, seed))
    return store


@pytest.fixture
def here(folder: Path) -> list[str]:
    """The options that lead the command to the store."""
    return ["--dir", str(folder)]
