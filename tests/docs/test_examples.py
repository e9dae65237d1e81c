"""The files under examples/ do what they say."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, open_store, resolve
from fastdeploy_routing_plugins.errors import IncompleteError

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


@pytest.fixture(scope="module")
def handed_over(tmp_path_factory):
    """The store to which the engine example has handed made-up outputs over, and what the example said."""
    folder = tmp_path_factory.mktemp("engine")
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder / "store")}}
    command = [sys.executable, ROOT / "examples" / "engine_sglang_vllm.py", "--config", json.dumps(config)]
    (folder / "shm").mkdir()
    env = {**os.environ, "FD_ROUTING_WRITER_CONFIG": json.dumps({"arena_dir": str(folder / "shm")})}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with open_store(config) as store:
        yield store, done.stdout


def test_engines_outputs_come_back_as_they_were(handed_over):
    assert handed_over[1].splitlines()[-1] == "everything came back as the engines had chosen it"


def test_a_turn_that_begins_later_completes_the_one_before(handed_over):
    status = handed_over[0].status("sglang:0:1:0")
    assert (status.state, [str(each.part) for each in status.parts]) == (
        "complete",
        ["layers 0:11, tokens 0:30", "layers 0:11, tokens 30:40"],
    )


def test_every_choice_of_a_request_is_handed_over(handed_over):
    assert [handed_over[0].get("vllm:0:0:0", choice=choice).routing.shape for choice in (0, 1)] == [
        (11, 49, 4),
        (11, 63, 4),
    ]


def test_rows_that_an_engine_does_not_know_are_absent_parts(handed_over):
    with pytest.raises(IncompleteError) as caught:
        handed_over[0].get("vllm:2:0:0")
    assert [str(part) for part in caught.value.missing] == ["layers 0:11, tokens 0:16"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_torch_trainer_comes_closer_to_the_engine_with_replay(method):
    command = [sys.executable, ROOT / "examples" / "torch_reader.py", "--samples", "16", "--start-method", method]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.count("step ")) == (0, 2), done.stderr


@pytest.mark.parametrize("store", ["local", "noop", "rdma"])
def test_engine_config_resolves(store):
    assert resolve((ENGINE / f"{store}.json").read_text(), environ={}).name == store


@pytest.mark.parametrize("path", sorted(ENGINE.glob("*.json")), ids=lambda path: path.name)
def test_every_engine_config_is_described(path):
    assert f"engine/{path.name}" in (ROOT / "examples" / "README.md").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_script_is_described(path):
    assert path.name in (ROOT / "examples" / "README.md").read_text()
