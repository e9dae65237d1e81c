"""The service that the processes of one host and user share."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.errors import StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.metadata import rendezvous
from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry, MetadataClient
from fastdeploy_routing_plugins.stores.rdma.metadata.page import page_path

from .helpers import child, client_of, name, producing, says

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "runtime"
    folder.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    path = f"{folder}/fd-routing/{os.geteuid()}/ns.json"
    yield folder
    with suppress(FileNotFoundError):  # a process that was killed leaves it to the next that serves
        os.unlink(page_path(path))


def test_the_first_serves() -> None:
    with client_of(None) as client:
        assert client.status()["pid"] == os.getpid()


def test_clients_of_one_process_share_a_service() -> None:
    with client_of(None) as first, client_of(None) as second, producing(first) as producer:
        producer.put(name())
        assert second.lookup([name()]) == [Entry(name(), producer.owner, b"place")]


def test_the_service_outlasts_the_client_that_came_first() -> None:
    first = MetadataClient(None, "ns")
    first.open()
    with client_of(None) as second:
        before = second.status()["epoch"]
        first.close()
        assert second.status()["epoch"] == before


def test_other_processes_find_it() -> None:
    with client_of(None), child("client", "-") as process:
        assert says(process) == str(os.getpid())


def test_namespaces_have_services_of_their_own() -> None:
    with client_of(None) as client, client_of(None, "other") as other:
        assert client.status()["epoch"] != other.status()["epoch"]


def test_nothing_is_left_when_the_last_one_ends(runtime: Path) -> None:
    with client_of(None):
        pass
    assert [path.name for path in runtime.rglob("*") if path.is_file()] == []


def test_another_serves_when_the_first_is_killed() -> None:
    with child("client", "-") as process:
        assert says(process) == str(process.pid)
        with client_of(None) as client:
            assert client.status()["pid"] == process.pid
            process.kill()
            process.wait()
            assert client.status()["pid"] == os.getpid()


def test_nothing_is_lost_when_the_one_that_serves_is_killed() -> None:
    with child("client", "-") as first:
        says(first)
        with child("producer", "-", "20") as second, client_of(None) as client:
            owner = says(second)
            names = [name(f"x=3a{index}") for index in range(20)]
            first.kill()
            first.wait()
            assert client.lookup(names) == [Entry(each, owner, b"place") for each in names]


def test_another_serves_when_the_first_closes() -> None:
    with child("client", "-") as process:
        says(process)
        with client_of(None) as client:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
            assert client.status()["pid"] == os.getpid()


@contextmanager
def left_behind(count: int) -> Iterator[str]:
    """A producer of some names whose service was closed a moment ago."""
    with child("client", "-") as first:
        says(first)
        with child("producer", "-", str(count)) as second:
            owner = says(second)
            assert first.stdin is not None
            first.stdin.close()
            first.wait()
            yield owner


NAMES = [name(f"x=3a{index}") for index in range(20)]


def test_who_comes_after_the_one_that_served_closed_finds_everything() -> None:
    with left_behind(20) as owner, client_of(None) as client:
        assert client.listing(["ns/"])[0].names == sorted(NAMES)
        assert client.lookup(NAMES) == [Entry(each, owner, b"place") for each in NAMES]


def test_who_comes_after_the_one_that_served_closed_deletes_what_there_is() -> None:
    with left_behind(20), client_of(None) as client:
        assert client.delete(NAMES[:3], "deleted") == 3
        assert client.delete_prefix("ns/") == 17


def test_who_comes_after_the_one_that_served_closed_overwrites_nothing() -> None:
    with left_behind(20) as owner, client_of(None) as client, producing(client) as producer:
        assert producer.put(NAMES[0]).owner == owner


def test_nobody_is_waited_for_where_nobody_was_left(runtime: Path) -> None:
    with child("client", "-") as first, child("producer", "-", "1") as second:
        says(first), says(second)
        for process in (second, first):
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
    assert not os.path.exists(page_path(f"{runtime}/fd-routing/{os.geteuid()}/ns.json"))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_keeps_nobody_from_serving() -> None:
    first = MetadataClient(None, "ns")
    first.open()
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        first.close()
        with child("client", "-") as process:
            assert says(process) == str(process.pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_uses_its_parents_service() -> None:
    with client_of(None) as client:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if client.status()["pid"] == os.getppid() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_file_is_this_users_alone(runtime: Path) -> None:
    with client_of(None):
        path = next(runtime.rglob("ns.json"))
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_without_the_files_secret_nobody_is_let_in(runtime: Path) -> None:
    with client_of(None):
        meeting = rendezvous.read(str(next(runtime.rglob("ns.json"))))
        assert meeting is not None
        with pytest.raises(Exception, match="secret"):
            MetadataClient(meeting.address, "ns").open()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"sync": 0}', b"x" * 10_000])
def test_a_file_that_says_nothing_is_written_anew(runtime: Path, content: bytes) -> None:
    folder = runtime / "fd-routing" / str(os.geteuid())
    folder.mkdir(parents=True, mode=0o700)
    (folder / "ns.json").write_bytes(content)
    with client_of(None) as client:
        assert client.status()["pid"] == os.getpid()


def test_a_folder_that_others_can_write_to_is_not_used(runtime: Path) -> None:
    folder = runtime / "fd-routing" / str(os.geteuid())
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(StoreUnavailableError, match="alone"):
        MetadataClient(None, "ns").open()


def test_without_a_runtime_folder_a_temporary_one_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(rendezvous.os, "access", lambda *_: False)
    monkeypatch.setattr(rendezvous.tempfile, "gettempdir", lambda: str(tmp_path))
    assert rendezvous.folder() == f"{tmp_path}/fd-routing-{os.geteuid()}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "meeting"
    folder.mkdir()
    return folder


def test_a_service_that_ends_leaves_no_files(place: Path) -> None:
    path = str(place / "ns.json")
    lock = rendezvous.take_lock(path)
    assert lock is not None
    rendezvous.free_lock(path, lock)
    assert list(place.iterdir()) == []


def test_a_lock_that_was_removed_is_no_lock(place: Path) -> None:
    path = str(place / "ns.json")
    first = rendezvous.take_lock(path)
    assert first is not None
    os.unlink(f"{path}.lock")
    second = rendezvous.take_lock(path)
    assert second is not None
    assert rendezvous.take_lock(path) is None
    os.close(first)
    rendezvous.free_lock(path, second)


def test_old_leftovers_are_tidied_away_and_what_is_used_stays(place: Path) -> None:
    for kind in ("old", "used", "new"):
        (place / f"{kind}.json").write_text("{}")
        (place / f"{kind}.json.lock").touch()
        if kind != "new":
            os.utime(place / f"{kind}.json.lock", (1, 1))
    used = rendezvous.take_lock(str(place / "used.json"))
    assert used is not None
    rendezvous.tidy(str(place))
    assert {path.name.split(".")[0] for path in place.iterdir()} == {"used", "new"}
    os.close(used)
