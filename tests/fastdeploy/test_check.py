"""``fd-routing check --fastdeploy``: what an engine would do, said before it is started."""

from __future__ import annotations

import json
import os
import shutil
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
    assert said["engine"] == (
        "would store routing through this package, in 'local', if FastDeploy were installed here"
    )


def test_without_fastdeploy_there_is_a_warning_that_nothing_was_compared() -> None:
    assert "FastDeploy is not installed here" in check(ON)[1]["warnings"][0]


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


@pytest.mark.parametrize("plugins", [None, "routing_stores"])
def test_all_that_is_wrong_is_said_at_once(plugins: str | None) -> None:
    said = check({"enable_routing_replay": "false", "routing_store_type": "locl", "local_store_dirr": "/x"},
                 plugins=plugins)[1]  # fmt: skip
    text = " ".join(said["problems"])
    assert [word for word in ("enable_routing_replay", "local_store_dirr", "'locl'") if word not in text] == []


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
    assert done.stdout.splitlines()[:4] == [
        "FD_PLUGINS: 'routing_stores': FastDeploy loads this package",
        "FD_ROUTING_STRICT: not set: a FastDeploy that is not as expected gets a warning",
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


def test_an_installed_fastdeploy_that_fits_stores() -> None:
    said = check({**ON, "routing_store_type": "noop"}, PYTHONPATH=str(HERE / "standin/e"))[1]
    assert (said["engine"], said["warnings"]) == ("stores routing through this package, in 'noop'", [])


def unknown(tmp_path: Path) -> str:
    """A FastDeploy whose routing replay is of none of the known families."""
    tree = tmp_path / "unknown"
    shutil.copytree(HERE / "standin/a", tree)
    file = tree / CACHE
    file.write_text(file.read_text().replace("def get_routing_store(fd_config", "def get_routing_store(config"))
    return str(tree)


def test_a_fastdeploy_of_no_known_family_keeps_its_own_stores(tmp_path: Path) -> None:
    code, said = check({**ON, "routing_store_type": "noop"}, PYTHONPATH=unknown(tmp_path))
    assert (code, said["problems"][0]) == (1, "the FastDeploy that is installed here is of no known family")
    assert said["engine"].startswith("starts with one warning, and uses FastDeploy's own stores")


def test_with_the_strict_variable_it_does_not_start(tmp_path: Path) -> None:
    said = check(ON, PYTHONPATH=unknown(tmp_path), FD_ROUTING_STRICT="1")[1]
    assert (said["strict"]["on"], said["engine"]) == (True, "does not start")


MANAGER = "fastdeploy/cache_manager/routing_cache_manager.py"
STORE = "fastdeploy/cache_manager/routing_store.py"
CACHE = "fastdeploy/model_executor/layers/moe/routing_indices_cache.py"


def renamed(tmp_path: Path, family: str, file: str, old: str, new: str) -> str:
    """A stand-in whose store module has its own text, as FastDeploy's, in which something was replaced."""
    tree = tmp_path / "renamed"
    shutil.copytree(HERE / "standin" / family, tree)
    if file == STORE:
        shutil.copy(HERE / "standin/common/second_store.py", tree / file)
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new))
    return str(tree)


@pytest.mark.parametrize(
    ("family", "file", "old", "new", "engine"),
    [
        (
            "e",
            MANAGER,
            "def on_request_finished(self, request_id",
            "def on_request_finished(self, req_id",
            "starts with",
        ),
        (
            "e",
            STORE,
            "def submit_put_task(self, routing_indices",
            "def submit_put_task(self, indices",
            "does not start",
        ),
        ("a", CACHE, "def split_request_id(self, request_id", "def split_request_id(self, req_id", "starts with"),
    ],
)
def test_what_the_hook_would_not_patch_is_named_with_its_consequence(
    tmp_path: Path, family: str, file: str, old: str, new: str, engine: str
) -> None:
    tree = renamed(tmp_path, family, file, old, new)
    code, said = check({**ON, "routing_store_type": "noop"}, PYTHONPATH=tree)
    method = old.partition("(")[0].removeprefix("def ")
    assert (code, said["engine"][: len(engine)]) == (1, engine)
    assert f".{method} takes (" in said["problems"][0]


def test_what_the_hook_only_makes_better_does_not_keep_routing_from_its_store(tmp_path: Path) -> None:
    file = "fastdeploy/output/token_processor.py"
    tree = renamed(tmp_path, "e", file, "def _finalize_routing(self, task_id", "def _finalize_routing(self, id")
    code, said = check({**ON, "routing_store_type": "noop"}, PYTHONPATH=tree)
    assert (code, said["engine"]) == (1, "stores routing through this package, in 'noop'")


