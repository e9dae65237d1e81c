"""Clients: threads, forks, closing, what they remember, and what goes wrong."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zmq

from fastdeploy_routing_plugins import RoutingSchema, open_store
from fastdeploy_routing_plugins.errors import (
    ConfigError,
    CorruptDataError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from fastdeploy_routing_plugins.stores.rdma.address import Address
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m
from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry, MetadataClient, Security
from fastdeploy_routing_plugins.stores.rdma.metadata.framing import encode_answer

from .helpers import client_of, free_address, name, prefix, producing, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[MetadataClient]:
    with client_of(service.address) as client:
        yield client


def asked(service: Service) -> int:
    """Returns how many questions a service was asked, but for signs of producers and for this."""
    with client_of(service.address) as client:
        counts = client.status()["asked"]
    return sum(count for kind, count in counts.items() if kind not in ("Sign", "AskStatus", "Hello"))


# --- what is remembered ---------------------------------------------------------------------------------------------


def test_a_listing_that_did_not_change_costs_no_question(service: Service, client: MetadataClient) -> None:
    with producing(client) as producer:
        producer.put(name())
        client.listing([prefix()])
        before = asked(service)
        for _ in range(100):
            assert client.listing([prefix()])[0].names == [name()]
            assert client.lookup([name()]) == [Entry(name(), producer.owner, b"place")]
        assert asked(service) == before


def test_a_put_costs_two_questions(service: Service, client: MetadataClient) -> None:
    with producing(client) as producer:
        before = asked(service)
        assert client.listing([prefix()])[0].names == []
        producer.put(name())
        assert client.listing([prefix()])[0].names == [name()]
        assert asked(service) == before + 2


def test_that_a_rollout_has_no_name_is_known_without_a_question(service: Service, client: MetadataClient) -> None:
    until(lambda: not client.status()["settling"])
    before = asked(service)
    assert client.vacant(prefix("nobody"))
    assert asked(service) == before


def test_a_rollout_that_anybody_put_is_not_vacant(service: Service, client: MetadataClient) -> None:
    until(lambda: not client.status()["settling"])
    with client_of(service.address) as other, producing(other) as producer:
        producer.put(name("crowded"))
        assert not client.vacant(prefix("crowded"))


def test_a_rollout_is_vacant_again_after_it_was_deleted(service: Service, client: MetadataClient) -> None:
    until(lambda: not client.status()["settling"])
    with producing(client) as producer:
        producer.put(name("deleted"))
        client.delete([name("deleted")])
        assert client.vacant(prefix("deleted"))


def test_putting_a_new_rollout_costs_one_question(service: Service, client: MetadataClient) -> None:
    until(lambda: not client.status()["settling"])
    options = {"server": str(service.address), "transport": "shm", "capacity": 16 << 20}
    config = {"routing_store_type": "rdma", "routing_store_config": options}
    schema = RoutingSchema(num_experts=8, top_k=1, layer_ids=(0,))
    with open_store(config, schema=schema) as store:
        store.put("first", np.zeros((1, 3, 1), np.uint8))
        before = asked(service)
        store.put("second", np.zeros((1, 3, 1), np.uint8))
        assert asked(service) - before == 1


def test_what_is_no_rollouts_prefix_is_never_vacant(service: Service, client: MetadataClient) -> None:
    until(lambda: not client.status()["settling"])
    assert not any(client.vacant(each) for each in ("", "default/", f"{prefix('nobody')}0000000000000000000/"))


def test_what_another_changed_is_seen_at_once(service: Service, client: MetadataClient) -> None:
    with client_of(service.address) as other, producing(other) as producer:
        for index in range(200):
            each = name(what=f"s-{index:010d}")
            producer.put(each)
            assert client.listing([prefix()])[0].names == [each]
            other.delete([each])
            assert client.listing([prefix()])[0].names == []


def test_without_a_page_every_question_is_asked(service: Service, client: MetadataClient) -> None:
    client.connection().page = None  # as on another host
    before = asked(service)
    for _ in range(5):
        client.listing([prefix()])
    assert asked(service) == before + 5


def test_what_is_remembered_ends_with_the_service() -> None:
    with serving() as service:
        client = MetadataClient(service.address, "ns", timeout=0.3)
        client.open()
        client.listing([prefix()])
    with pytest.raises(StoreUnavailableError):
        client.listing([prefix()])
    client.close()


# --- threads and processes ------------------------------------------------------------------------------------------


def test_many_threads_ask_at_once(client: MetadataClient) -> None:
    names = [name(f"x=3a{index}") for index in range(64)]
    wrong: list[object] = []

    def look(owner: str) -> None:
        for each in names:
            found = client.lookup([each])
            if found != [Entry(each, owner, b"place")]:
                wrong.append(found)

    with producing(client) as producer:
        client.publish(producer.owner, [(each, b"place") for each in names])
        threads = [threading.Thread(target=look, args=(producer.owner,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_threads_that_end_leave_no_socket(client: MetadataClient) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    def ask() -> None:
        thread = threading.Thread(target=client.status)
        thread.start()
        thread.join()

    ask()
    before = count()
    for _ in range(30):
        ask()
    until(lambda: count() <= before + 4)


def test_closing_ends_a_wait_in_another_thread(service: Service) -> None:
    client = MetadataClient(service.address, "ns")
    client.open()
    outcome: list[type] = []

    def wait() -> None:
        try:
            client.wait(prefix(), [], time.monotonic() + 600)
        except StoreClosedError as err:
            outcome.append(type(err))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: _waiting(service) == 4)
    client.close()
    for thread in threads:
        thread.join()
    assert outcome == [StoreClosedError] * 4


def _waiting(service: Service) -> int:
    with client_of(service.address) as other:
        return int(other.status()["waiting"])


def test_a_closed_client_says_so(client: MetadataClient) -> None:
    client.close()
    with pytest.raises(StoreClosedError):
        client.lookup([name()])


def test_closing_twice_is_harmless(client: MetadataClient) -> None:
    client.close()
    client.close()


def in_fork(function: Callable[[], bool]) -> int:
    """Runs a function in a forked child; returns its exit code, 0 if it returned true."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_goes_on_with_sockets_of_its_own(client: MetadataClient) -> None:
    with producing(client) as producer:
        producer.put(name())
        entry = Entry(name(), producer.owner, b"place")

        def child() -> bool:
            found = client.lookup([name(), name("y")])
            client.close()
            return found[0] == entry

        client.lookup([name()])
        assert in_fork(child) == 0
        assert client.lookup([name("y"), name()])[1] == entry


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_without_a_service_the_hint_says_how_to_start_one() -> None:
    address = free_address()
    client = MetadataClient(address, "ns", timeout=0.2)
    with pytest.raises(StoreUnavailableError) as caught:
        client.open()
    assert f"fd-routing serve {address}" in str(caught.value)
    assert str(address.coord) in caught.value.message


