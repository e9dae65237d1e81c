"""From an engine's writer, through its store worker and p2pstore, to an unmodified trainer."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from fastdeploy_routing_plugins import open_reader, open_writer

from .servers import PATIENCE, SCHEMA, ask, config, routing, store, trainer

LIMITS = {"arena_bytes": 8 << 20}


@pytest.mark.parametrize("header", [True, False])
def test_a_trainer_reads_what_the_engine_submits(redis, header):
    with (
        trainer(redis) as client,
        open_writer(config(redis, header=header), schema=SCHEMA, limits=LIMITS) as writer,
    ):
        for seed in range(5):
            writer.submit(f"x:{seed}", routing(seed=seed), attempt=7).result(60)
        for seed in range(5):
            assert ask(client.get(f"x:{seed}")) == routing(seed=seed).tobytes()
        assert writer.stats().retained_bytes == 0


def test_a_reader_of_this_package_reads_it_too(redis):
    with open_writer(config(redis), schema=SCHEMA, limits=LIMITS) as writer, store(redis) as plain:
        writer.submit("x", routing(), attempt=3).result(60)
        writer.abort("y", "no reason").result(60)
        with open_reader(config(redis), schema=SCHEMA) as reader:
            np.testing.assert_array_equal(reader.get("x", timeout=20).routing, routing())
        assert plain.status("y").state == "aborted"


ENGINE = """
import json, os, sys
import json
import subprocess
import sys
import time

import numpy as np
from fastdeploy_routing_plugins import RoutingSchema, open_writer
schema = RoutingSchema(64, 4, (1, 2, 5))
writer = open_writer(json.loads(sys.argv[1]), schema=schema, limits=json.loads(sys.argv[2]))
writer.submit("x", np.load(sys.argv[3])).result(60)
print("put", flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_engine_put_is_served_until_it_is_released(redis, tmp_path):
    np.save(tmp_path / "routing.npy", routing())
    arguments = [json.dumps(config(redis)), json.dumps(LIMITS), str(tmp_path / "routing.npy")]
    engine = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENGINE, *arguments], stdout=subprocess.PIPE, timeout=60
    )
    assert engine.stdout == b"put\n"
    with trainer(redis) as client:
        assert ask(client.get("x")) == routing().tobytes()
        assert ask(client.delete("x"))
        with redis.client() as raw:  # the worker takes its address back when it ends
            until = time.monotonic() + PATIENCE
            while len(raw.keys("p2p:providers:*")) > 1:
                assert time.monotonic() < until
                time.sleep(0.05)
