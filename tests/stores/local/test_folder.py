"""Folders held by descriptor: no symbolic link leads out of them, with ``openat2`` and without."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.stores.local import folder as module
from fastdeploy_routing_plugins.stores.local.folder import NOT_A_FOLDER, Folder

from ..helpers import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def failing(number: int) -> Callable[..., None]:
    """The system call on an old kernel, or in a sandbox that forbids what it does not know."""

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fails


@pytest.fixture(
    params=[None, errno.ENOSYS, errno.EPERM, errno.EINTR], ids=["openat2", "old", "sandbox", "interrupted"]
)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A folder with a file ``a/b/file``, opened in every way that a system may offer."""
    if request.param is not None:
        monkeypatch.setattr(module, "open_below", failing(request.param))
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"content")
    with Folder.at(str(tmp_path)) as opened:
        yield opened


def read(folder: Folder, path: str) -> bytes:
    with folder.open(path, os.O_RDONLY) as file:
        return os.read(file.fd, 100)


def test_a_path_leads_to_its_file(folder: Folder) -> None:
    assert read(folder, "a/b/file") == b"content"


@pytest.mark.parametrize("path", ["a/b/none", "a/none/file", "none"])
def test_what_is_missing_is_not_found(folder: Folder, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        folder.open(path, os.O_RDONLY)


@pytest.mark.parametrize("level", ["a", "a/b", "a/b/file"])
def test_no_symbolic_link_is_followed(folder: Folder, tmp_path: Path, level: str) -> None:
    (tmp_path / level).rename(tmp_path / "real")
    (tmp_path / level).symlink_to(tmp_path / "real")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is looked at
        folder.open("a/b/file", os.O_RDONLY)
    assert caught.value.errno in NOT_A_FOLDER


def test_a_file_in_a_folders_place_is_told_apart(folder: Folder) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is looked at
        folder.open("a/b/file/more", os.O_RDONLY)
    assert caught.value.errno in NOT_A_FOLDER


def test_descriptors_are_not_inherited(folder: Folder) -> None:
    with folder.child("a/b") as inner:
        assert not os.get_inheritable(inner.fd)


@pytest.mark.parametrize("path", ["new", "a/new", "new/new/new", "a/b"])
def test_folders_are_made_as_needed(folder: Folder, tmp_path: Path, path: str) -> None:
    with folder.make(path):
        assert (tmp_path / path).is_dir()


def test_a_folder_is_not_made_through_a_symbolic_link(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(OSError):  # noqa: PT011 - the outcome is looked at
        folder.make("link/new")
    assert os.listdir(tmp_path / "a") == ["b"]


def test_failures_leave_no_descriptor_behind(folder: Folder) -> None:
    before = descriptors()
    for path in ("a/b/none", "a/none/file", "a/b/file/more"):
        with pytest.raises(OSError):  # noqa: PT011 - the descriptors are looked at
            folder.open(path, os.O_RDONLY)
    assert descriptors() == before


def test_a_folder_closes_with_its_last_reference(tmp_path: Path) -> None:
    before = descriptors()
    opened = Folder.at(str(tmp_path))
    during = descriptors()
    del opened
    assert (len(during) - len(before), descriptors()) == (1, before)
