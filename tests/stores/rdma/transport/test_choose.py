"""Which way leads to a producer: the best one, or the one that is asked for and no other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdeploy_routing_plugins.errors import RoutingError, StoreClosedError, StoreUnavailableError, UnsupportedError
from fastdeploy_routing_plugins.stores.rdma.config import RdmaConfig
from fastdeploy_routing_plugins.stores.rdma.place import ArenaInfo, OwnerInfo
from fastdeploy_routing_plugins.stores.rdma.transport import choose
from fastdeploy_routing_plugins.stores.rdma.transport.choose import Sources
from fastdeploy_routing_plugins.stores.rdma.transport.tcp_server import TcpServer

from .process import soon
from .producing import Producer, blob_of, is_whole, want

Maker = Callable[..., Sources]
NAME = "ns/a"


@pytest.fixture
def sources() -> Iterator[Maker]:
    """Makes what is closed at the end."""
    made: list[Sources] = []

    def maker(transport: Any = "auto", host: str = "here", endpoint: Any = None, **options: Any) -> Sources:
        made.append(Sources(RdmaConfig(transport=transport, **options), host, endpoint))
        return made[-1]

    yield maker
    for each in made:
        each.close()


class Endpoint:
    """What Mooncake's side looks like to who chooses."""

    def __init__(self, protocol: str, reached: bool = True) -> None:
        self.protocol = protocol
        self._reached = reached

    def reaches(self, info: OwnerInfo) -> bool:
        return self._reached


def changed(info: OwnerInfo, **fields: Any) -> OwnerInfo:
    return OwnerInfo(**{name: fields.get(name, getattr(info, name)) for name in info.__struct_fields__})


def other_key(info: OwnerInfo) -> OwnerInfo:
    return changed(info, arenas=tuple(ArenaInfo(each.path, each.nbytes, each.key ^ 1) for each in info.arenas))


def gone(info: OwnerInfo) -> OwnerInfo:
    return changed(info, arenas=(ArenaInfo("/dev/shm/fd-routing-0-none.arena", 1 << 20, 1),))


def reads(sources: Sources, producer: Producer, info: OwnerInfo) -> str:
    """Reads an object and returns which way it came."""
    place = producer._held[NAME][2] if NAME in producer._held else producer.put(NAME, os.urandom(50_000))
    source = sources.get(info)
    found = blob_of(source.read([want(NAME, place)], soon())[0])
    return source.kind if is_whole(found, NAME) else "wrong"


@pytest.mark.parametrize(
    ("transport", "host", "change", "kind"),
    [
        ("auto", "here", changed, "shm"),
        ("auto", "elsewhere", changed, "tcp"),
        ("auto", "here", other_key, "tcp"),
        ("auto", "here", gone, "tcp"),
        ("shm", "here", changed, "shm"),
        ("tcp", "here", changed, "tcp"),
        ("tcp", "elsewhere", changed, "tcp"),
    ],
)
def test_the_way_is_the_best_or_the_one_that_is_asked_for(
    sources: Maker, producer: Producer, server: TcpServer, transport: str, host: str, change: Any, kind: str
) -> None:
    info = change(producer.info(server.address))
    assert reads(sources(transport, host), producer, info) == kind


@pytest.mark.parametrize(
    ("transport", "host", "change", "error", "why"),
    [
        ("shm", "elsewhere", changed, UnsupportedError, "'shm' does not lead to .*: it runs on another host"),
        ("shm", "here", other_key, UnsupportedError, "is another arena"),
        ("shm", "here", gone, StoreUnavailableError, "cannot be opened: No such file.*another container"),
        ("tcp", "here", lambda info: changed(info, tcp=""), UnsupportedError, "'tcp' .* serves no TCP .*'auto'"),
        ("rdma", "here", changed, UnsupportedError, "'rdma' does not lead to"),
        (
            "auto",
            "elsewhere",
            lambda info: changed(info, tcp=""),
            UnsupportedError,
            "no way to .*: shm: it runs on another host; rdma: .*; tcp: the producer serves no TCP",
        ),
    ],
)
def test_what_does_not_lead_there_is_an_error_that_says_why(
    sources: Maker,
    producer: Producer,
    server: TcpServer,
    transport: str,
    host: str,
    change: Any,
    error: type[RoutingError],
    why: str,
) -> None:
    with pytest.raises(error, match=why):
        sources(transport, host).get(change(producer.info(server.address)))


