"""From a FastDeploy engine to a trainer that calls ``P2PClient.get``: whole rollouts, and layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..stores.rdma.p2pstore.servers import READY, REASON, Redis, ask, trainer
from .drive import routing
from .place import Place

pytestmark = [
    pytest.mark.skipif(not READY, reason=REASON),
    pytest.mark.families("de"),
    pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:No ccache found"),
]
IDS = ("r:0:0:0", "r:1:0:0")
ENGINE = """
engine = Engine(REPLAY)
for seed, key in enumerate(("r:0:0:0", "r:1:0:0")):
    engine.finish(request_id(key), routing(seed, 9))
engine.close()
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path).start()
    yield server
    server.stop()


def replay(place: Place, redis: Redis, *, fused: bool, **options: Any) -> dict[str, Any]:
    whole = {"routing_store_type": "rdma", "rdma_store_server": redis.address, "use_fused_put": fused}
    own = {"arena_dir": str(place.arena_dir), "timeout": 5.0, "linger": 60.0, **options}
    return {**whole, "routing_store_config": own}


@pytest.mark.parametrize("header", [True, False])
def test_a_trainer_gets_whole_rollouts(redis: Redis, place: Place, header: bool) -> None:
    place.must(ENGINE, replay(place, redis, fused=True, header=header))
    with trainer(redis) as client:
        for seed, key in enumerate(IDS):
            assert ask(client.get(key)) == routing(seed, 9).astype(np.uint8).tobytes()
            assert ask(client.delete(key))


def test_a_trainer_gets_each_layer(redis: Redis, place: Place) -> None:
    place.must(ENGINE, replay(place, redis, fused=False, header=False))
    with trainer(redis) as client:
        for seed, key in enumerate(IDS):
            for layer, expected in enumerate(routing(seed, 9)):
                np.testing.assert_array_equal(np.asarray(ask(client.get(f"{key}_{layer}"))), expected)
                assert ask(client.delete(f"{key}_{layer}"))
