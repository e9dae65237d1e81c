"""Processes of the tests: ``producer ADDRESS|- COUNT`` holds names; ``client -`` opens the shared service."""

from __future__ import annotations

import sys

from fastdeploy_routing_plugins.stores.rdma.address import parse
from tests.stores.rdma.metadata.helpers import Producer, client_of, name


def produce(address: str, count: int) -> None:
    """Holds names until the input ends; says its owner's id, and which names it was told to drop."""
    with client_of(None if address == "-" else parse(address)) as client:
        producer = Producer(client)
        producer.held = {name(f"x=3a{index}"): b"place" for index in range(count)}
        producer.link.start()
        print(producer.owner, flush=True)
        for line in sys.stdin:
            print({"dropped": ",".join(producer.dropped), "epoch": client.epoch}[line.strip()], flush=True)
        producer.link.stop()


def consult(address: str) -> None:
    """Says who serves, whenever asked."""
    with client_of(None if address == "-" else parse(address)) as client:
        print(client.status()["pid"], flush=True)
        for _ in sys.stdin:
            print(client.status()["pid"], flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "producer":
        produce(sys.argv[2], int(sys.argv[3]))
    else:
        consult(sys.argv[2])
