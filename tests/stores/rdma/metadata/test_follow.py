"""Following a trajectory by the stream of changes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import zmq

from fastdeploy_routing_plugins.stores.rdma.metadata.follow import Follower

from .helpers import address_of, client_of, name, producing, serving, until

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
        until(lambda: client.status()["followed"] == 0)
        yield client


@pytest.fixture
def follower(client: MetadataClient) -> Iterator[Follower]:
    follower = Follower(client, "d:1:0:0")
    follower.open()
    until(lambda: follower.update(0) or client.status()["followed"] == 2)
    until(lambda: not follower.update(time.monotonic() + 0.05))
    yield follower
    follower.close()


def turn(trajectory: int, number: int) -> str:
    return name(f"d=3a{trajectory}=3a{number}=3a0")


def listings(client: MetadataClient) -> int:
    return int(client.status()["asked"].get("AskListings", 0))


def test_what_comes_is_told_without_a_question(client: MetadataClient, follower: Follower) -> None:
    before = listings(client)
    with producing(client) as producer:
        producer.put(turn(1, 0))
        until(lambda: follower.update(0))
        assert (follower.listing.names, listings(client)) == ([turn(1, 0)], before)


def test_what_goes_is_told(client: MetadataClient, follower: Follower) -> None:
    with producing(client) as producer:
        producer.put(turn(1, 0))
        producer.put(turn(1, 1))
        client.delete([turn(1, 0)])
        until(lambda: follower.update(0) and follower.listing.names == [turn(1, 1)])


def test_what_was_there_before_is_listed(client: MetadataClient) -> None:
    with producing(client) as producer:
        producer.put(turn(1, 0))
        producer.put(turn(10, 0))
        follower = Follower(client, "d:1:5:0")
        follower.open()
        assert follower.listing.names == [turn(1, 0)]
        follower.close()


def test_of_other_trajectories_nothing_is_told(client: MetadataClient, follower: Follower) -> None:
    with producing(client) as producer:
        client.publish(producer.owner, [(turn(number, 0), b"") for number in range(2, 500)])
        assert not follower.update(time.monotonic() + 0.2)


def test_a_lost_message_is_noticed_and_made_up_for(
    client: MetadataClient, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producing(client) as producer:
        producer.put(turn(1, 0))
        assert follower._socket is not None
        until(lambda: follower._socket.poll(10))
        follower._socket.recv()  # it is lost
        producer.put(turn(1, 1))
        until(lambda: follower.update(0) and follower.listing.names == [turn(1, 0), turn(1, 1)])


def test_a_lost_last_message_is_noticed_within_a_moment(client: MetadataClient, follower: Follower) -> None:
    with producing(client) as producer:
        producer.put(turn(1, 0))
        until(lambda: follower._socket.poll(10))
        follower._socket.recv()
        assert follower.update(time.monotonic() + 10)
        assert follower.listing.names == [turn(1, 0)]


def test_the_names_of_a_producer_that_ends_go(client: MetadataClient, follower: Follower) -> None:
    with producing(client) as producer:
        producer.put(turn(1, 0))
        until(lambda: follower.update(0))
    until(lambda: follower.update(0))
    assert follower.listing.names == []


def test_nobody_can_follow_what_it_was_not_told_of(client: MetadataClient, follower: Follower) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as spy, producing(client) as producer:
        spy.linger = 0
        spy.connect(address_of(client).endpoints[0])
        spy.setsockopt(zmq.SUBSCRIBE, b"")
        time.sleep(0.3)
        producer.put(turn(1, 0))
        until(lambda: follower.update(0))
        assert not spy.poll(300)


def test_who_ends_is_not_told_any_more(client: MetadataClient) -> None:
    follower = Follower(client, "d:1")
    follower.open()
    until(lambda: client.status()["followed"] == 2)
    follower.close()
    until(lambda: client.status()["followed"] == 0)


def test_a_follower_goes_on_with_a_new_service() -> None:
    with serving() as service, client_of(service.address) as client, producing(client) as producer:
        follower = Follower(client, "d:1")
        follower.open()
        service.stop()
        until(lambda: not _listens(service.address.coord))
        with serving(service.address):
            producer.put(turn(1, 0))
            until(lambda: follower.update(time.monotonic() + 0.1))
            producer.put(turn(1, 1))
            until(lambda: follower.update(time.monotonic() + 0.1) and len(follower.listing.names) == 2)
            follower.close()


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_who_subscribes_behind_many_that_are_ignored_is_heard_at_once(client: MetadataClient) -> None:
    welcome = client.connection().welcome
    assert welcome is not None
    topic = welcome.topic + bytes([1]) * 8
    with zmq.Context() as context, context.socket(zmq.SUB) as stranger:
        stranger.linger = stranger.sndhwm = stranger.rcvhwm = 0
        stranger.connect(client.connection().spot().sync)
        for number in range(700):
            stranger.subscribe(b"nonsense %d" % number)
        stranger.subscribe(topic)
        assert stranger.poll(10_000)
        assert stranger.recv().startswith(topic)
