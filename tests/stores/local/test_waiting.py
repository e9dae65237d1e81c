"""Waiting: woken at once by the file system, by polling where it cannot, and never late by more than a moment."""

from __future__ import annotations

import errno
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.errors import StoreClosedError
from fastdeploy_routing_plugins.stores.local import watch

from ..helpers import Item, descriptors, opened, part, prefix_of, put, seal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastdeploy_routing_plugins.stores.local.backend import LocalBackend

ITEM = part()
SOON = 0.2  # s; well below the half second after which a look is due anyway


@pytest.fixture(params=["inotify", "none left", "not installed", "no watches left"])
def notice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way of noticing a change that a machine may offer."""
    inotify_simple = pytest.importorskip("inotify_simple") if sys.platform != "linux" else __import__("inotify_simple")

    def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many instances")

    if request.param == "none left":
        monkeypatch.setattr(inotify_simple, "INotify", exhausted)
    elif request.param == "not installed":
        monkeypatch.setitem(sys.modules, "inotify_simple", None)
    elif request.param == "no watches left":
        monkeypatch.setattr(inotify_simple.INotify, "add_watch", exhausted)
    return str(request.param)


def after(seconds: float, action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def waited(backend: LocalBackend, prefix: str, seen: list[str], limit: float = 5.0) -> tuple[list[str], float]:
    start = time.monotonic()
    names = backend._wait(prefix, seen, start + limit)
    return names, time.monotonic() - start


def delay_after_put(backend: LocalBackend, item: Item, prefix: str) -> float:
    """How long after the put the waiter has the names."""
    done: list[float] = []

    def act() -> None:
        put(backend, item)
        done.append(time.monotonic())

    timer = after(0.1, act)
    names = backend._wait(prefix, backend._list(prefix), time.monotonic() + 5)
    end = time.monotonic()
    timer.join()
    assert item.name in names
    return end - done[0]


@pytest.mark.parametrize("known", ["nothing", "namespace", "rollout"])
def test_a_put_ends_the_wait_at_once(tmp_path: Path, notice: str, known: str) -> None:
    with opened(tmp_path) as backend:
        if known != "nothing":
            put(backend, part("x:1" if known == "rollout" else "other", start=100))
        assert delay_after_put(backend, ITEM, prefix_of()) < SOON


@pytest.mark.parametrize("prefix", ["", "n", "ns/", "ns/x=3", "ns/x=3a1/000000/routing/0000000000000000000/p-"])
def test_any_prefix_can_be_waited_for(tmp_path: Path, notice: str, prefix: str) -> None:
    with opened(tmp_path) as backend:
        assert delay_after_put(backend, ITEM, prefix) < SOON


def test_a_delete_ends_the_wait_at_once(tmp_path: Path, notice: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        timer = after(0.1, lambda: backend._delete([ITEM.name]))
        names, seconds = waited(backend, prefix_of(), [ITEM.name])
        timer.join()
    assert (names, seconds < 0.1 + SOON) == ([], True)


def test_a_rollout_that_was_deleted_and_comes_back_is_seen(tmp_path: Path, notice: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        timer = after(0.1, lambda: (backend._delete([ITEM.name]), put(backend, seal())))
        names, _ = waited(backend, prefix_of(), [ITEM.name])
        if not names:
            names, _ = waited(backend, prefix_of(), [])
        timer.join()
    assert names == [seal().name]


def test_a_change_before_the_wait_returns_immediately(tmp_path: Path, notice: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        names, seconds = waited(backend, prefix_of(), [])
    assert (names, seconds < SOON) == ([ITEM.name], True)


def test_at_the_deadline_comes_what_there_is(tmp_path: Path, notice: str) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
        names, seconds = waited(backend, prefix_of(), [ITEM.name], 0.15)
    assert (names, 0.15 <= seconds < 0.15 + SOON) == ([ITEM.name], True)


def test_a_deadline_in_the_past_costs_one_look(tmp_path: Path, notice: str) -> None:
    with opened(tmp_path) as backend:
        names, seconds = waited(backend, prefix_of(), [], -1)
    assert (names, seconds < SOON) == ([], True)


def test_puts_of_others_do_not_end_the_wait(tmp_path: Path, notice: str) -> None:
    with opened(tmp_path) as backend:
        timers = [after(0.02 * index, lambda index=index: put(backend, part(f"y:{index}"))) for index in range(10)]
        names, seconds = waited(backend, prefix_of(), [], 0.4)
        for timer in timers:
            timer.join()
    assert (names, seconds >= 0.4) == ([], True)


def test_a_change_that_is_not_notified_is_seen_within_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import inotify_simple

    def silent(self: object, timeout: int) -> list[object]:  # as on NFS, when another machine writes
        time.sleep(timeout / 1000)
        return []

    monkeypatch.setattr(inotify_simple.INotify, "read", silent)
    with opened(tmp_path) as backend:
        assert delay_after_put(backend, ITEM, prefix_of()) < watch.LOOK_AGAIN + SOON


def test_waiting_with_inotify_costs_next_to_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        backend._wait(prefix_of(), [], time.monotonic() + 0.01)
        start = time.thread_time()
        backend._wait(prefix_of(), [], time.monotonic() + 1.0)
        assert time.thread_time() - start < 0.01


def test_waits_leave_no_descriptor_behind(tmp_path: Path, notice: str) -> None:
    before = descriptors()
    with opened(tmp_path) as backend:
        threads = [threading.Thread(target=waited, args=(backend, prefix_of(f"x:{i}"), [], 0.2)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert descriptors() == before


def test_a_wait_that_outlives_the_store_ends_and_leaves_no_descriptor_behind(tmp_path: Path, notice: str) -> None:
    before = descriptors()
    ends: list[BaseException] = []

    def wait(backend: LocalBackend) -> None:
        try:
            backend._wait(prefix_of(), [], time.monotonic() + 60)
        except StoreClosedError as err:
            ends.append(err)

    with opened(tmp_path) as backend:
        thread = threading.Thread(target=wait, args=(backend,))
        thread.start()
        time.sleep(0.1)
    thread.join(5)
    assert (len(ends), descriptors()) == (1, before)


def test_twenty_waiters_of_twenty_rollouts_are_all_woken(tmp_path: Path, notice: str) -> None:
    late: list[float] = []

    def wait(backend: LocalBackend, index: int) -> None:
        item = part(f"x:{index}")
        names = backend._wait(prefix_of(f"x:{index}"), [], time.monotonic() + 10)
        late.append(time.monotonic() - put_at[index] if names == [item.name] else 99.0)

    put_at: dict[int, float] = {}
    with opened(tmp_path) as backend:
        threads = [threading.Thread(target=wait, args=(backend, index)) for index in range(20)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        for index in range(20):
            put_at[index] = time.monotonic()
            put(backend, part(f"x:{index}"))
        for thread in threads:
            thread.join()
    assert (len(late), max(late) < 2 * SOON) == (20, True)


@pytest.mark.parametrize("verb", ["get", "wait"])
def test_closing_the_store_ends_the_waits_of_other_threads(tmp_path: Path, notice: str, verb: str) -> None:
    ends: list[float] = []

    def wait(index: int) -> None:
        with pytest.raises(StoreClosedError):
            getattr(store, verb)(f"x:{index}", timeout=60)
        ends.append(time.monotonic())

    store = open_store({"routing_store_type": "local", "routing_store_config": {"store_dir": str(tmp_path)}})
    threads = [threading.Thread(target=wait, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    closed = time.monotonic()
    store.close()
    for thread in threads:
        thread.join(10)
    assert (len(ends), max(ends) - closed < watch.LOOK_AGAIN + SOON) == (4, True)
