"""Between client and service there is a network."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.stores.rdma.address import Address
from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry

from ..chaos import Chaos
from .helpers import client_of, figures_of, name, producing, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving(unix=0) as service:  # which would not lead through a proxy
        yield service


@pytest.fixture
def proxy(service: Service) -> Iterator[Chaos]:
    with Chaos(("127.0.0.1", service.address.coord)) as proxy:
        yield proxy


@pytest.fixture
def client(service: Service, proxy: Chaos) -> Iterator[MetadataClient]:
    with client_of(Address("127.0.0.1", service.address.sync, proxy.port)) as client:
        client.connection().page = None  # as on another host
        yield client


def test_a_connection_that_leads_nowhere_is_made_anew(proxy: Chaos, client: MetadataClient) -> None:
    with producing(client) as producer:
        producer.put(name())
        proxy.half_open()
        timer = threading.Timer(0.1, proxy.flow)
        timer.start()
        assert client.lookup([name()]) == [Entry(name(), producer.owner, b"place")]
        timer.join()


def test_a_producer_whose_connection_leads_nowhere_is_not_lost(
    service: Service, proxy: Chaos, client: MetadataClient
) -> None:
    with producing(client) as producer, client_of(service.address) as other:
        producer.put(name())
        proxy.half_open()
        proxy.flow()
        until(lambda: figures_of(other, producer.owner)["age"] > 1.0)
        until(lambda: other.lookup([name()]) == [Entry(name(), producer.owner, b"place")])
        assert figures_of(other, producer.owner)["age"] < 5


def test_what_a_question_did_before_its_answer_was_lost_is_not_done_twice(
    service: Service, proxy: Chaos, client: MetadataClient
) -> None:
    with client_of(service.address) as other, producing(other) as producer:
        producer.put(name())
        client.status()
        proxy.reset_after(1)  # of the answer
        assert client.delete([name()]) == 1
        assert other.status()["asked"]["Delete"] == 3  # the second was before it said hello again


@pytest.mark.parametrize("fault", ["delay", "reset", "partition"])
def test_questions_outlast_the_fault(proxy: Chaos, client: MetadataClient, fault: str) -> None:
    with producing(client) as producer:
        producer.put(name())
        {"delay": lambda: proxy.delay(0.05), "reset": proxy.reset, "partition": lambda: proxy.partition(0.8)}[fault]()
        for _ in range(5):
            assert client.lookup([name()]) == [Entry(name(), producer.owner, b"place")]
