"""The files under examples/ do what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, open_store, resolve
from fastdeploy_routing_plugins.errors import UnknownStoreError

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "examples" / "engine"
SCHEMA = RoutingSchema(num_experts=64, top_k=4, layer_ids=range(3, 9))
ROUTING = (np.arange(6 * 40 * 4) % 64).reshape(6, 40, 4)
PUT_LATE = """
import json, sys, time
import numpy as np
from fastdeploy_routing_plugins import RoutingSchema, open_store

time.sleep(1.0)
with open_store(sys.argv[1], schema=RoutingSchema(64, 4, range(3, 9))) as store:
    store.put(sys.argv[2], (np.arange(6 * 40 * 4) % 64).reshape(6, 40, 4))
"""


@pytest.fixture
def config(tmp_path):
    return json.dumps({"routing_store_type": "local", "routing_store_config": {"store_dir": str(tmp_path / "store")}})


def read_back(config, *arguments):
    command = [sys.executable, ROOT / "examples" / "trainer_read_back.py", "--config", config, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_trainer_waits_for_the_engine_and_reads_back(config):
    with subprocess.Popen([sys.executable, "-c", PUT_LATE, config, "late:0:0:0"]) as engine:
        done = read_back(config, "--timeout", "60", "late:0:0:0")
    assert (engine.returncode, done.returncode) == (0, 0), done.stderr


def test_trainer_converts_to_paddle_int64(config):
    with open_store(config, schema=SCHEMA) as store:
        store.put("a", ROUTING)
    assert "paddle paddle.int64" in read_back(config, "a").stdout


def test_trainer_reports_what_never_came(config):
    done = read_back(config, "--timeout", "0.1", "never:0:0:0")
    assert (done.returncode, "never:0:0:0" in done.stderr) == (1, True)


def test_trainer_drops_what_the_engine_gave_up(config):
    with open_store(config, schema=SCHEMA) as store:
        store.abort("b", "client went away")
    assert "client went away" in read_back(config, "b").stdout


@pytest.mark.parametrize("store", ["local", "noop"])
def test_engine_config_resolves(store):
    assert resolve((ENGINE / f"{store}.json").read_text(), environ={}).name == store


def test_rdma_is_not_claimed_before_it_is_there():
    with pytest.raises(UnknownStoreError):
        resolve((ENGINE / "rdma.json").read_text(), environ={})


@pytest.mark.parametrize("path", sorted(ENGINE.glob("*.json")), ids=lambda path: path.name)
def test_every_engine_config_is_described(path):
    assert f"engine/{path.name}" in (ROOT / "examples" / "README.md").read_text()
