from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .helpers import COMMAND, GOOD_PLUGIN, environment, install, invoke, routing, run, run_json, started

if TYPE_CHECKING:
    from fastdeploy_routing_plugins import SyncStore

COMMANDS = ("list", "show", "check", "try", "ls", "stat", "get", "diff", "convert", "verify", "rm", "clean", "demo")
HEAVY = re.compile(
    r"numpy|paddle|torch|rich|msgspec|pluggy|zmq|xxhash|fastdeploy_routing_plugins\.(stores|store|demo)"
)


def loaded_by(*arguments: str) -> set[str]:
    """Names of the modules that the command imports."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", COMMAND, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--json"], ["list", "--help"], ["--version"]])
def test_help_and_list_load_nothing_heavy(arguments: list[str]) -> None:
    loaded = loaded_by(*arguments)

    assert "click" in loaded
    assert [name for name in loaded if HEAVY.match(name)] == []


def test_reading_commands_load_no_rich_when_nobody_watches(filled: SyncStore, here: list[str]) -> None:
    assert not any(name.startswith("rich") for name in loaded_by("ls", *here))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    ended = run(name, "--help")

    assert (ended.returncode, "--json" in ended.stdout, "--debug" in ended.stdout) == (0, True, True)


def test_help_names_every_command() -> None:
    text = run("--help").stdout

    assert [name for name in COMMANDS if not re.search(rf"^  {name} ", text, re.MULTILINE)] == []


def test_help_tells_how_to_complete() -> None:
    assert "_FD_ROUTING_COMPLETE=bash_source" in run("--help").stdout


def test_the_shell_gets_its_completion_script() -> None:
    assert "complete" in run(env={"_FD_ROUTING_COMPLETE": "bash_source"}).stdout


def test_the_shell_gets_completions_of_command_names() -> None:
    env = {"_FD_ROUTING_COMPLETE": "bash_complete", "COMP_WORDS": "fd-routing ver", "COMP_CWORD": "1"}

    assert run(env=env).stdout.split() == ["plain,verify"]


def test_no_arguments_show_the_help() -> None:
    ended = run()

    assert (ended.returncode, ended.stdout) == (0, run("--help").stdout)


def test_version_is_that_of_the_metadata() -> None:
    assert re.fullmatch(r"fd-routing \d+\.\d+\.\d+\n", run("--version").stdout)


def test_version_survives_lost_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdeploy_routing_plugins.cli.main.DISTRIBUTION", "not-installed-anywhere")

    assert invoke("--version").stdout == "fd-routing of unknown version (no metadata installed)\n"


def test_a_mistyped_command_is_answered_with_the_right_one() -> None:
    ended = run("verfy")

    assert (ended.returncode, ended.stderr) == (
        2,
        "error: there is no command 'verfy'\nhint: did you mean 'verify'?\n",
    )


def test_a_wrong_option_points_to_the_help() -> None:
    ended = run("ls", "--nmespace", "x")

    assert (ended.returncode, "hint: fd-routing ls --help" in ended.stderr) == (2, True)


def test_wrong_usage_is_json_if_json_was_asked_for() -> None:
    ended = run("get", "--json")

    assert (ended.returncode, json.loads(ended.stdout)["error"]["code"], ended.stderr) == (2, "usage", "")


def test_json_may_stand_before_the_command() -> None:
    assert "stores" in json.loads(run("--json", "list").stdout)


def test_an_id_after_two_dashes_is_no_flag(filled: SyncStore, here: list[str]) -> None:
    filled.put("--json", routing(3))

    assert run("stat", *here, "--", "--json").stdout.startswith("id        --json\n")


def test_errors_are_a_line_and_a_hint(here: list[str]) -> None:
    ended = run("show", "lokal")

    assert [line.partition(":")[0] for line in ended.stderr.splitlines()] == ["error", "hint"]


def test_errors_leave_stdout_empty() -> None:
    assert run("show", "lokal").stdout == ""


def test_errors_in_json_have_code_message_and_hint() -> None:
    error = run_json("show", "lokal")["error"]

    assert (error["code"], bool(error["message"]), error["hint"]) == ("unknown_store", True, "did you mean 'local'?")


def test_config_errors_in_json_list_every_problem() -> None:
    config = '{"routing_store_type": "local", "routing_store_config": {"stor_dir": "/x", "fsync": 7}}'

    assert len(run_json("ls", "--config", config)["error"]["problems"]) == 2


def test_an_expected_error_has_a_traceback_with_debug() -> None:
    assert "Traceback" in run("show", "lokal", "--debug").stderr


@pytest.fixture
def broken_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``list`` fail in a way that nobody foresaw."""

    def scan() -> None:
        raise ZeroDivisionError("one\n\x1b[31mtwo")

    monkeypatch.setattr("fastdeploy_routing_plugins.cli.cmd_list.scan", scan)


