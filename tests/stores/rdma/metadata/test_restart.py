"""The service dies and is started again: nobody is told anything wrong, and everybody goes on."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.errors import RoutingError, StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry
from fastdeploy_routing_plugins.stores.rdma.metadata.page import make_page

from .helpers import Producer, Served, client_of, free_address, name, prefix, producing, served, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service

KILLS = max(2, int(os.environ.get("FD_ROUTING_TEST_KILLS", "50")) // 20)  # 50 with the long form's 1000
QUICK = ("--settle", "0.2")


class Load:
    """Reads and writes in threads, for as long as it is told to; every answer must be right."""

    def __init__(self, service: Served) -> None:
        self.service = service
        self.wrong: list[str] = []
        self.times: list[float] = []  # when reads were answered
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(index,)) for index in range(3)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _read(self, index: int) -> None:
        with client_of(self.service.address) as client:
            while not self._ends.is_set():
                wanted = [name(f"x=3a{number}") for number in range(index, 100, 7)]
                for found in client.lookup(wanted):
                    if not isinstance(found, Entry):
                        self.wrong.append(repr(found))
                listing = client.listing([prefix("x=3a5")])[0]
                if listing.names != [name("x=3a5")]:
                    self.wrong.append(repr(listing))
                self.times.append(time.monotonic())


def test_after_kills_nothing_is_lost_and_everybody_goes_on() -> None:
    gaps = []
    with served() as service, client_of(service.address) as client, producing(client) as producer:
        for number in range(100):
            producer.put(name(f"x=3a{number}"))
        with Load(service) as load:
            for kill in range(KILLS):
                time.sleep(0.2)
                service.end()
                time.sleep(0.1 * (kill % 3))
                service.start()
                listens = time.monotonic()
                until(lambda since=listens: len([at for at in load.times[-50:] if at > since + 0.1]) > 10)
                assert producer.put(name(f"new=3a{kill}")) is None
                gaps.append(time.monotonic() - listens)
        assert load.wrong == []
        assert len(client.listing(["ns/"])[0].names) == 100 + KILLS
    print(f"seconds until everybody went on: median {statistics.median(gaps):.2f}, worst {max(gaps):.2f}")


def test_a_wait_outlasts_the_service() -> None:
    with served(*QUICK) as service, client_of(service.address) as client, client_of(service.address) as reader:
        with producing(client) as producer:
            producer.put(name(what="s-0000000001"))
            found: list[list[str]] = []

            def wait() -> None:
                found.append(reader.wait(prefix(), [name(what="s-0000000001")], time.monotonic() + 60).names)

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.2)
            service.end()
            service.start()
            time.sleep(0.5)
            producer.put(name())
            thread.join()
        assert found == [[name(what="s-0000000001"), name()]]


def test_the_epoch_changes_with_the_service() -> None:
    with serving() as first, client_of(first.address) as client:
        before = client.epoch
        first.stop()
        with again(first):
            client.status()
            assert client.epoch not in (0, before)


@contextlib.contextmanager
def again(first: Service) -> Iterator[Service]:
    """Runs a service at the address of one that was told to stop."""
    with contextlib.ExitStack() as stack:

        def start() -> Service | None:
            try:
                return stack.enter_context(serving(first.address, settle=0.2))
            except StoreUnavailableError:
                return None

        yield until(start)


def test_what_is_remembered_is_void_once_a_new_service_listens() -> None:
    with served(*QUICK) as service, client_of(service.address) as client:
        with producing(client) as producer:
            producer.put(name())
            assert client.listing([prefix()])[0].names == [name()]
        producer.link.stop()
        service.end()
        service.start()
        assert client.listing([prefix()])[0].names == []


def test_a_new_service_keeps_nobody_waiting_for_long() -> None:
    with serving() as first, client_of(first.address) as client:
        first.stop()
        with again(first):
            assert client.listing([prefix()])[0].names == []
            until(lambda: not client.status()["settling"])


def test_without_a_service_calls_end_within_their_time() -> None:
    with serving() as service, client_of(service.address, timeout=0.4) as client:
        service.stop()
        time.sleep(0.1)
        with pytest.raises(StoreUnavailableError, match="does not answer") as caught:
            client.lookup([name()])
        assert f"fd-routing serve {service.address}" in caught.value.hint


def test_what_was_put_while_the_service_was_away_is_there_afterwards() -> None:
    with served(*QUICK) as service, client_of(service.address) as client, producing(client) as producer:
        service.end()
        outcome: list[Entry | RoutingError | None] = []
        thread = threading.Thread(target=lambda: outcome.append(producer.put(name())))
        thread.start()
        service.start()
        thread.join()
        assert outcome == [None]
        assert client.lookup([name()]) == [Entry(name(), producer.owner, b"place")]


def test_everybody_waits_until_a_strict_service_has_settled() -> None:
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(serving(settle=0.6, strict=True))
        client, other = (stack.enter_context(client_of(service.address)) for _ in range(2))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        asked = pool.submit(other.listing, [prefix()])
        deleted = pool.submit(client.delete, [name("never")], "deleted")
        producer = Producer(client)
        producer.held = {name(): b"place"}
        producer.link.start()
        stack.callback(producer.link.stop)
        assert asked.result()[0].names == [name()]
        assert deleted.result() == 0
        assert not client.status()["settling"]


def test_a_producer_of_the_successors_own_process_is_not_waited_for() -> None:
    address = free_address()
    page = make_page(f"{address.host}:{address.coord}")
    page.expect(1)
    page.forget()  # as a killed service does
    with serving(address, settle=1.0) as service, client_of(service.address) as client:
        producer = Producer(client)
        producer.held = {name(): b"place"}
        producer.link.start()
        until(lambda: not client.status()["settling"])
        assert client.status()["uptime"] < 2.5  # not three times as long
        producer.link.stop()
