"""Stores that earlier releases wrote are read, checked and continued by this one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, SyncStore, WeightSpan, envelope, open_store
from fastdeploy_routing_plugins import errors as e

from ..golden.write_store import LONG_ID, SMALL, WIDE, routing

STORES = sorted((Path(__file__).parents[1] / "golden").glob("store-*"))


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SyncStore]:
    folder = shutil.copytree(request.param, tmp_path / "store")
    with open_store({"routing_store_type": "local", "local_store_dir": str(folder)}) as opened:
        yield opened


def test_there_is_a_golden_store_for_every_format() -> None:
    major, minor = envelope.FORMAT
    assert [path.name for path in STORES] == [f"store-{major}.{each}" for each in range(minor + 1)]


@pytest.mark.parametrize(
    ("rollout", "choice", "schema", "tokens"),
    [
        ("whole:0:0:0", 0, SMALL, 11),
        ("whole:0:0:0", 2, WIDE, 5000),
        ("layers/../é", 0, SMALL, 6),
        ("turns:1:0:0", 0, SMALL, 9),
        ("Empty", 0, SMALL, 0),
        (LONG_ID, 0, SMALL, 2),
    ],
)
def test_a_golden_rollout_is_read(
    store: SyncStore, rollout: str, choice: int, schema: RoutingSchema, tokens: int
) -> None:
    record = store.get(rollout, choice=choice)
    assert record.schema == schema
    np.testing.assert_array_equal(record.routing, routing(schema, tokens))


def test_golden_weight_versions_are_read(store: SyncStore) -> None:
    assert store.get("whole:0:0:0").weight_versions == (WeightSpan(0, 4, 1), WeightSpan(4, 11, "b"))


def test_a_golden_abort_is_read(store: SyncStore) -> None:
    with pytest.raises(e.AbortedError, match="client went away"):
        store.get("aborted:3:0:0")


def test_a_golden_rollout_is_continued(store: SyncStore) -> None:
    store.put("open:2:0:0", routing(SMALL, 5)[:, 3:], schema=SMALL, tokens=(3, 5), total_tokens=5)
    np.testing.assert_array_equal(store.get("open:2:0:0").routing, routing(SMALL, 5))


def test_putting_a_golden_rollout_again_is_a_duplicate(store: SyncStore) -> None:
    spans = [WeightSpan(0, 4, 1), WeightSpan(4, 11, "b")]
    assert store.put("whole:0:0:0", routing(SMALL, 11), schema=SMALL, weight_versions=spans).duplicate


def test_a_golden_store_passes_every_check(store: SyncStore) -> None:
    complete = [status.key for status in store.list() if status.state == "complete"]
    assert [store.verify(key).problems for key in complete] == [()] * 6
