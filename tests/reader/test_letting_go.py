"""What nobody refers to any more is let go of: results, errors that are kept, iterators; and errors count as asked."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest

from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.arena.pool import SMALL, Pool
from fastdeploy_routing_plugins.store.pool import DaemonPool
from fastdeploy_routing_plugins.trylock import TryLock

from ..interrupts import Interrupted, interrupted
from ..store.memory import AsyncMemory
from .places import Place, memory, routing


class Thing:
    """Something that can be watched."""


def gone(watched: weakref.ref[Any]) -> bool:
    """Whether it goes, within the time that another thread may need."""
    end = time.monotonic() + 20
    while watched() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.005)
    return watched() is None


@pytest.fixture
def place() -> Place:
    made = memory(AsyncMemory)
    with made.store() as store:
        for number in range(4):
            store.put(f"r{number}", routing(5, number))
    return made


def test_a_thread_that_made_a_call_keeps_nothing_of_it() -> None:
    pool = DaemonPool(2, "letting-go")
    thing = Thing()
    watched = weakref.ref(thing)
    future = pool.submit(lambda given: given, thing)
    assert future.result(20) is thing
    del thing, future
    try:
        assert gone(watched)
    finally:
        pool.shutdown()


def test_an_error_in_a_batch_keeps_no_frame(place: Place) -> None:
    with place.reader() as reader:
        batch = reader.get_batch(["r0", "never", "r1"], on_missing="mask")
        err: BaseException | None = batch.missing[1]
        seen = 0
        while err is not None:
            assert err.__traceback__ is None
            err, seen = err.__cause__ or err.__context__, seen + 1
        assert seen


@pytest.mark.parametrize(
    ("ids", "failed"),
    [(["r0", "r0", "gone"], [2]), (["gone", "r0", "gone", "r1"], [0, 2]), (["r0", "gone"], [1])],
)
def test_failures_are_told_by_the_callers_indices(place: Place, ids: list[str], failed: list[int]) -> None:
    with place.reader() as reader, pytest.raises(e.NotFoundError) as caught:
        reader.get_batch(ids)
    assert sorted(caught.value.failed) == failed


@pytest.mark.parametrize("begun", [False, True])
def test_an_iterator_that_is_dropped_ends_what_it_began(place: Place, begun: bool) -> None:
    with place.reader() as reader:
        found = reader.as_completed(["r0", "never"], timeout=600)
        if begun:
            next(found)
        own = reader._own().begun
        assert own is not None
        del found
        end = time.monotonic() + 20
        while own._tasks and time.monotonic() < end:
            gc.collect()
            time.sleep(0.005)
        assert not own._tasks


@pytest.mark.parametrize("how", [{"min_attempt": -1}, {"min_attempt": None}, {"min_attempt": "x"}, {"layer_ids": []}])
@pytest.mark.parametrize("ids", [["r0"], ["r0", "r1"]])
def test_wrong_arguments_have_a_typed_error(place: Place, how: dict[str, Any], ids: list[str]) -> None:
    with place.reader() as reader, pytest.raises((e.InvalidKeyError, e.InvalidRecordError)):
        reader.get_batch(ids, **how)


# --- interrupts -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one met a finalizer
def test_a_pool_that_was_interrupted_anywhere_goes_on() -> None:
    pool = Pool(idle_bytes=4 * SMALL)

    def churn() -> None:
        for _ in range(100):  # an interrupt that meets a finalizer is swallowed, and the next call must come soon
            held = [pool.take(SMALL + 5000 * number) for number in range(6)]
            del held

    assert interrupted(churn, after=0.0003)
    done = threading.Thread(target=lambda: pool.take(SMALL), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()
    gc.collect()
    assert pool.idle_bytes <= 4 * SMALL


class Late(dict[None, object]):
    """A dict after whose ``setdefault`` a signal comes."""

    def setdefault(self, key: None, default: object = None) -> object:
        super().setdefault(key, default)
        raise Interrupted


def test_an_interrupt_leaves_no_lock_locked() -> None:
    lock = TryLock()
    lock._owner = Late()
    with pytest.raises(Interrupted):
        lock.run(lambda: None)
    lock._owner = dict(lock._owner)
    assert lock.run(lambda: None)


def test_a_lock_is_taken_by_one_at_a_time() -> None:
    lock, made = TryLock(), []
    assert lock.run(lambda: made.append(lock.run(lambda: made.append("inner"))))
    assert made == [False]
    with pytest.raises(ZeroDivisionError):
        lock.run(lambda: 1 / 0)
    assert lock.run(lambda: made.append("again"))
