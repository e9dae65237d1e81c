"""Listing in order, deleting what is named and no more."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.keys import MAX_ATTEMPT
from fastdeploy_routing_plugins.stores.local import layout

from ..helpers import Item, opened, part, prefix_of, put, seal

if TYPE_CHECKING:
    from pathlib import Path

ids = st.text(st.sampled_from("ab-_:/.~1%") | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
items = st.builds(
    part,
    ids,
    namespace=st.sampled_from(["ns", "ns-1", "n", "ns_", "Ns", "ns.x"]),
    layers=st.just(1),
    tokens=st.just(1),
    start=st.sampled_from([0, 5, 10**9]),
    attempt=st.sampled_from([0, 9, 10, MAX_ATTEMPT]),
    choice=st.sampled_from([0, 1, 999_999]),
)


@given(st.lists(items, max_size=12, unique_by=lambda item: item.name), st.data())
def test_a_prefix_lists_what_begins_with_it_in_order(
    tmp_path_factory: pytest.TempPathFactory, stored: list[Item], data: st.DataObject
) -> None:
    names = sorted(item.name for item in stored)
    prefix = ""
    if names:
        name = data.draw(st.sampled_from(names))
        prefix = name[: data.draw(st.integers(0, len(name)))]
    with opened(tmp_path_factory.mktemp("s")) as backend:
        for item in stored:
            put(backend, item)
        assert backend._list(prefix) == [name for name in names if name.startswith(prefix)]


@pytest.mark.parametrize(
    "prefix", ["../", "/", "//", "ns//", "./", ".tmp/", ".tmp", ".fd-routing-store", "ns/../ns/", "NS/", "ns\0/", "é/"]
)
def test_a_prefix_that_no_name_can_have_lists_nothing(tmp_path: Path, prefix: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, part())
        assert backend._list(prefix) == []


def plant(store: Path) -> dict[Path, bytes]:
    """Puts foreign things in every folder of a store; returns the files among them."""
    namespace, rollout, file = layout.place(part().name).split("/")
    files = {}
    for folder in (store, store / namespace, store / namespace / rollout, store / ".tmp"):
        for name in ("README", ".hidden", "x.safetensors", "NS", file + ".bak"):
            path = folder / name
            path.write_text("foreign")
            files[path] = b"foreign"
        (folder / "Folder").mkdir()
        (folder / "link").symlink_to("/etc")
    return files


def test_foreign_files_are_not_listed(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, part())
        plant(tmp_path)
        assert [backend._list(prefix) for prefix in ("", "ns/", prefix_of())] == [[part().name]] * 3


def test_foreign_files_survive_everything(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, part())
        files = plant(tmp_path)
        backend._clear("")
    with opened(tmp_path):
        assert {path: path.read_bytes() for path in files} == files


def test_foreign_files_keep_their_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, part())
        plant(tmp_path)
        assert (backend._clear(""), (tmp_path / "ns").exists()) == (1, True)


def test_a_deleted_object_is_counted_once(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, part())
        assert [backend._delete([part().name]), backend._delete([part().name])] == [1, 0]


def test_a_delete_counts_what_existed(tmp_path: Path) -> None:
    stored = [part(f"x:{index}", start=start) for index in range(3) for start in (0, 10)]
    with opened(tmp_path) as backend:
        for item in stored:
            put(backend, item)
        unknown = [part("x:0", start=99).name, part("unknown").name, part(namespace="other").name]
        assert backend._delete([*unknown, *(item.name for item in stored[:4]), stored[0].name]) == 4


def test_what_is_not_named_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        for item in (part("x:1"), part("x:10"), part("x:1", start=10), part("x:1", namespace="other")):
            put(backend, item)
        backend._delete([part("x:1").name])
        kept = [part("x:1", start=10).name, part("x:10").name, part("x:1", namespace="other").name]
        assert backend._list("") == sorted(kept)


def test_empty_folders_go(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, part())
        backend._delete([part().name])
        assert sorted(os.listdir(tmp_path)) == [".fd-routing-store", ".tmp"]


def test_a_folder_that_is_not_empty_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, part())
        put(backend, seal())
        backend._delete([part().name])
        assert backend._list("ns/") == [seal().name]


@pytest.mark.parametrize("level", ["namespace", "rollout"])
def test_nothing_is_deleted_behind_a_symbolic_link(tmp_path: Path, level: str) -> None:
    with opened(tmp_path / "other") as other:
        put(other, part())
        namespace, rollout, _ = layout.place(part().name).split("/")
        with opened(tmp_path / "s") as backend:
            link = tmp_path / "s" / namespace
            target = tmp_path / "other" / namespace
            if level == "rollout":
                link.mkdir()
                link, target = link / rollout, target / rollout
            link.symlink_to(target)
            counts = backend._delete([part().name]), backend._clear("ns/"), backend._clear("")
        assert (counts, other._list("")) == ((0, 0, 0), [part().name])


def test_a_folder_under_an_objects_name_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        path = tmp_path.joinpath(layout.place(part().name))
        path.mkdir(parents=True)
        assert (backend._delete([part().name]), path.is_dir()) == (0, True)


def test_a_cleared_prefix_takes_what_begins_with_it(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        for item in (part("x:1"), part("x:10"), part("y"), part("x:1", namespace="other")):
            put(backend, item)
        assert (backend._clear("ns/x"), len(backend._list(""))) == (2, 2)


def test_a_rollout_is_found_as_fast_among_many(tmp_path: Path) -> None:
    def best(count: int) -> float:
        times = []
        for _ in range(count):
            start = time.perf_counter()
            backend._list(prefix_of("x:7"))
            times.append(time.perf_counter() - start)
        return min(times)

    with opened(tmp_path) as backend:
        put(backend, part("x:7"))
        alone = best(200)
        for index in range(3000):
            (tmp_path / "ns" / f"y{index}").mkdir()
        assert best(200) < 4 * alone
