"""Reads: whole, by range, header only; memory that outlives the store; what is no file of ours."""

from __future__ import annotations

import errno
import gc
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fastdeploy_routing_plugins.errors import CorruptDataError, NotFoundError, StoreUnavailableError
from fastdeploy_routing_plugins.stores.local import layout, mapping

from ..helpers import descriptors, opened, part, prefix_of, put

if TYPE_CHECKING:
    from pathlib import Path

    from ..helpers import Children

SMALL = part(tokens=40, total=40)
LARGE = part("large", tokens=40_000, total=40_000)
SIZES = pytest.mark.parametrize("item", [SMALL, LARGE], ids=["copied", "mapped"])


@SIZES
@pytest.mark.parametrize("mapped", [True, False], ids=["local", "network"])
def test_a_whole_object_is_one_piece(tmp_path: Path, item: object, mapped: bool) -> None:
    assert isinstance(item, type(SMALL))
    with opened(tmp_path) as backend:
        backend._mapped = mapped
        put(backend, item)
        blob = backend._get(item.name)
    assert (blob.header, [bytes(piece) for piece in blob.payload]) == (item.header, [item.payload])


@SIZES
@pytest.mark.parametrize("mapped", [True, False], ids=["local", "network"])
def test_ranges_are_one_piece_each(tmp_path: Path, item: object, mapped: bool) -> None:
    assert isinstance(item, type(SMALL))
    size = item.array.nbytes
    ranges = [(0, 1), (1, 1), (7, 200), (size - 3, size)]
    with opened(tmp_path) as backend:
        backend._mapped = mapped
        put(backend, item)
        pieces = backend._get(item.name, ranges).payload
    assert [bytes(piece) for piece in pieces] == [item.payload[a:b] for a, b in ranges]


@SIZES
def test_no_ranges_get_the_header_alone(tmp_path: Path, item: object) -> None:
    assert isinstance(item, type(SMALL))
    with opened(tmp_path) as backend:
        put(backend, item)
        blob = backend._get(item.name, ())
    assert (blob.header, blob.payload) == (item.header, ())


def test_a_header_longer_than_the_first_read_comes_whole(tmp_path: Path) -> None:
    item = part(layers=900)
    with opened(tmp_path) as backend:
        put(backend, item)
        assert backend._get(item.name, ()).header == item.header


@pytest.mark.parametrize("mapped", [True, False], ids=["local", "network"])
@pytest.mark.parametrize("where", [(0, 161), (-1, 2), (3, 2)])
def test_a_range_outside_the_payload_is_corrupt(tmp_path: Path, where: tuple[int, int], mapped: bool) -> None:
    item = part(layers=1, tokens=40)
    with opened(tmp_path) as backend:
        backend._mapped = mapped
        put(backend, item)
        with pytest.raises(CorruptDataError):
            backend._get(item.name, [where])


@pytest.mark.parametrize("ranges", [None, (), [(0, 1)]], ids=["whole", "header", "range"])
@pytest.mark.parametrize("known", ["nothing", "namespace", "rollout"])
def test_what_is_not_there_is_not_found(tmp_path: Path, known: str, ranges: list[tuple[int, int]] | None) -> None:
    with opened(tmp_path) as backend:
        if known != "nothing":
            put(backend, part("x:1" if known == "rollout" else "other", start=100))
        with pytest.raises(NotFoundError):
            backend._get(SMALL.name, ranges)