@pytest.mark.parametrize(
    ("transport", "host", "endpoint", "kind"),
    [
        ("auto", "elsewhere", Endpoint("rdma"), "rdma"),
        ("auto", "here", Endpoint("rdma"), "shm"),
        ("auto", "elsewhere", Endpoint("rdma", reached=False), "tcp"),
        ("auto", "elsewhere", Endpoint("tcp"), "tcp"),
        ("rdma", "here", Endpoint("rdma"), "rdma"),
        ("rdma", "here", Endpoint("tcp"), "rdma"),
    ],
)
def test_rdma_is_taken_between_hosts_that_have_it(
    sources: Maker, producer: Producer, server: TcpServer, transport: str, host: str, endpoint: Endpoint, kind: str
) -> None:
    assert sources(transport, host, endpoint).get(producer.info(server.address)).kind == kind


def test_rdma_that_does_not_reach_a_producer_is_an_error(sources: Maker, producer: Producer) -> None:
    with pytest.raises(UnsupportedError, match="the producer does not serve it"):
        sources("rdma", "here", Endpoint("rdma", reached=False)).get(producer.info())


def test_a_producer_keeps_its_way(sources: Maker, producer: Producer, server: TcpServer) -> None:
    made, info = sources(), producer.info(server.address)
    assert made.get(info) is made.get(info)


def test_an_older_revision_does_not_replace_a_newer_one(sources: Maker, producer: Producer) -> None:
    made = sources()
    newer = made.get(producer.info(revision=2))
    assert made.get(producer.info(revision=1)) is newer


def test_a_newer_revision_adds_arenas_and_keeps_mappings(sources: Maker, producer: Producer) -> None:
    made, info = sources(), producer.info()
    first = made.get(changed(info, arenas=info.arenas[:1]))
    place = producer.put(NAME, os.urandom(50_000), lent=True)
    before = first.read([want(NAME, place)], soon())[0]
    second = made.get(changed(info, revision=1))
    after = blob_of(second.read([want(NAME, place)], soon())[0])
    assert isinstance(before, RoutingError)
    assert (before.facts["moved"], is_whole(after, NAME), second._arenas[0] is first._arenas[0]) == (True, True, True)


def test_a_newer_revision_without_another_address_keeps_its_connections(
    sources: Maker, producer: Producer, server: TcpServer
) -> None:
    made, info = sources("tcp"), producer.info(server.address)
    assert made.get(info) is made.get(changed(info, revision=1))


def test_a_newer_revision_may_lead_another_way(sources: Maker, producer: Producer, server: TcpServer) -> None:
    made, info = sources(), producer.info(server.address)
    first = reads(made, producer, other_key(info))
    assert (first, reads(made, producer, changed(info, revision=1)), made.kinds()) == ("tcp", "shm", {"shm": 1})


def test_what_is_in_use_is_counted(sources: Maker, producer: Producer, server: TcpServer) -> None:
    made, info = sources(), producer.info(server.address)
    made.get(info)
    for number in range(2):
        made.get(changed(other_key(info), owner=f"{number:032x}"))
    assert made.kinds() == {"shm": 1, "tcp": 2}


def test_a_producer_that_is_dropped_is_found_again(sources: Maker, producer: Producer) -> None:
    made, info = sources(), producer.info()
    first = made.get(info)
    made.drop(info.owner)
    dropped = made.kinds()
    assert (dropped, made.get(info) is first) == ({}, False)


def test_a_producer_that_nobody_knows_can_be_dropped(sources: Maker) -> None:
    made = sources()
    made.drop("0" * 32)
    assert made.kinds() == {}


def test_the_memory_of_a_producer_that_removed_it_is_let_go(
    sources: Maker, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_TIDY", 0.0)
    made, one, other = sources(), Producer(folder), Producer(folder)
    made.get(one.info())
    path = one.shelf.file.path
    one.close()
    time.sleep(0.001)
    made.get(changed(other.info(), owner="f" * 32))
    with open("/proc/self/maps", encoding="utf-8") as file:
        mapped = path in file.read()
    other.close()
    assert (made.kinds(), mapped) == ({"shm": 1}, False)


def test_closed_sources_lead_nowhere(sources: Maker, producer: Producer) -> None:
    made = sources()
    made.close()
    with pytest.raises(StoreClosedError):
        made.get(producer.info())


def test_the_secret_is_the_configurations(sources: Maker, producer: Producer) -> None:
    server = TcpServer(producer, "127.0.0.1", 0, "a secret")
    kind = reads(sources("tcp", secret="a secret"), producer, producer.info(server.address))
    server.stop()
    assert kind == "tcp"