def test_nothing_of_fastdeploys_code_runs(tmp_path: Path) -> None:
    tree = renamed(
        tmp_path, "e", MANAGER, "class RoutingCacheManager", "raise SystemExit(9)\nclass RoutingCacheManager"
    )
    assert check({**ON, "routing_store_type": "noop"}, PYTHONPATH=tree)[0] == 0


def test_a_source_that_cannot_be_read_is_said_not_to_be_compared(tmp_path: Path) -> None:
    tree = renamed(tmp_path, "e", MANAGER, "class RoutingCacheManager", "class class RoutingCacheManager")
    warning = check({**ON, "routing_store_type": "noop"}, PYTHONPATH=tree)[1]["warnings"][0]
    assert "routing_cache_manager was not compared with what is expected: SyntaxError" in warning


@pytest.mark.parametrize("value", ["maybe", "2"])
def test_a_strict_variable_that_means_nothing_is_a_problem(value: str) -> None:
    code, said = check(ON, FD_ROUTING_STRICT=value)
    assert (code, said["engine"]) == (1, "does not start")
    assert f"FD_ROUTING_STRICT must be 1, true, yes or on, or 0, false, no or off, got {value!r}" in said["problems"]


@pytest.mark.parametrize(
    ("value", "on"),
    [("1", True), ("TRUE", True), ("yes", True), ("on", True)]
    + [(value, False) for value in ("", "0", "false", "No", "off")],
)
def test_the_strict_variable_takes_the_usual_words(value: str, on: bool) -> None:
    assert check(ON, FD_ROUTING_STRICT=value)[1]["strict"]["on"] is on


def test_the_writers_limits_are_checked_too() -> None:
    code, said = check(ON, FD_ROUTING_WRITER_CONFIG='{"arena_bites": 3}')
    assert (code, said["engine"]) == (1, "does not start")
    assert "unknown option 'arena_bites'" in said["problems"][0]


@pytest.mark.parametrize("family", ["a", "d"])
def test_response_is_a_problem_where_fastdeploy_has_no_such_thing(family: str) -> None:
    code, said = check({**ON, "routing_store_type": "response"}, PYTHONPATH=str(HERE / "standin" / family))
    assert (code, said["engine"]) == (1, "does not start")
    assert "cannot send routing with its replies" in said["problems"][0]


def test_response_is_fine_in_2_6() -> None:
    code, said = check({**ON, "routing_store_type": "response"}, PYTHONPATH=str(HERE / "standin/e"))
    assert (code, said["engine"]) == (0, "sends routing with its replies; no store is used")


@pytest.mark.parametrize("given", [{"enable_routing_replay": "false"}, {"enable_routing_replay": 1}, {"oops": 1}])
def test_what_is_wrong_stops_an_engine_that_records_nothing_as_well(given: dict[str, Any]) -> None:
    assert check(given)[1]["engine"] == "does not start"


@pytest.mark.parametrize("key", ["fsync", "namespace"])
def test_an_option_of_the_store_among_fastdeploys_keys_is_sent_to_its_place(key: str) -> None:
    problems = check({**ON, key: True})[1]["problems"]
    assert problems == [f"{key!r} is an option of the store: store options go into routing_store_config"]


def test_the_values_that_an_option_may_have_are_listed() -> None:
    problems = check({**ON, "routing_store_config": {"layout": "paddle"}})[1]["problems"]
    assert "'safetensors' | 'pdtensor'" in problems[0]


def test_malformed_json_is_wrong_usage() -> None:
    assert command([], "{oops", "routing_stores", {}).returncode == 2


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FD_ROUTING_WRITER_CONFIG", '{"arena_bites": 3}', "unknown option 'arena_bites'"),
        ("FD_ROUTING_STRICT", "maybe", "FD_ROUTING_STRICT must be"),
    ],
)
def test_the_engine_stops_at_its_command_line_as_was_said(
    tmp_path: Path, variable: str, value: str, message: str
) -> None:
    code = f"""
from fastdeploy.engine.args_utils import EngineArgs
EngineArgs(routing_replay_config={ON!r}).create_routing_repaly_config()
"""
    environ = {key: text for key, text in os.environ.items() if not key.startswith("FD_")}
    environ |= {"FD_PLUGINS": "routing_stores", "PYTHONPATH": str(HERE / "standin/e"), variable: value}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert message in done.stderr.splitlines()[-1]
