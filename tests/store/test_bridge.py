"""Plain code over an event loop: interrupted anywhere, it goes on."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fastdeploy_routing_plugins.errors import StoreClosedError, StoreUnavailableError
from fastdeploy_routing_plugins.store.bridge import LoopThread

from ..interrupts import interrupted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupted before it was awaited
@pytest.mark.parametrize("after", [0.00003, 0.0001, 0.0003])
def test_an_interrupted_loop_goes_on(after: float) -> None:
    loop = LoopThread()
    interrupted(lambda: loop.run(asyncio.sleep(0.0001)), after)
    assert loop.run(asyncio.sleep(0, "right"), 20) == "right"
    loop.stop()
    assert not loop.alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_was_interrupted_ends() -> None:
    async def work() -> None:
        begun.append(True)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    begun: list[bool] = []
    ended: list[bool] = []
    loop = LoopThread()
    interrupted(lambda: loop.run(work()), 0.002, 0.2)
    end = time.monotonic() + 10
    while len(ended) < len(begun) and time.monotonic() < end:
        time.sleep(0.01)
    assert len(ended) == len(begun) > 0
    loop.stop()


def test_errors_and_late_answers_are_typed() -> None:
    async def fail() -> None:
        raise ValueError("its own")

    loop = LoopThread()
    with pytest.raises(ValueError, match="its own"):
        loop.run(fail())
    with pytest.raises(StoreUnavailableError, match="did not answer"):
        loop.run(asyncio.sleep(60), 0.05)
    loop.stop()
    with pytest.raises(StoreClosedError):
        loop.run(asyncio.sleep(0))


def test_a_loop_may_be_stopped_by_several_at_once() -> None:
    for _ in range(50):
        loop = LoopThread()
        stopping = [threading.Thread(target=loop.stop, args=(wait,)) for wait in (0.0, 0.0, 5.0, 5.0)]
        for each in stopping:
            each.start()
        for each in stopping:
            each.join(20)
        loop.stop()
        assert not loop.alive