@pytest.mark.usefixtures("broken_command")
def test_an_unforeseen_error_is_one_line() -> None:
    result = invoke("list")

    line = "error: internal error: ZeroDivisionError: one \\x1b[31mtwo (run with --debug)\n"
    assert (result.exit_code, result.stderr) == (1, line)


@pytest.mark.usefixtures("broken_command")
def test_an_unforeseen_error_is_json_if_json_was_asked_for() -> None:
    result = invoke("list", "--json")

    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (1, "internal")


@pytest.mark.usefixtures("broken_command")
def test_an_unforeseen_error_has_a_traceback_with_debug() -> None:
    assert "Traceback" in invoke("list", "--debug").stderr


def test_a_reader_that_leaves_early_is_no_noise(store: SyncStore, here: list[str]) -> None:
    for number in range(1500):  # more than a pipe holds
        store.put(f"{number}:{'y' * 60}", routing(0))
    with started("ls", *here) as process:
        assert process.stdout is not None
        assert process.stderr is not None

        process.stdout.readline()
        process.stdout.close()

        assert (process.stderr.read(), process.wait(60)) == ("", 141)


def test_a_reader_that_was_never_there_is_no_noise() -> None:
    ended = subprocess.run(
        ["bash", "-c", f"{COMMAND} list | true; echo ${{PIPESTATUS[0]}}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (ended.stderr, ended.stdout.strip() in ("0", "141")) == ("", True)


def test_a_full_disk_behind_stdout_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [COMMAND, "list"], env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )

    assert (ended.returncode, ended.stderr) == (1, "error: cannot write the result: No space left on device\n")


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("flag", ["", "--json"])
def test_closed_streams_are_no_reason_to_fail(closed: str, flag: str) -> None:
    command = f"{COMMAND} list {flag} {closed}"
    ended = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True, timeout=60)

    assert ended.returncode == 0


def test_ctrl_c_ends_a_wait_without_a_traceback(filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    with started("get", "missing", "-o", str(tmp_path / "x.npy"), "--timeout", "60", *here) as process:
        _until_it_waits(process.pid)

        process.send_signal(signal.SIGINT)

        assert (*process.communicate(timeout=30), process.returncode) == ("", "", 130)


def _until_it_waits(pid: int) -> None:
    """Returns when a process waits for a change in the store (it holds an inotify descriptor)."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        links = Path(f"/proc/{pid}/fd")
        if any("inotify" in os.readlink(link) for link in links.iterdir() if link.is_symlink()):
            return
        time.sleep(0.02)
    raise AssertionError("the process never waited")


NOISY = (
    "import os, sys, atexit\nprint('hello')\nos.write(1, b'from C\\n')\natexit.register(print, 'bye')\n" + GOOD_PLUGIN
)


def test_a_plugin_that_prints_does_not_spoil_the_json(tmp_path: Path) -> None:
    env = install(tmp_path, "noisy", code=NOISY)

    assert run_json("show", "noisy", env=env)["name"] == "noisy"


def test_what_a_plugin_prints_goes_to_stderr_with_json(tmp_path: Path) -> None:
    env = install(tmp_path, "noisy", code=NOISY)

    assert {"hello", "from C", "bye"} <= set(run("show", "noisy", "--json", env=env).stderr.split("\n"))


def test_output_in_a_narrow_encoding_is_escaped(store: SyncStore, here: list[str]) -> None:
    store.put("日本", routing(1))

    ended = run("ls", *here, env={"PYTHONIOENCODING": "ascii"})

    assert (ended.returncode, "\\u65e5\\u672c" in ended.stdout) == (0, True)


def test_json_is_plain_ascii(store: SyncStore, here: list[str]) -> None:
    store.put("\x7f\u202e日本", routing(1))

    assert run("ls", *here, "--json").stdout.isascii()
