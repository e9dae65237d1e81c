"""The training example in short: routing went through the store, and replaying it lowers the KL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paddle", reason="paddlepaddle is not installed")

from fastdeploy_routing_plugins import SyncStore, open_store
from fastdeploy_routing_plugins.resolving.sources import CONFIG_VARIABLE, NAMESPACE_VARIABLE

MAIN = Path(__file__).parents[2] / "examples" / "r3_training" / "main.py"
STEPS, PROMPTS, GROUP, TOKENS = 4, 4, 4, 16
BOTH_ARMS = 2 * STEPS * PROMPTS * GROUP
SIZE = ("--steps", STEPS, "--log-every", 1, "--prompts", PROMPTS, "--group", GROUP, "--tokens", TOKENS)


def train(folder: Path, *arguments: Any, start: tuple[str | Path, ...] = (MAIN,)) -> subprocess.CompletedProcess[str]:
    """Runs the example over a store, and with shared memory, in a folder."""
    (folder / "shm").mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if name not in (CONFIG_VARIABLE, NAMESPACE_VARIABLE)}
    env["FD_ROUTING_WRITER_CONFIG"] = json.dumps({"arena_dir": str(folder / "shm")})
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(MAIN.parent), env.get("PYTHONPATH")]))
    command = [sys.executable, *start, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)


def named(folder: Path) -> dict[str, Any]:
    return {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder / "store")}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r3")


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, Any]:
    """What the example says about a short run whose records are kept."""
    done = train(folder, *SIZE, "--json", "--keep", "--config", json.dumps(named(folder)))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def store(folder: Path, trained: dict[str, Any]) -> Any:
    config = named(folder)
    config["routing_store_config"]["namespace"] = trained["namespace"]
    with open_store(config) as opened:
        yield opened


def test_routers_disagree_without_replay(trained: dict[str, Any]) -> None:
    assert trained["seeds"][0]["disagreement"] > 0.005


def test_kl_is_lower_with_replay_at_every_step(trained: dict[str, Any]) -> None:
    run = trained["seeds"][0]
    pairs = [(plain["kl"], replay["kl"]) for plain, replay in zip(run["plain"], run["replay"], strict=True)]
    assert len(pairs) == STEPS
    assert all(0 < replay < plain for plain, replay in pairs), pairs


def test_both_arms_begin_with_the_same_rollouts(trained: dict[str, Any]) -> None:
    run = trained["seeds"][0]
    assert run["plain"][0]["reward"] == run["replay"][0]["reward"]


def test_all_rollouts_went_through_the_store(trained: dict[str, Any], store: SyncStore) -> None:
    statuses = store.list()
    assert trained["rollouts_stored"] == len(statuses) == BOTH_ARMS
    assert {str(status.state) for status in statuses} == {"complete"}


def test_routing_in_the_store_is_of_the_weights_that_sampled_it(trained: dict[str, Any], store: SyncStore) -> None:
    last = store.get(f"seed0-replay-{STEPS - 1}:0:0:0")
    assert [(span.start, span.stop, span.version) for span in last.weight_versions] == [
        (0, last.num_tokens, STEPS - 1)
    ]


def test_a_gate_that_does_not_hold_ends_with_a_sentence_and_nothing_left(tmp_path: Path) -> None:
    few = ("--steps", 1, "--prompts", 1, "--group", 2, "--tokens", 4)
    start = (
        "-c",
        "import report; report.LEAST_DISAGREEMENT = 1.0; import main; main.main()",
    )  # more than there can be
    done = train(tmp_path, *few, "--config", json.dumps(named(tmp_path)), start=start)
    assert (done.returncode, "not more than 100.0%" in done.stderr) == (1, True), done.stderr
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_curves_become_a_picture(trained: dict[str, Any], folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, pip install '.[bench]'")
    (folder / "curves.json").write_text(json.dumps(trained))
    command = [sys.executable, MAIN.with_name("plot.py"), folder / "curves.json", folder / "curves.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, (folder / "curves.png").read_bytes()[:4]) == (0, b"\x89PNG"), done.stderr
