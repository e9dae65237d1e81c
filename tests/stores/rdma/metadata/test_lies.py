"""A service that answers what it was not asked, in sound frames: an error, and never another rollout's routing."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, open_reader, open_store
from fastdeploy_routing_plugins.errors import CorruptDataError, RoutingError
from fastdeploy_routing_plugins.stores.rdma.metadata import counter
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m
from fastdeploy_routing_plugins.stores.rdma.metadata.page import BUCKETS, look_at
from fastdeploy_routing_plugins.stores.rdma.metadata.reading import take_listing

from .helpers import name, prefix, serving
from .samples import LISTING, ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = RoutingSchema(64, 2, range(3))
LIES: dict[str, Callable[[m.ListingRow, list[m.ListingRow]], m.ListingRow]] = {
    "rows out of order": lambda row, rows: rows[-1 - rows.index(row)],
    "names of another": lambda row, rows: msgspec.structs.replace(row, names=rows[-1 - rows.index(row)].names),
    "places of another": lambda row, rows: msgspec.structs.replace(row, places=rows[-1 - rows.index(row)].places),
    "a counter beyond": lambda row, rows: msgspec.structs.replace(row, bucket=2**40),
}


def routing(seed: int) -> np.ndarray[Any, Any]:
    return np.argsort(np.random.default_rng(seed).random((3, 40, 64)), axis=-1)[..., :2].astype(np.uint8)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path("/dev/shm") / f"fd-routing-lies-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
    path.mkdir()
    yield path
    for each in path.iterdir():
        each.unlink()
    path.rmdir()


@pytest.mark.parametrize("lie", LIES)
def test_no_rollout_is_taken_for_another(folder: Path, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    encode = counter.encode_answer

    def lying(body: Any, *args: Any) -> bytes:
        if type(body) is m.Listings and len(body.rows) > 1:
            body = msgspec.structs.replace(body, rows=[LIES[lie](row, body.rows) for row in body.rows])
        return encode(body, *args)

    with serving() as service:
        own = {"server": str(service.address), "arena_dir": str(folder), "capacity": 4 << 20, "timeout": 1.0}
        config = {"routing_store_type": "rdma", "routing_store_config": own}
        with open_store(config, schema=SCHEMA) as store:
            for number in range(2):
                store.put(f"k:{number}", routing(number))
            with monkeypatch.context() as patch:
                patch.setattr(counter, "encode_answer", lying)
                with open_reader(config, schema=SCHEMA) as reader:
                    try:
                        batch = reader.get_batch(["k:0", "k:1"], timeout=0.5, on_missing="mask")
                    except RoutingError:
                        return
                    for at in range(2):
                        assert not batch.mask[at].any() or np.array_equal(batch.routing[at], routing(at))


@pytest.mark.parametrize(
    "row",
    [
        m.ListingRow([name("y")], [0], [b""]),
        msgspec.structs.replace(LISTING, bucket=BUCKETS),
        msgspec.structs.replace(LISTING, owners=[0, 1]),
        msgspec.structs.replace(LISTING, places=[b""]),
    ],
)
def test_a_listing_of_what_was_not_asked_for_is_corrupt(row: m.ListingRow) -> None:
    with pytest.raises(CorruptDataError):
        take_listing(prefix(), m.Listings([ROW], [row], 9), None)  # type: ignore[arg-type]


def test_a_page_that_is_no_path_is_none() -> None:
    assert look_at("/dev/shm/\0", 1) is None
