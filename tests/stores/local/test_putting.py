"""Puts create whole files or nothing, whatever the file system can do and whatever fails."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import threading
import time
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidKeyError,
    RoutingError,
    StoreUnavailableError,
)
from fastdeploy_routing_plugins.stores.local import layout, publish
from fastdeploy_routing_plugins.stores.local.folder import Folder

from ..helpers import content, opened, part, put, seal

if TYPE_CHECKING:
    from pathlib import Path

    from ..helpers import Children

ITEM = part(tokens=40, total=40)
WAYS = ["link", "rename", "claim"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How files get their names: as here, without hard links, and without ``renameat2`` either."""

    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links here")

    if request.param != "link":
        monkeypatch.setattr(os, "link", no_links)
    if request.param == "claim":
        monkeypatch.setattr(publish, "_rename_noreplace", lambda *_: False)
    return str(request.param)


def test_what_was_put_comes_back(tmp_path: Path, way: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        blob = backend._get(ITEM.name)
    assert (blob.header, bytes(blob.payload[0])) == (ITEM.header, ITEM.payload)


def test_no_temporary_file_remains(tmp_path: Path, way: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        assert os.listdir(tmp_path / ".tmp") == []


def test_a_second_put_of_a_name_is_refused_with_the_stored_header(tmp_path: Path, way: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        with pytest.raises(AlreadyExistsError) as caught:
            backend._put(ITEM.name, b"other", part(tokens=40, seed="other").buffer())
    assert caught.value.header == ITEM.header


def test_a_refused_put_changes_nothing(tmp_path: Path, way: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        with pytest.raises(AlreadyExistsError):
            backend._put(ITEM.name, b"other", part(tokens=40, seed="other").buffer())
        assert backend._get(ITEM.name).payload[0] == ITEM.payload
        assert os.listdir(tmp_path / ".tmp") == []


def test_a_seal_has_no_payload(tmp_path: Path, way: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, seal())
        assert [bytes(piece) for piece in backend._get(seal().name).payload] == [b""]


def test_a_damaged_file_in_the_place_is_reported_and_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        path = tmp_path.joinpath(layout.place(ITEM.name))
        path.write_bytes(b"damaged")
        with pytest.raises(CorruptDataError):
            put(backend, ITEM)
        assert path.read_bytes() == b"damaged"


@pytest.mark.parametrize("verb", ["put", "get", "delete"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, verb: str) -> None:
    evil = ITEM.name.replace("ns/", "../")
    with opened(tmp_path / "s") as backend:
        calls = {
            "put": lambda: backend._put(evil, ITEM.header, ITEM.buffer()),
            "get": lambda: backend._get(evil),
            "delete": lambda: backend._delete([evil]),
        }
        with pytest.raises(InvalidKeyError):
            calls[verb]()
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize("level", ["namespace", "rollout"])
def test_a_symbolic_link_in_the_way_is_not_written_through(tmp_path: Path, level: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    namespace, rollout, _ = layout.place(ITEM.name).split("/")
    with opened(tmp_path / "s") as backend:
        link = tmp_path / "s" / namespace
        if level == "rollout":
            link.mkdir()
            link /= rollout
        link.symlink_to(outside)
        with pytest.raises(StoreUnavailableError, match="in the way"):
            put(backend, ITEM)
    assert os.listdir(outside) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: whole(fd, [pieces[0][:1000]]))
    with opened(tmp_path) as backend:
        item = part(tokens=5000)
        put(backend, item)
        assert backend._get(item.name).payload[0] == item.payload


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["writev", "mkdir", "link", "create"])
def test_errors_of_the_system_are_typed_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with opened(tmp_path) as backend:
        put(backend, part("before"))
        with monkeypatch.context() as patched:
            patched.setattr(Folder if call == "create" else os, call, fails)
            with pytest.raises(StoreUnavailableError) as caught:
                put(backend, ITEM)
        assert (caught.value.errno, bool(caught.value.hint)) == (number, True)
        assert (backend._list("ns/x"), os.listdir(tmp_path / ".tmp")) == ([], [])


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(tmp_path) as backend:
        with monkeypatch.context() as patched:
            patched.setattr(os, "writev", interrupted)
            with pytest.raises(KeyboardInterrupt):
                put(backend, ITEM)
        assert (backend._list(""), os.listdir(tmp_path / ".tmp")) == ([], [])


def test_a_full_disk_is_typed_and_leaves_nothing(tmp_path: Path, children: Children) -> None:
    code = children.wait(children.start("fill", tmp_path))
    assert code == 0


def test_a_temporary_file_that_vanishes_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = publish._Temporary.write
    removed = []

    def write_and_lose(self: publish._Temporary, *args: object, **kwargs: bool) -> None:
        write(self, *args, **kwargs)  # type: ignore[arg-type]
        if not removed:
            removed.append(self.name)
            os.unlink(tmp_path / ".tmp" / self.name)

    monkeypatch.setattr(publish._Temporary, "write", write_and_lose)
    with opened(tmp_path) as backend:
        removed.clear()
        put(backend, ITEM)
        assert len(removed) == 1
        assert backend._get(ITEM.name).payload[0] == ITEM.payload


@pytest.mark.parametrize("how", ["removed", "locked by another"])
def test_a_temporary_file_taken_for_a_leftover_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    real = fcntl.flock
    calls = []

    def flock(fd: int, how_to_lock: int) -> None:
        calls.append(fd)
        if len(calls) == 1 and how == "removed":
            os.unlink(os.readlink(f"/proc/self/fd/{fd}"))
        elif len(calls) == 1:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        real(fd, how_to_lock)

    with opened(tmp_path) as backend:
        monkeypatch.setattr(fcntl, "flock", flock)
        put(backend, ITEM)
        assert (len(calls), backend._list(""), os.listdir(tmp_path / ".tmp")) == (2, [ITEM.name], [])


def test_a_file_system_without_locks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        assert backend._list("") == [ITEM.name]


def test_without_locks_nothing_counts_as_a_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    with opened(tmp_path):
        (tmp_path / ".tmp" / ("0" * 32 + ".part")).write_bytes(b"perhaps alive")
    monkeypatch.setattr(fcntl, "flock", flock)
    with opened(tmp_path):
        assert os.listdir(tmp_path / ".tmp") == ["0" * 32 + ".part"]


def test_the_temporary_folder_may_be_tidied_away(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        os.rmdir(tmp_path / ".tmp")
        put(backend, ITEM)
        assert backend._list("") == [ITEM.name]


def test_fsync_covers_the_file_before_its_name_and_every_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fsync, real_link = os.fsync, os.link
    log = []

    def fsync(fd: int) -> None:
        log.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        real_fsync(fd)

    def link(*args: object, **kwargs: object) -> None:
        log.append("link")
        real_link(*args, **kwargs)  # type: ignore[arg-type]

    with opened(tmp_path, fsync=True) as backend:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "link", link)
        put(backend, ITEM)
    assert log == ["file", "link", "folder", "folder", "folder"]


def test_folders_that_cannot_be_synced_alone_are_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not here")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with opened(tmp_path, fsync=True) as backend:
        put(backend, ITEM)
        assert backend._list("") == [ITEM.name]


def test_without_fsync_nothing_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as backend:
        calls: list[int] = []
        monkeypatch.setattr(os, "fsync", calls.append)
        put(backend, ITEM)
    assert calls == []


def test_threads_may_put_and_get_at_once(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def work(me: int) -> None:
        try:
            for index in range(30):
                item = part(f"t{me}:{index % 7}", start=index * 10, tokens=index)
                put(backend, item)
                assert backend._get(item.name).payload[0] == item.payload
                assert item.name in backend._list("")
                backend._delete([item.name])
        except (RoutingError, AssertionError, OSError) as err:
            problems.append(err)

    with opened(tmp_path) as backend:
        threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []


# --- claims, the last resort -----------------------------------------------------------------------------------------


def test_a_claim_of_a_dead_process_is_broken(tmp_path: Path, children: Children) -> None:
    with opened(tmp_path / "s") as backend:
        pid = children.start("claim_forever", tmp_path / "s")
        while not (tmp_path / "claimed").exists():
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        children.wait(pid)
        assert len(os.listdir(tmp_path / "s" / ".tmp")) == 1
        with backend._opened().child(".tmp") as folder, publish._claim(folder, "ns/r/f"):
            pass
        assert os.listdir(tmp_path / "s" / ".tmp") == []


def test_a_claim_of_a_living_process_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_CLAIM_LIMIT", 0.05)
    with opened(tmp_path) as backend, backend._opened().make(".tmp") as folder:
        second = publish._claim(folder, "ns/r/f")
        with publish._claim(folder, "ns/r/f"), pytest.raises(TimeoutError):
            second.__enter__()


def test_a_claim_that_cannot_be_had_makes_the_put_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_CLAIM_LIMIT", 0.05)
    monkeypatch.setattr(publish, "_rename_noreplace", lambda *_: False)

    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    with opened(tmp_path) as backend, backend._opened().make(".tmp") as folder:
        monkeypatch.setattr(os, "link", no_links)
        with publish._claim(folder, layout.place(ITEM.name)), pytest.raises(RoutingError, match="claim"):
            put(backend, ITEM)


def test_renaming_never_replaces(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content("a", 10))
    (tmp_path / "b").write_bytes(content("b", 10))
    with opened(tmp_path / "s") as backend:
        root = backend._opened()
        (tmp_path / "a").rename(tmp_path / "s" / "a")
        (tmp_path / "b").rename(tmp_path / "s" / "b")
        with pytest.raises(FileExistsError):
            publish._rename_noreplace(root, "a", root, "b")
