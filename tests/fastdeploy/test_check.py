"""``fd-routing check --fastdeploy``: what an engine would do, said before it is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .place import HERE

ON = {"enable_routing_replay": True}


def check(replay: Any, *, plugins: str | None = "routing_stores", **variables: str) -> tuple[int, dict[str, Any]]:
    """Runs the command; returns its exit code and document."""
    done = command(["--json"], replay, plugins, variables)
    return done.returncode, json.loads(done.stdout)


def command(
    flags: list[str], replay: Any, plugins: str | None, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FD_")} | variables
    if plugins is not None:
        environ["FD_PLUGINS"] = plugins
    text = replay if isinstance(replay, str) else json.dumps(replay)
    program = Path(sys.executable).with_name("fd-routing")
    return subprocess.run(
        [program, "check", *flags, "--fastdeploy", text], env=environ, capture_output=True, text=True, timeout=60
    )


def test_a_good_configuration_is_said_to_store_through_this_package(tmp_path: Path) -> None:
    code, said = check({**ON, "routing_store_type": "local", "local_store_dir": str(tmp_path)})
    assert (code, said["store"]["options"]["store_dir"]) == (0, str(tmp_path))
    assert said["engine"] == "stores routing through this package, in 'local'"


def test_fastdeploys_own_default_folder_is_shown() -> None:
    assert check(ON)[1]["store"]["options"]["store_dir"] == "./routing_replay_output"


def test_what_the_environment_says_wins_over_fastdeploys_default() -> None:
    said = check(ON, FD_ROUTING_STORE_CONFIG='{"store_dir": "/elsewhere", "fsync": true}')[1]
    assert said["store"]["options"]["store_dir"] == "/elsewhere"


@pytest.mark.parametrize(
    ("plugins", "hint"),
    [
        (None, "set FD_PLUGINS=routing_stores"),
        ("other", "set FD_PLUGINS=other,routing_stores"),
        ("other, routing_stores", "does not strip blanks: write FD_PLUGINS=other,routing_stores"),
    ],
)
def test_without_the_variable_it_says_so_and_what_fastdeploy_does_then(plugins: str | None, hint: str) -> None:
    code, said = check(ON, plugins=plugins)
    assert (code, said["plugin"]["loaded"]) == (1, False)
    assert hint in said["hints"][0]
    assert said["engine"] == "uses FastDeploy's own store 'local', not this package's"


def test_an_unknown_store_is_named_with_what_was_meant() -> None:
    code, said = check({**ON, "routing_store_type": "locl"})
    assert (code, said["engine"], said["store"]) == (1, "does not start", None)
    assert "did you mean 'local'" in " ".join([*said["problems"], *said["hints"]])


def test_unknown_keys_and_wrong_types_are_all_named() -> None:
    said = check({**ON, "only_last_turn": "false", "local_store_dirr": "/x"})[1]
    assert said["problems"] == [
        "only_last_turn must be bool in JSON, got 'false'",
        "unknown key 'local_store_dirr', did you mean 'local_store_dir'?",
    ]
    assert said["engine"] == "does not start"


def test_replay_that_is_not_enabled_is_said() -> None:
    assert check({})[1]["engine"] == "records no routing: enable_routing_replay is not true"


def test_response_stays_fastdeploys_word_for_no_store() -> None:
    code, said = check({**ON, "routing_store_type": "response"})
    assert (code, said["store"]) == (0, None)


def test_text_for_people_has_the_store_its_options_and_the_problems() -> None:
    done = command([], {**ON, "routing_store_type": "noop", "oops": 1}, "routing_stores", {})
    assert done.stdout.splitlines()[:3] == [
        "FD_PLUGINS: 'routing_stores': FastDeploy loads this package",
        "FastDeploy: not installed here",
        "engine: does not start",
    ]
    assert "store: noop from fastdeploy-routing-plugins" in done.stdout
    assert "problem: unknown key 'oops'" in done.stdout


@pytest.mark.parametrize("family", ["a", "d", "e"])
def test_an_installed_fastdeploy_is_recognised(family: str) -> None:
    tree = HERE / "standin" / family
    code, said = check({**ON, "routing_store_type": "noop"}, PYTHONPATH=str(tree))
    assert (code, said["fastdeploy"]) == (0, {"path": str(tree / "fastdeploy"), "family": family.upper()})


def test_a_fastdeploy_that_is_not_supported_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "fastdeploy").mkdir()
    (tmp_path / "fastdeploy/__init__.py").touch()
    code, said = check({**ON, "routing_store_type": "noop"}, PYTHONPATH=str(tmp_path))
    assert (code, said["problems"]) == (1, ["the FastDeploy that is installed here is of no known family"])


def test_malformed_json_is_wrong_usage() -> None:
    assert command([], "{oops", "routing_stores", {}).returncode == 2
