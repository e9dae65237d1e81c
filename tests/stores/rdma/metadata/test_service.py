"""What the service answers: listings, entries, changes, owners."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import zmq

from fastdeploy_routing_plugins.errors import (
    DeletedError,
    EvictedError,
    NotFoundError,
    RoutingError,
    StoreUnavailableError,
    SupersededError,
    UnsupportedError,
)
from fastdeploy_routing_plugins.stores.rdma.metadata import framing
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m
from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry, Listing, Security
from fastdeploy_routing_plugins.stores.rdma.metadata.naming import digest
from fastdeploy_routing_plugins.stores.rdma.metadata.producer import ProducerLink

from .helpers import Producer, client_of, name, owner_info, prefix, producing, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[MetadataClient]:
    with client_of(service.address) as client:
        yield client
        client.delete_prefix("ns/")


@pytest.fixture
def other(service: Service) -> Iterator[MetadataClient]:
    with client_of(service.address) as client:
        yield client


@pytest.fixture
def producer(client: MetadataClient) -> Iterator[Producer]:
    with producing(client) as producer:
        yield producer


def test_what_is_published_is_listed_with_owner_and_place(producer: Producer, other: MetadataClient) -> None:
    assert producer.put(name(), b"here") is None
    assert other.listing([prefix()]) == [Listing([name()], [Entry(name(), producer.owner, b"here")], steady=True)]


def test_what_is_published_is_found(producer: Producer, other: MetadataClient) -> None:
    producer.put(name(), b"here")
    assert other.lookup([name()]) == [Entry(name(), producer.owner, b"here")]


def test_names_are_listed_in_order(producer: Producer, other: MetadataClient) -> None:
    names = [name(what=f"s-{index:010d}") for index in (3, 1, 2)]
    for each in names:
        producer.put(each)
    assert other.listing([prefix()])[0].names == sorted(names)


def test_many_prefixes_take_one_question(producer: Producer, other: MetadataClient) -> None:
    for index in range(50):
        producer.put(name(f"r=3a{index}"))
    before = other.status()["asked"]["AskListings"]
    listings = other.listing([prefix(f"r=3a{index}") for index in range(50)])
    assert [listing.names for listing in listings] == [[name(f"r=3a{index}")] for index in range(50)]
    assert other.status()["asked"]["AskListings"] == before + 1


def test_a_prefix_does_not_meet_a_longer_id(producer: Producer, other: MetadataClient) -> None:
    producer.put(name("x=3a10"))
    assert other.listing([prefix("x=3a1")])[0].names == []


def test_a_listing_of_many_pages_is_whole(producer: Producer, other: MetadataClient) -> None:
    names = sorted(name(f"page=3a{index:05d}") for index in range(6000))
    producer.client.publish(producer.owner, [(each, b"p" * 40) for each in names])
    assert other.listing(["ns/page"])[0].names == names


def test_prefixes_whose_answer_is_too_long_for_one_message_are_all_answered(
    producer: Producer, other: MetadataClient
) -> None:
    names = [[name(f"big=3a{group}", f"s-{index:010d}") for index in range(1500)] for group in range(4)]
    for group in names:
        producer.client.publish(producer.owner, [(each, b"p" * 40) for each in group])
    assert [listing.names for listing in other.listing([prefix(f"big=3a{group}") for group in range(4)])] == names


def test_an_unknown_name_is_not_found(client: MetadataClient) -> None:
    assert isinstance(client.lookup([name("never")])[0], NotFoundError)


@pytest.mark.parametrize(
    ("reason", "error"), [("deleted", DeletedError), ("evicted", EvictedError), ("superseded", SupersededError)]
)
def test_who_looks_for_what_is_gone_learns_why(
    producer: Producer, other: MetadataClient, reason: str, error: type[Exception]
) -> None:
    producer.put(name(reason))
    assert other.delete([name(reason)], reason) == 1
    assert type(other.lookup([name(reason)])[0]) is error


def test_a_producer_evicts_nothing_of_others(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    other.mine = ("f" * 32,)
    assert other.delete([name()], "evicted") == 0
    assert not isinstance(other.lookup([name()], fresh=True)[0], RoutingError)
    assert other.delete([name()]) == 1


def test_an_empty_listing_says_why(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    other.delete([name()], "evicted")
    assert other.listing([prefix()])[0].gone == "evicted"


def test_deleting_counts_what_was_there(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    assert other.delete([name(), name("never")]) == 1
    assert other.delete([name()]) == 0


def test_deleting_a_prefix_takes_what_is_under_it_alone(producer: Producer, other: MetadataClient) -> None:
    for index in range(2500):
        producer.held[name(f"x=3a1{index}")] = b""
    producer.client.publish(producer.owner, list(producer.held.items()))
    producer.put(name("y"))
    assert other.delete_prefix("ns/x=3a1") == 2500
    assert other.listing(["ns/"])[0].names == [name("y")]


def test_the_owner_is_told_what_others_deleted(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    other.delete([name()])
    assert until(lambda: producer.dropped) == [name()]


def test_the_owner_is_told_all_of_a_large_deletion(producer: Producer, other: MetadataClient) -> None:
    names = [name(f"x=3a{index}") for index in range(4000)]
    producer.client.publish(producer.owner, [(each, b"") for each in names])
    other.delete_prefix("ns/")
    until(lambda: sorted(producer.dropped) == sorted(names))


def test_the_owner_is_not_told_what_its_own_client_deleted(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    producer.client.delete([name()])
    producer.put(name("y"))
    other.delete([name("y")])
    assert until(lambda: producer.dropped) == [name("y")]


def test_publishing_the_same_again_changes_nothing(producer: Producer) -> None:
    producer.put(name(), b"here")
    assert producer.put(name(), b"here") is None


def test_a_name_that_exists_elsewhere_is_refused_with_its_entry(producer: Producer) -> None:
    producer.put(name(), b"here")
    assert producer.put(name(), b"there") == Entry(name(), producer.owner, b"here")


def test_a_name_of_another_owner_is_refused_with_its_entry(producer: Producer, other: MetadataClient) -> None:
    producer.put(name(), b"here")
    with producing(other) as second:
        assert second.put(name(), b"there") == Entry(name(), producer.owner, b"here")


def test_publishing_again_moves_what_the_owner_has_elsewhere(producer: Producer, other: MetadataClient) -> None:
    producer.put(name(), b"here")
    producer.client.publish(producer.owner, [(name(), b"there")], again=True)
    assert other.lookup([name()]) == [Entry(name(), producer.owner, b"there")]


def test_publishing_again_does_not_bring_back_what_was_deleted(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    other.delete([name()])
    outcome = producer.client.publish(producer.owner, [(name(), b"place")], again=True)
    assert isinstance(outcome[0], DeletedError)


def test_what_was_deleted_can_be_put_anew(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    other.delete([name()])
    until(lambda: producer.dropped)
    producer.put(name(), b"anew")
    assert other.lookup([name()]) == [Entry(name(), producer.owner, b"anew")]


def test_an_unregistered_owner_cannot_publish(service: Service) -> None:
    with client_of(service.address, timeout=0.2) as client, pytest.raises(StoreUnavailableError):
        client.publish("0" * 32, [(name(), b"")])


def test_a_wait_returns_at_once_if_what_was_seen_is_not_so(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    assert other.wait(prefix(), [], time.monotonic() + 60).names == [name()]


def test_a_wait_ends_with_the_change(producer: Producer, other: MetadataClient) -> None:
    timer = threading.Timer(0.1, producer.put, [name()])
    timer.start()
    assert other.wait(prefix(), [], time.monotonic() + 60).names == [name()]
    timer.join()


def test_a_wait_ends_when_something_goes(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    timer = threading.Timer(0.1, producer.client.delete, [[name()]])
    timer.start()
    assert other.wait(prefix(), [name()], time.monotonic() + 60).names == []
    timer.join()


def test_a_wait_ends_at_its_deadline_with_what_there_is(producer: Producer, other: MetadataClient) -> None:
    producer.put(name())
    assert other.wait(prefix(), [name()], time.monotonic() + 0.1).names == [name()]


@pytest.mark.parametrize("start", ["ns/", "ns/x", prefix() + "0"])
def test_a_wait_can_be_for_any_prefix(producer: Producer, other: MetadataClient, start: str) -> None:
    timer = threading.Timer(0.1, producer.put, [name()])
    timer.start()
    assert other.wait(start, [], time.monotonic() + 60).names == [name()]
    timer.join()


def test_a_listing_too_long_to_wait_for_is_watched_all_the_same(producer: Producer, other: MetadataClient) -> None:
    names = sorted(name(f"w=3a{index:05d}") for index in range(5000))
    producer.client.publish(producer.owner, [(each, b"p" * 40) for each in names])
    timer = threading.Timer(0.1, producer.put, [name("w=3a9")])
    timer.start()
    assert len(other.wait("ns/w", names, time.monotonic() + 60).names) == 5001
    timer.join()


def test_an_owner_is_known_by_what_it_said(producer: Producer, other: MetadataClient) -> None:
    assert other.owner(producer.owner) == producer.info


def test_a_later_revision_of_an_owner_is_told(producer: Producer, other: MetadataClient) -> None:
    other.owner(producer.owner)
    later = owner_info(producer.owner, revision=1)
    producer.link.update(later)
    assert other.owner(producer.owner, 1) == later


def test_a_revision_that_is_not_there_yet_is_waited_for(producer: Producer, other: MetadataClient) -> None:
    later = owner_info(producer.owner, revision=1)
    timer = threading.Timer(0.1, producer.link.update, [later])
    timer.start()
    assert other.owner(producer.owner, 1) == later
    timer.join()


def test_an_unknown_owner_is_unavailable(service: Service) -> None:
    with client_of(service.address, timeout=0.2) as client, pytest.raises(StoreUnavailableError):
        client.owner("1" * 32)


ACTS = ["listing", "lookup", "delete", "delete_prefix", "publish", "wait", "owner"]


def act(which: str, client: MetadataClient, producer: Producer) -> object:
    """Does something with what another client put into namespace ``other``."""
    foreign = name(namespace="other")
    calls = {
        "listing": lambda: client.listing([prefix(namespace="other")]),
        "lookup": lambda: client.lookup([foreign]),
        "delete": lambda: client.delete([foreign]),
        "delete_prefix": lambda: client.delete_prefix("o"),
        "publish": lambda: client.publish(producer.owner, [(foreign, b"")]),
        "wait": lambda: client.wait(prefix(namespace="other"), [], time.monotonic() + 60),
        "owner": lambda: client.owner(producer.owner),
    }
    return calls[which]()


@pytest.mark.parametrize("which", ACTS)
def test_who_proved_a_secret_cannot_leave_its_namespace(which: str) -> None:
    security = Security(secret="hush")
    with (
        serving(security=security) as service,
        client_of(service.address, "other", security) as other,
        client_of(service.address, "ns", security, timeout=0.2) as client,
        producing(other) as producer,
    ):
        producer.put(name(namespace="other"))
        with pytest.raises((UnsupportedError, StoreUnavailableError)):
            act(which, client, producer)


@pytest.mark.parametrize("which", ACTS)
def test_without_keys_or_secret_a_namespace_keeps_nobody_out(
    service: Service, client: MetadataClient, which: str
) -> None:
    with client_of(service.address, "other") as other, producing(other) as producer:
        producer.put(name(namespace="other"))
        act(which, client, producer)


def test_a_link_can_be_started_without_holding_anything(client: MetadataClient) -> None:
    link = ProducerLink(client, owner_info(), lambda: [], lambda _: None)
    link.start()
    link.stop()


def test_of_many_that_wait_only_those_concerned_are_answered(service: Service, producer: Producer) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.linger = 0
        asker.connect(service.address.endpoints[1])
        asker.send(framing.encode_question(m.Hello("ns", bytes(16)), 1, 1000))
        asker.recv()
        for number in range(2, 3002):
            wait = m.AskChange(prefix(f"w=3a{number}"), 0, digest([]))
            asker.send(framing.encode_question(wait, number, 60_000))
        until(lambda: producer.client.status()["waiting"] == 3000)
        producer.put(name("w=3a77"))
        head, answer = framing.decode_answer(asker.recv())
        assert (head.id, answer.rows[0].names, asker.poll(100)) == (77, [name("w=3a77")], 0)
