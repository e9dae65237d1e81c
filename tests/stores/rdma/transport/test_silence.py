"""While nothing comes from a producer, a TCP read asks whether it lives: only a frozen one is given up."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from fastdeploy_routing_plugins.arena.pool import Pool
from fastdeploy_routing_plugins.errors import StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.place import Place
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import TcpSource

from ..chaos import Chaos
from .process import Process, soon
from .producing import blob_of, is_whole, want

_numbers = itertools.count()


@pytest.fixture
def stored(other: Process) -> Iterator[tuple[str, Place]]:
    """An object."""
    name = f"ns/silence-{os.getpid()}-{next(_numbers)}/p"
    yield name, other.put(name, 3_000_000)
    other.ask("delete", name)


@pytest.fixture
def proxy(other: Process) -> Iterator[Chaos]:
    """A proxy in front of the producer in the other process."""
    host, _, port = other.info.tcp.rpartition(":")
    with Chaos((host, int(port))) as made:
        yield made


@pytest.fixture
def source(other: Process, proxy: Chaos, pool: Pool) -> Iterator[Callable[[Callable[[], bool | None]], TcpSource]]:
    """Makes ways to the producer, through the proxy."""
    info = msgspec.structs.replace(other.info, tcp=proxy.address)
    made: list[TcpSource] = []

    def make(lives: Callable[[], bool | None]) -> TcpSource:
        made.append(TcpSource(info, "", pool, lives))
        return made[-1]

    yield make
    for each in made:
        each.close()


Make = Callable[[Callable[[], "bool | None"]], TcpSource]


def test_a_read_that_is_answered_asks_nobody(source: Make, stored: tuple[str, Place]) -> None:
    asked: list[None] = []
    (found,) = source(lambda: asked.append(None)).read([want(*stored)], soon())
    assert (is_whole(blob_of(found), stored[0]), asked) == (True, [])


@pytest.mark.parametrize("after", [0, 1_000_000])
def test_a_read_ends_when_the_producer_gives_no_sign_of_life(
    source: Make, proxy: Chaos, stored: tuple[str, Place], after: int
) -> None:
    proxy.stall_after(after)
    with pytest.raises(StoreUnavailableError, match="no sign of life"):
        source(lambda: False).read([want(*stored)], soon(3600))


def test_a_producer_that_hangs_before_it_welcomes_anybody_is_given_up_too(
    source: Make, proxy: Chaos, stored: tuple[str, Place]
) -> None:
    proxy.stall()
    with pytest.raises(StoreUnavailableError, match="no sign of life"):
        source(lambda: False).read([want(*stored)], soon(3600))


@pytest.mark.parametrize("answer", [True, None])
def test_a_producer_that_lives_or_may_live_is_waited_for(
    source: Make, proxy: Chaos, stored: tuple[str, Place], answer: bool | None
) -> None:
    asked = threading.Event()

    def lives() -> bool | None:
        asked.set()
        return answer

    def heal() -> None:
        asked.wait()
        time.sleep(0.6)
        proxy.flow()

    proxy.stall_after(1_000_000)
    healer = threading.Thread(target=heal)
    healer.start()
    (found,) = source(lives).read([want(*stored)], soon())
    healer.join()
    assert is_whole(blob_of(found), stored[0])
