"""Producers and readers in processes of their own, in a network that nobody else sees."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator

import pytest

from .agent import ON_DEVICE
from .remote import Remote
from .stage import Stage

Start = Callable[..., Remote]


def need_mooncake() -> None:
    """Skips the calling module where Mooncake is not installed."""
    if importlib.util.find_spec("mooncake") is None:
        pytest.skip("Mooncake Transfer Engine is not installed", allow_module_level=True)


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """Forks agents in a network of their own, or in the host's if tests run over its RDMA devices."""
    stage = Stage(own_network=not ON_DEVICE)
    try:
        if stage.why:
            pytest.skip(f"Mooncake listens on every interface, and a network of its own is not allowed: {stage.why}")
        agent = Remote(stage)
        why = agent("available", allow_tcp=True)
        agent.dismiss()
        agent.close()
        if why:
            pytest.skip(why)
        yield stage
    finally:
        stage.close()


@pytest.fixture(scope="session")
def folder() -> Iterator[str]:
    """A folder of shared memory that goes with all that killed producers leave in it."""
    with tempfile.TemporaryDirectory(prefix="fd-routing-test-", dir="/dev/shm") as folder:
        yield folder


@pytest.fixture(scope="module")
def module_start(stage: Stage) -> Iterator[Start]:
    yield from _starter(stage)


@pytest.fixture
def start(stage: Stage) -> Iterator[Start]:
    """Starts agents, and ends them after the test."""
    yield from _starter(stage)


def _starter(stage: Stage) -> Iterator[Start]:
    started: list[Remote] = []

    def start(**environ: str) -> Remote:
        started.append(Remote(stage, **environ))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.dismiss()
        codes = [each.close() for each in started]
    assert [code for code in codes if code not in (0, -9)] == []
