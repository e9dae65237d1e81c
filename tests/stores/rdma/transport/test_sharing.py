"""Work that two threads do."""

from __future__ import annotations

import _thread
import gc
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fastdeploy_routing_plugins.stores.rdma.transport import sharing

from ....interrupts import interrupted


class OwnError(Exception):
    pass


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = _thread._count()
    yield
    assert _thread._count() == before


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50, 1000])
def test_every_task_is_done_once(count: int) -> None:
    done: Counter[int] = Counter()
    sharing.share(range(count), lambda task: done.update([task]))
    assert done == Counter(range(count))


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


def test_an_interrupt_ends_both() -> None:
    mine = threading.get_ident()

    def work(task: int) -> None:
        time.sleep(0.001)
        if threading.get_ident() == mine and task > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sharing.share(range(2000), work)


def test_the_callers_own_error_comes_first() -> None:
    mine, both = threading.get_ident(), threading.Barrier(2, timeout=10)

    def work(task: int) -> None:
        both.wait()
        if threading.get_ident() == mine:
            time.sleep(0.05)  # the other one has failed long before
            raise KeyboardInterrupt
        raise OwnError

    with pytest.raises(KeyboardInterrupt):
        sharing.share(range(2), work)


@pytest.mark.parametrize("pause", [0.0, 0.0002])
@pytest.mark.parametrize("after", [0.00002, 0.0001, 0.0002, 0.0004, 0.0008])
def test_interrupts_at_any_moment_leave_no_thread_and_are_raised(pause: float, after: float) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        sharing.share(range(40 if pause else 20_000), lambda task: time.sleep(pause))

    assert interrupted(call, after, 0.5) > 3  # many more where no other tests run beside this
    assert calls > 3
    end = time.monotonic() + 5
    while _thread._count() > 1 and time.monotonic() < end:  # one that was started when the interrupt came does nothing
        time.sleep(0.01)


def test_without_threads_the_caller_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sharing, "start_new_thread", refuse)
    done: list[int] = []
    sharing.share(range(30), done.append)
    assert done == list(range(30))


def test_a_thread_that_dies_before_its_first_call_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "start_new_thread", lambda *_: 1)  # as for lack of memory
    done: list[int] = []
    sharing.share(range(30), done.append)
    assert done == list(range(30))


def test_a_thread_that_comes_too_late_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], object]] = []

    def start(run: Callable[..., object], args: tuple[object, ...]) -> None:
        late.append(lambda: run(*args))
        raise RuntimeError("as if an interrupt had come before the start was noted")

    monkeypatch.setattr(sharing, "start_new_thread", start)
    done: list[int] = []
    with pytest.raises(OwnError):
        sharing.share(range(30), lambda task: done.append(task) if task < 3 else fail())
    late[0]()
    assert done == [0, 1, 2]


def fail() -> None:
    raise OwnError


def test_one_processor_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert not sharing.is_worth(1 << 30)


def test_little_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4})
    assert sharing.is_worth(sharing.WORTH)
    assert not sharing.is_worth(sharing.WORTH - 1)


def test_no_error_keeps_what_was_worked_on() -> None:
    class Thing:
        pass

    thing = Thing()
    known = weakref.ref(thing)

    gc.disable()
    try:
        with pytest.raises(OwnError):
            sharing.share([thing], lambda task: fail())
        del thing
        assert known() is None
    finally:
        gc.enable()