def test_a_port_that_takes_connections_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = MetadataClient(Address("127.0.0.1", 1, mute.getsockname()[1]), "ns", timeout=0.3)
        with pytest.raises(StoreUnavailableError):
            client.open()


def test_a_host_that_does_not_exist_is_unavailable() -> None:
    client = MetadataClient(Address("no-such-host.invalid", 1, 2), "ns", timeout=0.2)
    with pytest.raises(StoreUnavailableError):
        client.open()


class Fake:
    """A service that answers everything with the same bytes."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._context: zmq.Context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.address = Address("127.0.0.1", 1, self._socket.bind_to_random_port("tcp://127.0.0.1"))
        self._ends = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Fake:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()
        self._socket.close()
        self._context.term()

    def _run(self) -> None:
        while not self._ends:
            if self._socket.poll(50):
                identity, question = self._socket.recv_multipart()
                self._socket.send_multipart([identity, self._answer(question)])


def test_a_service_of_another_version_is_named() -> None:
    def other(question: bytes) -> bytes:
        return b"\x09" + question[1:]

    with Fake(other) as fake, pytest.raises(UnsupportedError, match="version 9"):
        MetadataClient(fake.address, "ns", timeout=2).open()


def test_an_answer_of_the_wrong_kind_is_corrupt() -> None:
    def confused(question: bytes) -> bytes:
        hello = question[14:16] == b"\x95\x01" or question[15] == 1
        body = m.Welcome("", 0, b"t" * 16, 1, 10.0) if hello else m.Done()
        return encode_answer(body, int.from_bytes(question[2:10], "little"), 7)

    with Fake(confused) as fake, client_of(fake.address) as client, pytest.raises(CorruptDataError, match="with Done"):
        client.listing([prefix()])


# --- secrets --------------------------------------------------------------------------------------------------------


def test_the_right_secret_lets_in() -> None:
    security = Security(secret="hush")
    with serving(security=security) as service, client_of(service.address, security=security) as client:
        assert client.status()["names"] == 0


@pytest.mark.parametrize("secret", ["", "wrong"])
def test_another_secret_does_not(secret: str) -> None:
    with serving(security=Security(secret="hush")) as service, pytest.raises(ConfigError, match="secret"):
        MetadataClient(service.address, "ns", Security(secret=secret)).open()


def test_a_client_with_a_needless_secret_is_let_in(service: Service) -> None:
    with client_of(service.address, security=Security(secret="hush")) as client:
        assert client.status()["names"] == 0
