"""Work that two threads do."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter

import pytest

from fastdeploy_routing_plugins.stores.rdma.transport import sharing


class OwnError(Exception):
    pass


def helpers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "fd-routing-copy"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50, 1000])
def test_every_task_is_done_once(count: int) -> None:
    done: Counter[int] = Counter()
    sharing.share(range(count), lambda task: done.update([task]))
    assert done == Counter(range(count))
    assert not helpers()


def test_two_threads_do_it() -> None:
    both = threading.Barrier(2, timeout=10)
    sharing.share(range(2), lambda task: both.wait() and None)


@pytest.mark.parametrize("who", ["caller", "helper"])
def test_an_error_in_either_thread_is_raised_and_ends_the_other(who: str) -> None:
    mine, done = threading.get_ident(), []

    def work(task: int) -> None:
        time.sleep(0.001)
        if (threading.get_ident() == mine) == (who == "caller"):
            raise OwnError(who)
        done.append(task)

    with pytest.raises(OwnError, match=who):
        sharing.share(range(2000), work)
    assert len(done) < 200
    assert not helpers()


def test_an_interrupt_ends_both() -> None:
    mine = threading.get_ident()

    def work(task: int) -> None:
        time.sleep(0.001)
        if threading.get_ident() == mine and task > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sharing.share(range(2000), work)
    assert not helpers()


def test_without_threads_the_caller_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    done: list[int] = []
    sharing.share(range(30), done.append)
    assert done == list(range(30))


def test_one_processor_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert not sharing.is_worth(1 << 30)


def test_little_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4})
    assert sharing.is_worth(sharing.WORTH)
    assert not sharing.is_worth(sharing.WORTH - 1)


def test_no_error_keeps_what_was_worked_on() -> None:
    import gc
    import weakref

    class Thing:
        pass

    thing = Thing()
    known = weakref.ref(thing)

    def fail(task: Thing) -> None:
        raise OwnError

    gc.disable()
    try:
        with pytest.raises(OwnError):
            sharing.share([thing], fail)
        del thing
        assert known() is None
    finally:
        gc.enable()
