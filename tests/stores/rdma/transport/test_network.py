"""What networks do to TCP reads: slow ones come, broken ones are asked for again, and silence has an end."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fastdeploy_routing_plugins.arena.pool import Pool
from fastdeploy_routing_plugins.errors import StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place
from fastdeploy_routing_plugins.stores.rdma.transport.link import Job
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import CONNECTIONS, TcpSource

from ....interrupts import interrupted
from ..chaos import Chaos
from .process import Process, soon, until
from .producing import blob_of, is_whole, want

SIZE = 3_000_000
_numbers = itertools.count()
Stored = list[tuple[str, Place]]


@pytest.fixture
def proxy(other: Process) -> Iterator[Chaos]:
    """A proxy in front of the producer in the other process."""
    host, _, port = other.info.tcp.rpartition(":")
    with Chaos((host, int(port))) as made:
        yield made


@pytest.fixture
def source(other: Process, proxy: Chaos, pool: Pool) -> Iterator[TcpSource]:
    made = TcpSource(through(other.info, proxy), "", pool)
    yield made
    made.close()


@pytest.fixture
def stored(other: Process) -> Iterator[Stored]:
    """A batch of objects."""
    names = [f"ns/network-{os.getpid()}-{next(_numbers)}/p" for _ in range(3)]
    yield [(name, other.put(name, SIZE)) for name in names]
    for name in names:
        other.ask("delete", name)


def through(info: OwnerInfo, proxy: Chaos) -> OwnerInfo:
    return OwnerInfo(
        info.owner, "elsewhere", info.node, info.pid, info.producer, info.arenas, proxy.address, "", info.revision
    )


def whole(source: TcpSource, stored: Stored, seconds: float = 30.0) -> bool:
    """Whether a batch comes whole."""
    found = source.read([want(*each) for each in stored], soon(seconds))
    return all(is_whole(blob_of(blob), name) for blob, (name, _) in zip(found, stored, strict=True))


def test_a_quiet_network_is_no_trouble(source: TcpSource, stored: Stored) -> None:
    assert whole(source, stored)


def test_a_slow_network_is_waited_for(source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    proxy.delay(0.05)
    began = time.monotonic()
    assert (whole(source, stored), time.monotonic() - began >= 0.1) == (True, True)


def test_a_batch_over_a_slow_network_waits_once(source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    whole(source, stored)
    proxy.delay(0.2)
    began = time.monotonic()
    found = source.read([want(*stored[0], [(0, 100)])] * 50, soon())
    assert (len(found), time.monotonic() - began < 5) == (50, True)


@pytest.mark.parametrize("after", [0, 10, 60, 100, 2_000_000, 3 * SIZE])
def test_a_connection_that_breaks_is_opened_again(source: TcpSource, proxy: Chaos, stored: Stored, after: int) -> None:
    whole(source, stored)
    proxy.reset_after(after)
    assert whole(source, stored)


def test_a_connection_that_broke_while_nobody_read_is_opened_again(
    source: TcpSource, proxy: Chaos, stored: Stored
) -> None:
    before = whole(source, stored), proxy.accepted
    proxy.reset()
    assert (before, whole(source, stored), proxy.accepted) == ((True, 1), True, 2)


def test_what_came_before_the_break_is_not_asked_for_again(source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    proxy.reset_after(16 * SIZE)  # a reset throws away what is still in the kernel, which is much less
    asked: list[int] = []
    fetch = source._try

    def counting(jobs: object, deadline: float, arrived: Callable[[Job], None], *, fresh: bool) -> None:
        assert isinstance(jobs, list)
        asked.append(len(jobs))
        fetch(jobs, deadline, arrived, fresh=fresh)

    source._try = counting  # type: ignore[method-assign]
    came = whole(source, stored * 6)
    assert (came, asked[0], 2 <= asked[1] < 18, len(asked)) == (True, 18, True, 2)


def test_a_connection_that_breaks_twice_is_an_error(source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    proxy.reset_after(1000)
    stop = threading.Event()

    def again() -> None:
        while not stop.wait(0.001):
            if proxy._budget is None:
                proxy.reset_after(1000)

    breaker = threading.Thread(target=again)
    breaker.start()
    try:
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            whole(source, stored, 3600)
    finally:
        stop.set()
        breaker.join()


def test_a_port_that_refuses_is_an_error_at_once(source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    whole(source, stored)
    proxy.refuse()
    with pytest.raises(StoreUnavailableError, match=f"{proxy.address}.*does not listen"):
        whole(source, stored, 3600)


def test_a_port_that_listens_again_is_read_from(source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    proxy.refuse()
    with pytest.raises(StoreUnavailableError):
        whole(source, stored)
    proxy.listen()
    assert whole(source, stored)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("mode", ["stall", "half_open"])
def test_silence_ends_at_the_deadline(source: TcpSource, proxy: Chaos, stored: Stored, mode: str, first: bool) -> None:
    if not first:
        whole(source, stored)
    getattr(proxy, mode)()
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="does not answer in time"):
        whole(source, stored, 0.3)
    assert 0.3 <= time.monotonic() - began < 10


def test_silence_in_the_middle_of_a_reply_ends_at_the_deadline(
    source: TcpSource, proxy: Chaos, stored: Stored
) -> None:
    proxy.stall_after(SIZE)
    with pytest.raises(StoreUnavailableError, match="does not answer in time"):
        whole(source, stored, 0.3)


def test_signals_do_not_put_the_deadline_off(source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    proxy.stall_after(SIZE)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="does not answer in time"):
            whole(source, stored, 0.3)
        assert time.monotonic() - began < 10
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("mode", ["stall", "half_open"])
def test_after_silence_reading_goes_on(source: TcpSource, proxy: Chaos, stored: Stored, mode: str) -> None:
    getattr(proxy, mode)()
    with pytest.raises(StoreUnavailableError):
        whole(source, stored, 0.1)
    proxy.flow()
    assert whole(source, stored)


def test_what_comes_after_it_was_given_up_is_not_taken_for_the_next_answer(
    source: TcpSource, proxy: Chaos, stored: Stored
) -> None:
    whole(source, stored)
    proxy.stall()
    with pytest.raises(StoreUnavailableError):
        whole(source, stored[:1], 0.1)
    proxy.flow()
    assert whole(source, stored[1:])


def test_a_partition_that_heals_in_time_is_sat_out(source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    whole(source, stored)
    proxy.partition(0.5)
    assert whole(source, stored)


def test_nothing_stays_lent_after_all_that(other: Process, source: TcpSource, proxy: Chaos, stored: Stored) -> None:
    for break_it in (lambda: proxy.reset_after(SIZE), lambda: proxy.stall_after(SIZE)):
        break_it()
        with contextlib.suppress(StoreUnavailableError):
            whole(source, stored, 0.2)
    proxy.reset()
    assert until(lambda: other.ask("leases") == 0)


def test_random_trouble_gives_whole_objects_or_errors(
    other: Process, proxy: Chaos, stored: Stored, pool: Pool
) -> None:
    chosen = random.Random(3)
    outcomes: list[bool | None] = []
    stop = threading.Event()

    def read(seed: int) -> None:
        own = random.Random(seed)
        source = TcpSource(through(other.info, proxy), "", pool)
        while not stop.is_set():
            try:
                outcomes.append(whole(source, own.sample(stored, own.randrange(1, 4)), 0.3))
            except StoreUnavailableError:
                outcomes.append(None)
        source.close()

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for each in readers:
        each.start()
    for _ in range(30):
        trouble = chosen.choice(["reset", "reset_after", "stall_after", "delay", "half_open", "partition", "flow"])
        arguments = {"reset_after": [chosen.randrange(2 * SIZE)], "stall_after": [chosen.randrange(2 * SIZE)]}
        getattr(proxy, trouble)(*arguments.get(trouble, {"delay": [0.01], "partition": [0.05]}.get(trouble, [])))
        time.sleep(0.05)
        proxy.flow()
        time.sleep(0.02)
    stop.set()
    for each in readers:
        each.join()
    assert (False in outcomes, True in outcomes) == (False, True)


def test_a_frozen_producer_is_an_error_at_the_deadline_and_no_loss(folder: str, pool: Pool) -> None:
    with Process(folder) as producer:
        place = producer.put("ns/a", SIZE)
        source = TcpSource(producer.info, "", pool)
        whole(source, [("ns/a", place)])
        producer.freeze()
        try:
            with pytest.raises(StoreUnavailableError, match="does not answer in time"):
                whole(source, [("ns/a", place)], 0.3)
        finally:
            producer.thaw()
        after = whole(source, [("ns/a", place)])
        source.close()
    assert after


def test_a_killed_producer_is_an_error_at_once(folder: str, pool: Pool) -> None:
    with Process(folder) as producer:
        place = producer.put("ns/a", SIZE)
        source = TcpSource(producer.info, "", pool)
        whole(source, [("ns/a", place)])
        producer.kill()
        with pytest.raises(StoreUnavailableError):
            whole(source, [("ns/a", place)], 3600)
        source.close()
    for arena in producer.info.arenas:
        os.unlink(arena.path)
        os.unlink(arena.path + ".pins")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that it let fall
def test_interrupts_let_no_connection_fall(source: TcpSource, stored: Stored) -> None:
    assert whole(source, stored)
    for after in (0.00005, 0.0002, 0.0005):
        interrupted(lambda: whole(source, stored, 5), after, 0.3)
    assert whole(source, stored, 5)
    assert (len(source._used), len(source._idle) <= CONNECTIONS) == (0, True)