def make(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "symbolic link to a good file":
        path.with_name("good").write_bytes(b"")
        path.symlink_to("good")
    else:
        path.symlink_to("nowhere")


KINDS = ["folder", "fifo", "symbolic link to a good file", "dangling symbolic link"]


@pytest.mark.parametrize("ranges", [None, ()], ids=["whole", "header"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_corrupt(tmp_path: Path, kind: str, ranges: tuple[()] | None) -> None:
    with opened(tmp_path) as backend:
        make(kind, tmp_path.joinpath(layout.place(SMALL.name)))
        with pytest.raises(CorruptDataError):
            backend._get(SMALL.name, ranges)


@pytest.mark.parametrize("level", ["namespace", "rollout"])
def test_a_symbolic_link_to_a_folder_is_not_followed(tmp_path: Path, level: str) -> None:
    with opened(tmp_path / "other") as backend:
        put(backend, SMALL)
    namespace, rollout, _ = layout.place(SMALL.name).split("/")
    with opened(tmp_path / "s") as backend:
        if level == "namespace":
            (tmp_path / "s" / namespace).symlink_to(tmp_path / "other" / namespace)
        else:
            (tmp_path / "s" / namespace).mkdir()
            (tmp_path / "s" / namespace / rollout).symlink_to(tmp_path / "other" / namespace / rollout)
        with pytest.raises(CorruptDataError):
            backend._get(SMALL.name)


def test_memory_outlives_delete_close_and_the_first_view(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, LARGE)
        view = backend._get(LARGE.name).payload[0]
        backend._delete([LARGE.name])
    array = np.frombuffer(view, np.uint8)[10:]
    del view, backend
    gc.collect()
    assert array.tobytes() == LARGE.payload[10:]


@SIZES
def test_memory_cannot_be_written(tmp_path: Path, item: object) -> None:
    assert isinstance(item, type(SMALL))
    with opened(tmp_path) as backend:
        put(backend, item)
        view = backend._get(item.name).payload[0]
    assert memoryview(view).readonly


def test_memory_is_given_back_with_its_last_view(tmp_path: Path) -> None:
    def maps() -> int:
        with open("/proc/self/maps") as file:
            return sum(".safetensors" in line for line in file)

    with opened(tmp_path) as backend:
        put(backend, LARGE)
        views = [backend._get(LARGE.name).payload[0][5:] for _ in range(10)]
        held = maps()
        views.clear()
        assert (held, maps()) == (10, 0)


def test_records_that_are_held_need_no_descriptors(tmp_path: Path, children: Children) -> None:
    with opened(tmp_path) as backend:
        put(backend, LARGE)
    code = children.wait(children.start("hold_many", tmp_path, LARGE.name))
    assert code == 0


def test_failed_reads_leave_no_descriptor_behind(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        for index, kind in enumerate(KINDS):
            make(kind, tmp_path.joinpath(layout.place(part(f"x:{index}").name)))
        before = descriptors()
        for index in range(len(KINDS) + 1):
            with pytest.raises((CorruptDataError, NotFoundError)):
                backend._get(part(f"x:{index}").name)
        assert descriptors() == before


class _NoMoreMappings:
    """The C library of a process that has used up its mappings."""

    def mmap(self, *_: object) -> int:
        mapping.ctypes.set_errno(errno.ENOMEM)
        return int(mapping._FAILED or -1)


def test_without_mappings_left_the_bytes_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as backend:
        put(backend, LARGE)
        monkeypatch.setattr(mapping, "_libc", _NoMoreMappings())
        assert backend._get(LARGE.name).payload[0] == LARGE.payload


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pread
    with opened(tmp_path) as backend:
        backend._mapped = False
        put(backend, LARGE)
        monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 100_000), at))
        assert backend._get(LARGE.name).payload[0] == LARGE.payload


def test_ordinary_folders_are_not_on_the_network(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    found = mapping.is_network(fd)
    os.close(fd)
    assert not found


def test_what_the_kernel_cannot_name_counts_as_network() -> None:
    assert mapping.is_network(-1)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize(
    ("verb", "call"),
    [("get", "pread"), ("get", "fstat"), ("list", "listdir"), ("list all", "listdir"), ("delete", "unlink")],
)
def test_errors_of_the_system_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, call: str, number: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with opened(tmp_path) as backend:
        put(backend, SMALL)
        monkeypatch.setattr(os, call, fails)
        verbs = {
            "get": lambda: backend._get(SMALL.name),
            "list": lambda: backend._list(prefix_of()),
            "list all": lambda: backend._list(""),
            "delete": lambda: backend._delete([SMALL.name]),
        }
        with pytest.raises(StoreUnavailableError) as caught:
            verbs[verb]()
        monkeypatch.undo()
    assert (caught.value.errno, bool(caught.value.hint)) == (number, True)


def test_a_file_cut_off_while_it_is_read_is_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pread
    with opened(tmp_path) as backend:
        backend._mapped = False
        put(backend, SMALL)
        monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, size, at) if at == 0 else b"")
        with pytest.raises(CorruptDataError):
            backend._get(SMALL.name, [(0, 8)])
