"""Forks while a blocking backend is at work in another thread."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.store import forks
from fastdeploy_routing_plugins.store.bridge import inline, run_inline

from .memory import BlockingMemory, Shelf

if TYPE_CHECKING:
    import pytest

    from fastdeploy_routing_plugins.backend import Backend


class Held(BlockingMemory):
    """A store in memory whose listings take until they are let go."""

    def __init__(self) -> None:
        super().__init__(Shelf())
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.forked: list[float] = []

    def _list(self, prefix: str) -> list[str]:
        self.entered.set()
        assert self.let_go.wait(60)
        return []

    def _flush(self) -> None:
        self.forked.append(fork())


def fork() -> float:
    """Forks a child that ends at once; returns the seconds it took."""
    before = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return time.monotonic() - before


def listing(backend: Backend) -> threading.Thread:
    thread = threading.Thread(target=lambda: run_inline(backend._list("ns/")))
    thread.start()
    return thread


def test_a_fork_waits_for_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 60.0)
    backend = Held()
    thread = listing(inline(backend))
    assert backend.entered.wait(60)
    over: list[bool] = []

    def work() -> None:
        fork()
        over.append(backend.let_go.is_set())

    forking = threading.Thread(target=work)
    forking.start()
    forking.join(0.3)
    assert forking.is_alive()
    backend.let_go.set()
    forking.join(60)
    thread.join(60)
    assert over == [True]


def test_a_fork_goes_ahead_if_a_call_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.2)
    backend = Held()
    thread = listing(inline(backend))
    assert backend.entered.wait(60)
    assert fork() >= 0.2
    assert list(forks.at_work().threads) == [thread.ident]
    backend.let_go.set()
    thread.join(60)


def test_a_backend_that_forks_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 600.0)
    backend = Held()
    run_inline(inline(backend)._flush())
    assert len(backend.forked) == 1


def test_a_child_begins_without_the_calls_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.0)
    backend = Held()
    thread = listing(inline(backend))
    assert backend.entered.wait(60)
    pid = os.fork()
    if pid == 0:
        os._exit(len(forks.at_work().threads))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    backend.let_go.set()
    thread.join(60)
