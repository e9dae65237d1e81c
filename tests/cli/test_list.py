"""``fd-routing list`` shows what is there, whatever is broken."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .helpers import GROUP, install, run, run_json

if TYPE_CHECKING:
    from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: fd-routing-x\nVersion: 1.2\n"
MARKER = "import pathlib, sys\npathlib.Path(__file__).with_name('imported').touch()\nraise SystemExit('boom')\n"


def states(env: dict[str, str]) -> dict[str, str]:
    return {store["name"]: store["state"] for store in run_json("list", env=env)["stores"]}


def test_the_built_in_stores_are_found() -> None:
    assert states({}) == {"local": "found", "noop": "found", "rdma": "found"}


def test_people_get_a_table_with_a_header() -> None:
    lines = run("list").stdout.splitlines()

    assert [line.split()[0] for line in lines] == ["NAME", "local", "noop", "rdma"]


def test_a_foreign_store_is_listed_with_where_it_comes_from(tmp_path: Path) -> None:
    stores = {store["name"]: store for store in run_json("list", env=install(tmp_path, "other"))["stores"]}

    found = stores["other"]
    assert (found["distribution"], found["version"], found["target"], found["location"]) == (
        "fd-routing-other",
        "1.2",
        "plugin_fd_routing_other",
        str(tmp_path / "fd_routing_other-1.2.dist-info"),
    )


def test_nothing_of_a_plugin_is_imported(tmp_path: Path) -> None:
    run("list", env=install(tmp_path, "loud", code=MARKER))

    assert not (tmp_path / "imported").exists()


def test_two_packages_with_one_name_are_duplicates(tmp_path: Path) -> None:
    install(tmp_path, "twice", distribution="one")
    env = install(tmp_path, "twice", distribution="two")

    assert states(env)["twice"] == "duplicate"


def test_a_package_that_offers_a_built_in_name_is_a_duplicate(tmp_path: Path) -> None:
    assert states(install(tmp_path, "local", distribution="usurper"))["local"] == "duplicate"


def test_a_name_that_no_store_can_have_is_marked(tmp_path: Path) -> None:
    assert states(install(tmp_path, "Bad-Name", distribution="bad"))["Bad-Name"] == "invalid name"


def test_a_disabled_store_is_marked() -> None:
    assert states({"FD_ROUTING_STORE_DISABLED": "noop,rdma"}) == {
        "local": "found",
        "noop": "disabled",
        "rdma": "disabled",
    }


def test_a_store_off_the_allow_list_is_marked() -> None:
    assert states({"FD_ROUTING_STORES_ALLOWED": "noop"}) == {"local": "disabled", "noop": "found", "rdma": "disabled"}


def test_a_store_behind_stale_metadata_is_hidden(tmp_path: Path) -> None:
    install(tmp_path / "new", "late", distribution="pack", version="2.0")
    install(tmp_path / "old", "late", distribution="pack", version="1.0", code=None, entry_points="")
    env = {"PYTHONPATH": f"{tmp_path / 'old'}:{tmp_path / 'new'}"}

    assert states(env)["late"] == "hidden"


def test_what_is_wrong_with_a_state_is_explained(tmp_path: Path) -> None:
    ended = run("list", env={"FD_ROUTING_STORE_DISABLED": "noop"})

    assert ended.stderr.startswith("disabled: see FD_ROUTING_STORE_DISABLED")


@pytest.mark.parametrize(
    ("metadata", "entry_points"),
    [
        (b"\xff\xfe\x00 no text", None),
        (b"", None),
        (METADATA, b"\xff\xfe[" + GROUP.encode()),
        (METADATA, f"[{GROUP}]\nno equals sign\n"),
        (METADATA, f"[{GROUP}\nx = y\n"),
        (METADATA, f"[{GROUP}]\n= nameless\n"),
        (METADATA, f"[{GROUP}]\nx =\n"),
        (METADATA, f"[{GROUP}]\nx = a b c : : [\n"),
        (METADATA, f"x = before any section\n[{GROUP}]\n"),
        (METADATA, f"[{GROUP}]\n\x1b[31mred = m\n[red]x = m\n\u202enam\u200be = m\n"),
        ("Name: \x1b[31mevil\nVersion: \x1b]0;title\x07\n", None),
    ],
)
def test_nonsense_metadata_stops_nothing(
    tmp_path: Path, metadata: str | bytes | None, entry_points: str | bytes | None
) -> None:
    env = install(tmp_path, "x", metadata=metadata, entry_points=entry_points)

    ended = run("list", env=env)

    # Control characters of foreign metadata never reach the terminal.
    assert (ended.returncode, "local" in ended.stdout, "\x1b" in ended.stdout + ended.stderr) == (0, True, False)


def test_unreadable_metadata_is_mentioned(tmp_path: Path) -> None:
    env = install(tmp_path, "x", metadata=b"")

    assert "fd_routing_x-1.2.dist-info" in run("list", env=env).stderr


@pytest.mark.parametrize("value", ["{", "@/does/not/exist", '{"routing_store_type": "gone"}', "\udcff"])
def test_a_broken_configuration_in_the_environment_stops_nothing(value: str) -> None:
    ended = run("list", env={"FD_ROUTING_STORE_CONFIG": value, "FD_ROUTING_NAMESPACE": value})

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("module", ["numpy", "msgspec", "pluggy", "rich", "xxhash", "zmq"])
def test_a_broken_dependency_stops_nothing(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise ImportError('broken')")

    ended = run("list", env={"PYTHONPATH": str(tmp_path)})

    assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 4)


def test_strange_entries_on_the_path_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 no zip")
    (tmp_path / "file.txt").write_text("no folder")
    path = f"{tmp_path / 'missing'}:{tmp_path / 'broken.zip'}:{tmp_path / 'file.txt'}"

    assert states({"PYTHONPATH": path}) == {"local": "found", "noop": "found", "rdma": "found"}


def test_it_runs_as_a_module_too() -> None:
    program = "from fastdeploy_routing_plugins.cli.main import main; main()"
    ended = subprocess.run([sys.executable, "-c", program, "list"], capture_output=True, text=True, timeout=60)

    assert ended.stdout == run("list").stdout
