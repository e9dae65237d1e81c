"""Whether producers live, and who takes over from those that do not."""

from __future__ import annotations

import time

import pytest

from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry

from .helpers import Producer, client_of, name, producing, served, serving, until

PATIENT = {"suspect": 0.3, "lease": 60.0, "settle": 0.0}


def test_a_producer_that_gives_signs_lives() -> None:
    with serving() as service, client_of(service.address) as client, producing(client) as producer:
        assert client.lives(producer.owner) is True


def test_a_silent_producer_does_not_live() -> None:
    with serving(**PATIENT) as service, client_of(service.address) as client, producing(client) as producer:
        producer.link.stop(unregister=False)
        assert until(lambda: client.lives(producer.owner) is False)


def test_a_producer_that_nobody_knows_may_live() -> None:
    with serving(settle=0.0) as service, client_of(service.address) as client:
        assert client.lives("0" * 32) is None


def test_without_a_service_a_producer_may_live() -> None:
    with served() as service, client_of(service.address) as client, producing(client) as producer:
        service.end()
        began = time.monotonic()
        assert (client.lives(producer.owner), time.monotonic() - began < client.timeout) == (None, True)
        service.start()


@pytest.mark.parametrize("again", [True, False])
def test_an_heir_has_what_its_predecessor_had_not_taken_over_yet(again: bool) -> None:
    with serving(**PATIENT) as service, client_of(service.address) as client:
        first = Producer(client)
        first.link.start()
        first.put(name())
        first.link.stop(unregister=False)
        second = Producer(client, succeeds=[first.owner])
        second.link.start()
        second.link.stop(unregister=False)
        with producing(client, succeeds=[second.owner]) as third:
            assert client.publish(third.owner, [(name(), b"new")], again=again) == [None]
            assert client.lookup([name()]) == [Entry(name(), third.owner, b"new")]
