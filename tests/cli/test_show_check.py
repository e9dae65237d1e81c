"""``fd-routing show`` and ``fd-routing check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .helpers import GOOD_PLUGIN, environment, install, run, run_json

if TYPE_CHECKING:
    from pathlib import Path


def test_show_tells_what_a_built_in_store_declares() -> None:
    shown = run_json("show", "local")

    assert (shown["name"], shown["capabilities"], shown["host_keys"]) == (
        "local",
        ["READ", "LIST", "NOTIFY", "RANGE"],
        {"local_store_dir": "store_dir"},
    )


def test_show_lists_the_options_of_a_foreign_store(tmp_path: Path) -> None:
    options = {o["name"]: o for o in run_json("show", "other", env=install(tmp_path, "other"))["options"]}

    assert (options["path"]["required"], options["path"]["of"]) == (True, "store")


def test_show_lists_the_options_that_every_store_has() -> None:
    options = {option["name"]: option["of"] for option in run_json("show", "noop")["options"]}

    assert options["namespace"] == "every store"


def test_show_hides_the_default_of_a_secret(tmp_path: Path) -> None:
    env = install(tmp_path, "other")

    assert "hush" not in run("show", "other", env=env).stdout + run("show", "other", "--json", env=env).stdout


def test_markup_in_documentation_is_shown_as_it_is(tmp_path: Path) -> None:
    assert "[bold]key[/bold]" in run("show", "other", env=install(tmp_path, "other")).stdout


def test_show_takes_one_of_two_distributions(tmp_path: Path) -> None:
    install(tmp_path, "twice", distribution="one")
    env = install(tmp_path, "twice", distribution="two")

    assert run_json("show", "twice@two", env=env)["distribution"] == "two"


@pytest.mark.parametrize(
    ("name", "env", "code"),
    [
        ("lokal", {}, "unknown_store"),
        ("response", {}, "unknown_store"),
        ("noop", {"FD_ROUTING_STORE_DISABLED": "noop"}, "store_disabled"),
    ],
)
def test_show_of_what_cannot_be_shown_is_an_error(name: str, env: dict[str, str], code: str) -> None:
    assert run_json("show", name, env=env)["error"]["code"] == code


def test_show_of_an_unknown_store_ends_with_2() -> None:
    assert run("show", "lokal").returncode == 2


def steps(*arguments: str, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    stores = run_json("check", *arguments, env=env or {})["stores"]
    assert len(stores) == 1
    return {step["step"]: step for step in stores[0]["steps"]}


def test_check_of_a_store_that_works_takes_every_step() -> None:
    assert {step["state"] for step in steps("noop").values()} == {"ok"}


def test_check_of_all_stores_is_fine_out_of_the_box() -> None:
    ended = run("check")

    assert (ended.returncode, ended.stdout.splitlines()[0], "noop: ok" in ended.stdout) == (0, "local: ok", True)


OPTIONAL = GOOD_PLUGIN.replace("path: str", "path: str = ''") + "\ndef preflight(config):\n    import gone\n"
BROKEN = {
    "raises": ("raise ValueError('\\x1b[31mred')", "import", "store_load"),
    "exits": ("raise SystemExit(0)", "import", "store_load"),
    "dependency": ("import not_installed_anywhere", "import", "missing_dependency"),
    "no_hook": ("x = 1", "hook", "invalid_plugin"),
    "no_spec": (GOOD_PLUGIN.replace("return StoreSpec", "return str"), "hook", "invalid_plugin"),
    "bad_spec": (GOOD_PLUGIN.replace('summary="made up"', "summary=7"), "spec", "invalid_plugin"),
    "other_name": (GOOD_PLUGIN.replace("name=NAME", "name='x'"), "spec", "invalid_plugin"),
    "new_api": (GOOD_PLUGIN.replace("(1, 0)", "(2, 0)"), "api", "incompatible_store"),
    "preflight": (
        OPTIONAL.replace("install_hint", "preflight=preflight, install_hint"),
        "preflight",
        "missing_dependency",
    ),
    "create": (OPTIONAL.replace("return NoopBackend()", "import gone"), "backend", "missing_dependency"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_check_stops_at_the_step_that_fails(tmp_path: Path, case: str) -> None:
    code, step, error = BROKEN[case]
    found = steps(case, env=install(tmp_path, case, code=code))

    failed = [(each["step"], each["code"]) for each in found.values() if each["state"] == "failed"]
    assert failed == [(step, error)]


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_store_fails_the_check_of_all_but_not_the_others(tmp_path: Path, case: str) -> None:
    checked = run_json("check", env=install(tmp_path, case, code=BROKEN[case][0]))

    assert {store["name"]: store["ok"] for store in checked["stores"]} == {
        case: False,
        "local": True,
        "noop": True,
        "rdma": True,
    }


@pytest.mark.parametrize("arguments", [["raises"], []])
def test_a_failed_check_ends_with_1(tmp_path: Path, arguments: list[str]) -> None:
    assert run("check", *arguments, env=install(tmp_path, "raises", code=BROKEN["raises"][0])).returncode == 1


def test_check_shows_message_and_hint(tmp_path: Path) -> None:
    text = run("check", "preflight", env=install(tmp_path, "preflight", code=BROKEN["preflight"][0])).stdout

    assert ("'gone'" in text, "pip install it" in text) == (True, True)


def test_check_does_not_let_a_plugin_colour_the_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in run("check", "raises", env=install(tmp_path, "raises", code=BROKEN["raises"][0])).stdout


def test_check_explains_a_store_that_stale_metadata_hides(tmp_path: Path) -> None:
    install(tmp_path / "new", "late", distribution="pack", version="2.0")
    install(tmp_path / "old", "late", distribution="pack", version="1.0", code=None, entry_points="")
    env = {"PYTHONPATH": f"{tmp_path / 'old'}:{tmp_path / 'new'}"}

    assert "pack 1.0" in steps("late", env=env)["found"]["detail"]


def test_check_of_an_unknown_store_fails_at_finding_it() -> None:
    assert steps("lokal")["found"]["hint"] == "did you mean 'local'?"


def test_check_looks_at_options_that_are_given() -> None:
    assert steps("local", "--config", '{"fsinc": true}')["config"]["state"] == "failed"


def test_check_takes_a_whole_configuration() -> None:
    assert steps("noop", "--config", '{"routing_store_type": "noop"}')["config"]["state"] == "ok"


def test_check_reads_the_environment_for_its_store() -> None:
    env = {"FD_ROUTING_STORE_CONFIG": '{"routing_store_type": "local", "routing_store_config": {"fsinc": 1}}'}

    assert steps("local", env=env)["config"]["state"] == "failed"


def test_check_does_not_read_the_environment_for_another_store() -> None:
    env = {"FD_ROUTING_STORE_CONFIG": '{"routing_store_type": "local", "routing_store_config": {"fsinc": 1}}'}

    assert steps("noop", env=env)["config"]["state"] == "ok"


def test_options_without_a_store_to_check_are_wrong_usage() -> None:
    assert run("check", "--config", "{}").returncode == 2


def test_what_an_administrator_forbids_is_no_failure() -> None:
    ended = run("check", env={"FD_ROUTING_STORE_DISABLED": "noop"})

    assert (ended.returncode, "noop: disabled" in ended.stdout) == (0, True)


def test_asking_for_a_forbidden_store_is_a_failure() -> None:
    assert run("check", "noop", env={"FD_ROUTING_STORE_DISABLED": "noop"}).returncode == 1


def test_unreadable_metadata_fails_the_check_of_all(tmp_path: Path) -> None:
    assert run("check", env=install(tmp_path, "x", metadata=b"")).returncode == 1


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ('{"store_dir": "/somewhere"}', 0),
        ('{"routing_store_type": "local", "routing_store_config": {"stor_dir": "/somewhere"}}', 1),
        ("{malformed", 1),
    ],
)
def test_a_check_of_all_stores_minds_the_environment_where_it_names_one(said: str, code: int) -> None:
    assert run("check", env=environment(FD_ROUTING_STORE_CONFIG=said)).returncode == code


@pytest.mark.parametrize("said", ['{"store_dir": "/some where"}', "@my file.json"])
def test_the_next_step_has_the_configuration_that_was_checked(tmp_path: Path, said: str) -> None:
    (tmp_path / "my file.json").write_text('{"store_dir": "/x"}')

    ended = run("check", "local", "--config", said, cwd=tmp_path)

    assert ended.stderr == f"next: fd-routing try --store local --config '{said}' makes a round trip\n"


def test_no_secret_is_shown_by_a_check() -> None:
    ended = run("check", "rdma", "--config", '{"secret": "s3cr3t"}')

    assert ended.returncode == 0
    assert "s3cr3t" not in ended.stdout + ended.stderr
    assert "next: fd-routing try --store rdma --config ..." in ended.stderr


NOTHING_OPENED = "  nothing was opened: `fd-routing try` does that"


def test_a_check_of_a_folder_that_is_no_store_says_that_nothing_was_opened(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("not ours")

    assert run("check", "local", "--config", f'{{"store_dir": "{tmp_path}"}}').stdout.endswith(f"{NOTHING_OPENED}\n")


@pytest.mark.parametrize(("arguments", "times"), [(["local"], 1), (["noop"], 1), ([], 1)])
def test_a_check_says_so_of_the_store_that_the_environment_names(arguments: list[str], times: int) -> None:
    env = {"FD_ROUTING_STORE_CONFIG": '{"routing_store_type": "local", "routing_store_config": {"store_dir": "/x"}}'}

    assert run("check", *arguments, env=env).stdout.count(NOTHING_OPENED) == times


@pytest.mark.parametrize("variable", ["FD_ROUTING_STORE_DISABLED", "FD_ROUTING_STORES_ALLOWED"])
def test_a_check_names_the_variable_that_forbids_a_store(variable: str) -> None:
    value = "local" if variable.endswith("DISABLED") else "noop"

    assert f"local: disabled by {variable}='{value}'" in run("check", env={variable: value}).stdout.splitlines()


@pytest.mark.parametrize("arguments", [[], ["local"]])
def test_an_allow_list_that_names_no_installed_store_is_warned_of(arguments: list[str]) -> None:
    ended = run("check", *arguments, env={"FD_ROUTING_STORES_ALLOWED": "loca"})

    assert ended.stderr == "warning: FD_ROUTING_STORES_ALLOWED='loca' names no store that is installed\n"
