"""The page of counters in shared memory."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.stores.rdma.metadata import page as pages
from fastdeploy_routing_plugins.stores.rdma.metadata.page import Page, bucket_of, look_at, make_page, page_path

from .helpers import prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = bucket_of(prefix())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pages, "_FOLDER", str(tmp_path))
    return "127.0.0.1:1"


@pytest.fixture
def page(place: str) -> Iterator[Page]:
    page = make_page(place)
    yield page
    page.close()


def test_what_did_not_change_holds(page: Page) -> None:
    view = look_at(page.path, page.key)
    assert view is not None
    assert view.holds(BUCKET, page.version(BUCKET), page.ground)


def test_what_changed_does_not_hold(page: Page) -> None:
    view = look_at(page.path, page.key)
    before = page.version(BUCKET)
    page.count(BUCKET)
    assert view is not None
    assert not view.holds(BUCKET, before, page.ground)


def test_changes_of_other_buckets_do_not_matter(page: Page) -> None:
    view = look_at(page.path, page.key)
    before = page.version(BUCKET)
    page.count((BUCKET + 1) % pages.BUCKETS)
    assert view is not None
    assert view.holds(BUCKET, before, page.ground)


def test_a_change_of_the_ground_ends_everything(page: Page) -> None:
    view = look_at(page.path, page.key)
    before = page.ground
    page.shake()
    assert view is not None
    assert not view.holds(BUCKET, page.version(BUCKET), before)


def test_nothing_holds_without_a_beat(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    view = look_at(page.path, page.key)
    now = time.monotonic_ns()
    monkeypatch.setattr(pages.time, "monotonic_ns", lambda: now + int(pages.FRESH * 1e9) + 1_000_000_000)
    assert view is not None
    assert not view.holds(BUCKET, page.version(BUCKET), page.ground)


def test_a_successor_at_the_same_place_voids_what_was_told(place: str) -> None:
    first = make_page(place)
    view = look_at(first.path, first.key)
    version, ground = first.version(BUCKET), first.ground
    first.forget()  # as a killed service does
    second = make_page(place)
    assert view is not None
    assert not view.holds(BUCKET, version, ground)
    assert second.inherited
    second.close()


def test_a_closed_page_voids_what_was_told_and_is_removed(place: str) -> None:
    page = make_page(place)
    view = look_at(page.path, page.key)
    version, ground = page.version(BUCKET), page.ground
    page.close()
    assert view is not None
    assert not view.holds(BUCKET, version, ground)
    assert not os.path.exists(page_path(place))


def test_a_service_that_leaves_producers_leaves_its_page_to_a_successor(place: str) -> None:
    page = make_page(place)
    view = look_at(page.path, page.key)
    version, ground = page.version(BUCKET), page.ground
    page.close(3)
    assert view is not None
    assert not view.holds(BUCKET, version, ground)
    pages.tidy()  # as another service does
    second = make_page(place)
    assert (second.inherited, second.expected) == (True, 3)
    second.close()
    assert not os.path.exists(page_path(place))


def test_a_page_that_was_left_long_ago_is_tidied_away(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_page(place).close(3)
    now = pages.time.monotonic_ns()
    monkeypatch.setattr(pages.time, "monotonic_ns", lambda: now + int((pages._LEFT + 1) * 1e9))
    pages.tidy()
    assert not os.path.exists(page_path(place))


@pytest.mark.parametrize(("age", "stays"), [(0, True), (61, False)])
def test_a_page_that_there_was_no_room_for_is_tidied_away(place: str, age: float, stays: bool) -> None:
    path = Path(page_path(place))
    path.touch(0o600)
    os.utime(path, times=(time.time() - age,) * 2)
    pages.tidy()
    assert path.exists() == stays
    path.unlink(missing_ok=True)


def test_nothing_is_vacant_before_the_service_has_settled(page: Page) -> None:
    view = look_at(page.path, page.key)
    assert view is not None
    assert not view.vacant(BUCKET)


def test_a_bucket_without_names_is_vacant(page: Page) -> None:
    view = look_at(page.path, page.key)
    page.settle()
    page.crowd((BUCKET + 1) % pages.BUCKETS, 1)
    assert view is not None
    assert view.vacant(BUCKET)


def test_a_bucket_is_vacant_again_when_its_last_name_is_gone(page: Page) -> None:
    view = look_at(page.path, page.key)
    page.settle()
    found = []
    for more in (1, 1, -1, -1):
        page.crowd(BUCKET, more)
        assert view is not None
        found.append(view.vacant(BUCKET))
    assert found == [False, False, False, True]


def test_nothing_is_vacant_without_a_beat(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    view = look_at(page.path, page.key)
    page.settle()
    now = time.monotonic_ns()
    monkeypatch.setattr(pages.time, "monotonic_ns", lambda: now + int(pages.FRESH * 1e9) + 1_000_000_000)
    assert view is not None
    assert not view.vacant(BUCKET)


def test_nothing_is_vacant_for_clients_of_a_predecessor(place: str) -> None:
    first = make_page(place)
    view = look_at(first.path, first.key)
    first.settle()
    first.forget()
    second = make_page(place)
    second.settle()
    assert view is not None
    assert not view.vacant(BUCKET)
    second.close()


def test_what_a_predecessor_counted_is_not_counted_again(place: str) -> None:
    first = make_page(place)
    first.crowd(BUCKET, 1)
    first.forget()
    second = make_page(place)
    second.settle()
    view = look_at(second.path, second.key)
    assert view is not None
    assert view.vacant(BUCKET)
    second.close()


def test_a_page_is_this_users_alone(page: Page) -> None:
    assert stat.S_IMODE(os.stat(page.path).st_mode) == 0o600


def test_a_page_that_lives_is_not_taken_over(page: Page, place: str) -> None:
    second = make_page(place)
    assert second.path == ""
    second.close()
    assert look_at(page.path, page.key) is not None


def test_the_key_must_be_the_services(page: Page) -> None:
    assert look_at(page.path, page.key ^ 1) is None


def test_a_file_of_another_size_is_no_page(place: str) -> None:
    with open(page_path(place), "wb") as file:
        file.write(b"\0" * 100)
    assert look_at(page_path(place), 0) is None


def test_a_link_is_no_page(page: Page, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(page.path)
    assert look_at(str(link), page.key) is None


def test_where_no_file_can_be_the_service_goes_on_without(place: str) -> None:
    os.mkdir(page_path(place))
    page = make_page(place)
    page.count(BUCKET)
    assert (page.path, page.version(BUCKET)) == ("", 1)
    page.close()


def test_what_a_killed_service_left_is_removed_after_a_while(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = make_page(place)
    page.forget()
    pages.tidy()
    assert os.path.exists(page_path(place))
    now = time.monotonic_ns()
    monkeypatch.setattr(pages.time, "monotonic_ns", lambda: now + 61_000_000_000)
    pages.tidy()
    assert not os.path.exists(page_path(place))


def test_a_page_in_use_is_not_removed(page: Page, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic_ns()
    monkeypatch.setattr(pages.time, "monotonic_ns", lambda: now + 3600_000_000_000)
    pages.tidy()
    assert os.path.exists(page_path(place))
