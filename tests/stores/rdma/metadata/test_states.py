"""Producers that are silent, lost, back, replaced or closed."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.errors import (
    EvictedError,
    NotFoundError,
    ProducerLostError,
    StoreUnavailableError,
)
from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry

from .helpers import Producer, address_of, child, client_of, name, prefix, producing, says, served, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service

HASTY = {"suspect": 0.9, "lease": 1.3, "settle": 0.0}
FAST = {"suspect": 0.2, "lease": 0.6, "settle": 0.0}  # for producers that never give a sign of themselves


@pytest.fixture
def service() -> Iterator[Service]:
    with serving(**HASTY) as service:
        yield service


@pytest.fixture
def reader(service: Service) -> Iterator[MetadataClient]:
    with client_of(service.address) as client:
        yield client


@pytest.fixture
def fast() -> Iterator[MetadataClient]:
    with serving(**FAST) as service, client_of(service.address) as client:
        yield client


def dies(client: MetadataClient, *names: str) -> Producer:
    """Returns a producer that published names and ended without a word."""
    producer = Producer(client)
    producer.link.start()
    for each in names:
        producer.put(each)
    producer.link.stop(unregister=False)
    return producer


def test_a_silent_producers_names_are_unavailable(fast: MetadataClient) -> None:
    producer = dies(fast, name())
    found = until(lambda: [e for e in fast.lookup([name()]) if isinstance(e, StoreUnavailableError)])
    assert found[0].facts == {"owner": producer.owner, "producer": "p"}


def test_a_silent_producers_names_stay_in_the_listing(fast: MetadataClient) -> None:
    dies(fast, name())
    until(lambda: isinstance(fast.lookup([name()])[0], StoreUnavailableError))
    assert fast.listing([prefix()])[0].names == [name()]


def test_a_silent_producer_that_gives_a_sign_is_relied_on_again(fast: MetadataClient) -> None:
    producer = dies(fast, name())
    until(lambda: isinstance(fast.lookup([name()])[0], StoreUnavailableError))
    producer.put(name())
    assert isinstance(fast.lookup([name()])[0], Entry)


def test_a_lost_producers_names_are_lost(fast: MetadataClient) -> None:
    dies(fast, name())
    assert until(lambda: isinstance(fast.lookup([name()])[0], ProducerLostError))


def test_a_lost_producers_names_leave_the_listing(fast: MetadataClient) -> None:
    dies(fast, name())
    listing = until(lambda: [each for each in fast.listing([prefix()]) if not each.names])[0]
    assert listing.gone == "lost"


def test_a_wait_ends_when_the_producer_is_lost(fast: MetadataClient) -> None:
    dies(fast, name())
    assert fast.wait(prefix(), [name()], time.monotonic() + 60).names == []


def test_a_lost_producer_is_known_to_be(fast: MetadataClient) -> None:
    producer = dies(fast, name())
    until(lambda: not fast.listing([prefix()])[0].names)
    with client_of(address_of(fast)) as stranger, pytest.raises(ProducerLostError):
        stranger.owner(producer.owner)


def test_a_lost_producers_name_can_be_put_by_another(fast: MetadataClient) -> None:
    dies(fast, name())
    until(lambda: not fast.listing([prefix()])[0].names)
    second = dies(fast)
    second.link.start()
    assert second.put(name(), b"new") is None
    second.link.stop()


def test_a_producer_that_was_stopped_and_goes_on_has_lost_nothing(service: Service, reader: MetadataClient) -> None:
    names = [name(f"x=3a{index}") for index in range(30)]
    with child("producer", str(service.address), "30") as process:
        owner = says(process)
        process.send_signal(signal.SIGSTOP)
        until(lambda: reader.status()["owners"][0]["state"] == "lost")
        assert not any(isinstance(each, Entry) for each in reader.lookup(names))
        process.send_signal(signal.SIGCONT)
        until(lambda: reader.lookup(names) == [Entry(each, owner, b"place") for each in names])


def test_what_was_deleted_while_its_producer_was_lost_does_not_come_back(
    service: Service, reader: MetadataClient
) -> None:
    with child("producer", str(service.address), "2") as process:
        says(process)
        process.send_signal(signal.SIGSTOP)
        until(lambda: reader.status()["owners"][0]["state"] == "lost")
        reader.delete([name("x=3a0")])
        process.send_signal(signal.SIGCONT)
        until(lambda: isinstance(reader.lookup([name("x=3a1")])[0], Entry))
        assert reader.listing(["ns/"])[0].names == [name("x=3a1")]
        assert process.stdin is not None
        process.stdin.write("dropped\n")
        process.stdin.flush()
        assert says(process) == name("x=3a0")


def test_a_service_that_was_stopped_itself_blames_nobody() -> None:
    hasty = ("--suspect", "0.8", "--lease", "1.1")
    with served(*hasty) as service, client_of(service.address) as client, producing(client) as producer:
        producer.put(name())
        os.kill(service.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(service.pid, signal.SIGCONT)
        assert client.lookup([name()]) == [Entry(name(), producer.owner, b"place")]


def test_a_closed_producers_names_are_gone(reader: MetadataClient) -> None:
    with producing(reader) as producer:
        producer.put(name())
    found = reader.lookup([name()])[0]
    assert isinstance(found, EvictedError)
    assert "closed" in found.message
    assert reader.listing([prefix()])[0].gone == "closed"


def test_a_successor_takes_the_names_over(fast: MetadataClient) -> None:
    dead = dies(fast, name("x=3a1"), name("x=3a2"))
    with producing(fast, succeeds=[dead.owner]) as heir:
        assert heir.put(name("x=3a1"), b"new") is None
        assert fast.lookup([name("x=3a1")]) == [Entry(name("x=3a1"), heir.owner, b"new")]
        assert isinstance(fast.lookup([name("x=3a2")])[0], (StoreUnavailableError, ProducerLostError))


def test_what_a_successor_does_not_publish_is_lost(fast: MetadataClient) -> None:
    dead = dies(fast, name())
    with producing(fast, succeeds=[dead.owner]):
        assert until(lambda: isinstance(fast.lookup([name()])[0], ProducerLostError))


def test_what_is_gone_is_forgotten_beyond_the_budget() -> None:
    with serving(tombstones=20_000) as service, client_of(service.address) as client, producing(client) as producer:
        names = [name(f"x=3a{index}") for index in range(200)]
        client.publish(producer.owner, [(each, b"") for each in names])
        client.delete(names)
        until(lambda: client.status()["gone_bytes"] <= 20_000)
        assert isinstance(client.lookup(names[:1])[0], NotFoundError)
        assert client.status()["tombstones"] > 20


def test_names_of_lost_producers_are_forgotten_beyond_the_budget() -> None:
    with serving(tombstones=20_000, **FAST) as service, client_of(service.address) as client:
        dies(client, *(name(f"x=3a{index}") for index in range(200)))
        until(lambda: client.status()["owners"][0]["state"] == "lost")
        until(lambda: client.status()["gone_bytes"] <= 20_000)
        assert 0 < client.status()["lost_names"] < 100
