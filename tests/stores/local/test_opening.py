"""Opening: a marker proves that the folder is ours, and nothing in it is deleted."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.errors import ConfigError, RoutingError, StoreClosedError
from fastdeploy_routing_plugins.stores.local.config import LocalConfig

from ..helpers import descriptors, opened, part, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..helpers import Children

ITEM = part()


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="fd-routing-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_missing_folder_is_created_with_its_parents(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "b"):
        pass
    assert json.loads((tmp_path / "a" / "b" / ".fd-routing-store").read_bytes()) == {
        "format": "fd-routing-store",
        "version": 1,
    }


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
    before = snapshot(tmp_path)
    with opened(tmp_path):
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["README", "ns", ".hidden"])
def test_a_folder_with_foreign_files_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="holds files that are not") as caught, opened(tmp_path):
        pass
    assert "empty or new folder" in caught.value.hint


def test_a_refused_folder_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError), opened(tmp_path):
        pass
    assert snapshot(tmp_path) == before


def test_the_root_of_a_volume_can_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with opened(tmp_path) as backend:
        assert backend._list("") == []


@pytest.mark.parametrize(
    "marker",
    [
        b"",
        b"{}",
        b"not json",
        b"[" * 4096,
        b'{"format":"other","version":1}',
        b'{"format":"fd-routing-store","version":2}',
        b'{"format":"fd-routing-store","version":"1"}',
        b"\xff" * 5000,
    ],
)
def test_another_marker_is_refused(tmp_path: Path, marker: bytes) -> None:
    (tmp_path / ".fd-routing-store").write_bytes(marker)
    with pytest.raises(ConfigError), opened(tmp_path):
        pass


def test_a_newer_store_asks_for_an_upgrade(tmp_path: Path) -> None:
    (tmp_path / ".fd-routing-store").write_text('{"format":"fd-routing-store","version":2}')
    with pytest.raises(ConfigError, match="upgrade"), opened(tmp_path):
        pass


@pytest.mark.parametrize("kind", ["folder", "fifo", "symlink"])
def test_a_marker_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / ".fd-routing-store"
    if kind == "folder":
        marker.mkdir()
    elif kind == "fifo":
        os.mkfifo(marker)
    else:
        marker.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError), opened(tmp_path):
        pass


@pytest.mark.parametrize("way", ["file", "below a file", "loop", "too long"])
def test_a_path_that_cannot_be_a_folder_is_a_fault_of_the_configuration(tmp_path: Path, way: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = {"file": "file", "below a file": "file/x", "loop": "loop/x", "too long": "x" * 300}[way]
    with pytest.raises(ConfigError), opened(tmp_path / path):
        pass


NO_PATHS = {
    "empty": "",
    "with NUL": "a\0b",
    "http": "http://x/y",
    "s3": "S3://bucket/run",
    "redis": "redis://host:6379",
    "file URL": "file:///data/x",
    "unknown user": "~nosuchuser/x",
    "unknown user alone": "~nosuchuser",
    "lone surrogate": "/x\ud800",
    "long": "/x" * 3000,
    "long name": "x" * 6000,
}


@pytest.mark.parametrize("store_dir", NO_PATHS.values(), ids=NO_PATHS)
def test_a_path_that_is_none_is_refused_by_the_configuration(store_dir: str) -> None:
    with pytest.raises(ConfigError, match=r"store_dir .*: (write|at most)") as caught:
        LocalConfig(store_dir=store_dir)
    assert len(str(caught.value)) < 400


def test_a_home_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(ConfigError, match="home"):
        LocalConfig(store_dir="~/x")


def test_what_looks_like_a_url_further_on_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with opened("./http://x"):
        assert (tmp_path / "http:" / "x" / ".fd-routing-store").exists()


def test_a_path_of_two_thousand_folders_is_one(tmp_path: Path) -> None:
    path = str(tmp_path) + "/d" * ((4000 - len(str(tmp_path))) // 2)
    try:
        with opened(path) as backend:
            put(backend, ITEM)
            assert backend._list("") == [ITEM.name]
    finally:  # too deep for whoever tidies up
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_home_that_makes_the_path_too_long_is_a_fault_of_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/tmp" + "/x" * 2500)
    with pytest.raises(ConfigError), opened("~/store"):
        pass


def test_a_relative_path_without_a_working_folder_is_a_fault_of_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="absolute"), opened("store"):
        pass


def test_the_store_folder_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with opened(tmp_path / "link") as backend:
        put(backend, ITEM)
    with opened(tmp_path / "real") as backend:
        assert backend._list("") == [ITEM.name]


def test_a_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with opened("~/store"):
        assert (tmp_path / "store" / ".fd-routing-store").exists()


def test_a_relative_path_is_fixed_when_the_store_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with opened("store") as backend:
        monkeypatch.chdir("/")
        put(backend, ITEM)
        assert (tmp_path / "store" / "ns").exists()


def test_eight_processes_may_create_the_same_store_at_once(tmp_path: Path, children: Children) -> None:
    codes = []
    for attempt in range(5):
        pids = [children.start("write_some", tmp_path / f"s{attempt}", f"w{me}", 3) for me in range(8)]
        codes += [children.wait(pid) for pid in pids]
    assert codes == [0] * 40


def test_files_and_folders_get_what_the_umask_leaves(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with opened(tmp_path / "s") as backend:
            put(backend, ITEM)
    finally:
        os.umask(old)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "s").rglob("*") if path.is_file()}
    assert modes == {0o640}


@pytest.mark.parametrize("function", ["write_unprivileged", "read_unprivileged"])
def test_a_user_who_may_only_read_gets(public: Path, function: str, children: Children) -> None:
    with opened(public / "s") as backend:
        put(backend, part("theirs"))
    for path in (public / "s").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (public / "s").chmod(0o555)
    code = children.wait(children.start(function, public / "s"))
    assert code == 0


def test_a_place_where_this_user_may_not_create_is_a_fault_of_config(public: Path, children: Children) -> None:
    (public / "p").mkdir(0o555)
    code = children.wait(children.start("open_unprivileged", public / "p" / "s"))
    assert code == 0


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["put", "get", "list", "delete", "wait"])
def test_a_closed_store_says_so(tmp_path: Path, verb: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
    calls = {
        "put": lambda: put(backend, ITEM),
        "get": lambda: backend._get(ITEM.name),
        "list": lambda: backend._list("ns/"),
        "delete": lambda: backend._delete([ITEM.name]),
        "wait": lambda: backend._wait("ns/x/000000/routing/", (), 0),
    }
    with pytest.raises(StoreClosedError):
        calls[verb]()


def test_closing_after_a_failed_opening_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    from fastdeploy_routing_plugins.stores.local.backend import LocalBackend

    backend = LocalBackend(LocalConfig(store_dir=str(tmp_path)))
    with pytest.raises(ConfigError):
        backend._open()
    backend._close()


def test_a_thousand_openings_leave_no_descriptor_behind(tmp_path: Path) -> None:
    before = descriptors()
    for index in range(1000):
        with opened(tmp_path) as backend:
            if index % 100 == 0:
                put(backend, part(f"x:{index}"))
                backend._wait(f"ns/x=3a{index}/000000/routing/", (), 0)
    assert descriptors() == before


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("verb", ["put", "get", "list"])
def test_a_folder_that_goes_while_open_is_unavailable(tmp_path: Path, how: str, verb: str) -> None:
    store = tmp_path / "s"
    with opened(store) as backend:
        for path in (store / ".fd-routing-store", *store.glob(".tmp/*")):
            path.unlink()
        (store / ".tmp").rmdir()
        store.rmdir()
        if how == "replaced":
            store.mkdir()
        calls = {
            "put": lambda: put(backend, ITEM),
            "get": lambda: backend._get(ITEM.name),
            "list": lambda: backend._list("ns/"),
        }
        with pytest.raises(RoutingError, match="removed or replaced"):
            calls[verb]()
