"""The TCP transport's own: who is let in, connections that last, and servers that end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from fastdeploy_routing_plugins.arena.pool import Pool
from fastdeploy_routing_plugins.errors import (
    ConfigError,
    CorruptDataError,
    DeletedError,
    RoutingError,
    StoreUnavailableError,
    SupersededError,
    UnsupportedError,
)
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo
from fastdeploy_routing_plugins.stores.rdma.transport import frames
from fastdeploy_routing_plugins.stores.rdma.transport.frames import Answer, Hello, Request
from fastdeploy_routing_plugins.stores.rdma.transport.serving import Limits
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import TcpSource
from fastdeploy_routing_plugins.stores.rdma.transport.tcp_server import TcpServer

from .process import run, soon, until
from .producing import OWNER, Producer, blob_of, is_whole, name_of, want

NAME = name_of(1)
PAYLOAD = os.urandom(300_000)
BIG = 8 << 20
"""Bytes that no socket's buffers take."""


@contextlib.contextmanager
def serving(producer: Producer, secret: str = "", limits: Limits | None = None, port: int = 0) -> Iterator[TcpServer]:
    server = TcpServer(producer, "127.0.0.1", port, secret, owner=OWNER, limits=limits)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def reading(info: OwnerInfo, secret: str = "") -> Iterator[TcpSource]:
    source = TcpSource(info, secret, Pool())
    try:
        yield source
    finally:
        source.close()


def one(source: TcpSource, producer: Producer, seconds: float = 30.0) -> bool:
    """Whether the object comes whole; put if it is not there."""
    place = producer._held[NAME][2] if NAME in producer._held else producer.put(NAME, PAYLOAD)
    return is_whole(blob_of(source.read([want(NAME, place)], soon(seconds))[0]), NAME)


def greet(port: int, hello: Hello | None = None) -> socket.socket:
    """Connects by hand, and greets."""
    peer = socket.create_connection(("127.0.0.1", port), 30)
    if hello is not None:
        peer.sendall(hello.encode())
        assert peer.recv(frames.CHALLENGE_BYTES, socket.MSG_WAITALL)[10] == Answer.WELCOME
    return peer


HELLO = Hello("", False, bytes(32))


# --- who is let in ------------------------------------------------------------------------------------------------


def test_both_sides_with_the_secret_read(producer: Producer) -> None:
    with serving(producer, "a secret") as server, reading(producer.info(server.address), "a secret") as source:
        assert one(source, producer)


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        ("a secret", "", "wants a secret, and this side has none"),
        ("", "a secret", "has no secret, but this side has one"),
        ("a secret", "another", "has another secret than this side"),
    ],
)
def test_without_the_same_secret_nothing_is_read(producer: Producer, theirs: str, ours: str, why: str) -> None:
    with (
        serving(producer, theirs) as server,
        reading(producer.info(server.address), ours) as source,
        pytest.raises(ConfigError, match=why) as caught,
    ):
        one(source, producer)
    assert caught.value.facts["problems"] == (caught.value.message,)


def test_a_stranger_learns_no_proof(producer: Producer) -> None:
    with serving(producer, "a secret") as server:
        peer = greet(server.port)
        peer.sendall(Hello("", True, bytes(32)).encode())
        challenge = peer.recv(frames.CHALLENGE_BYTES, socket.MSG_WAITALL)
        peer.sendall(bytes(frames.PROOF))
        answer, proof = frames.decode_verdict(peer.recv(frames.VERDICT_BYTES, socket.MSG_WAITALL))
        peer.close()
    assert (challenge[10], answer, any(proof)) == (Answer.PROVE, Answer.WRONG_SECRET, False)


def test_requests_before_the_proof_are_not_answered(producer: Producer) -> None:
    place = producer.put(NAME, PAYLOAD)
    with serving(producer, "a secret") as server:
        peer = greet(server.port)
        request = Request(0, NAME, place.card, place.generation, None).encode()
        peer.sendall(Hello("", True, bytes(32)).encode() + request * 10)
        everything = b""
        while piece := peer.recv(1 << 20):
            everything += piece
        peer.close()
    assert len(everything) == frames.CHALLENGE_BYTES + frames.VERDICT_BYTES


def test_a_port_that_another_producer_took_is_no_way(producer: Producer) -> None:
    with serving(producer) as server:
        info = producer.info(server.address)
        changed = OwnerInfo("f" * 32, *[getattr(info, field) for field in info.__struct_fields__[1:]])
        with reading(changed) as source, pytest.raises(StoreUnavailableError, match="another producer"):
            one(source, producer)


def test_a_reader_of_another_version_is_told_ours(producer: Producer) -> None:
    with serving(producer) as server:
        peer = greet(server.port)
        peer.sendall(Hello("", False, bytes(32), version=2).encode())
        challenge = frames.decode_challenge(peer.recv(frames.CHALLENGE_BYTES, socket.MSG_WAITALL))
        peer.close()
    assert (challenge.answer, challenge.version) == (Answer.OTHER_VERSION, 1)


def test_a_producer_of_another_version_is_not_read_from(producer: Producer) -> None:
    with (
        listening(frames.Challenge(Answer.OTHER_VERSION, bytes(32), version=2).encode()) as address,
        reading(producer.info(address)) as source,
        pytest.raises(UnsupportedError, match="version 2"),
    ):
        one(source, producer)


def test_what_is_no_producer_is_not_read_from(producer: Producer) -> None:
    with (
        listening(b"HTTP/1.1 400 Bad Request\r\n".ljust(500)) as address,
        reading(producer.info(address)) as source,
        pytest.raises(StoreUnavailableError, match="no producer of routing"),
    ):
        one(source, producer)


@contextlib.contextmanager
def listening(answer: bytes) -> Iterator[str]:
    """Something that answers whatever it is told with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def body() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        peer.recv(1000)
                        peer.sendall(answer)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)


# --- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:http", ":80", "a:-1"]
)
def test_what_is_no_address_is_an_error(producer: Producer, address: str) -> None:
    with pytest.raises(CorruptDataError, match="no address"):
        TcpSource(producer.info(address), "", Pool())


def test_an_ipv6_address_is_served(producer: Producer) -> None:
    server = TcpServer(producer, "::1")
    with reading(producer.info(server.address)) as source:
        whole = one(source, producer)
    server.stop()
    assert (whole, server.address) == (True, f"[::1]:{server.port}")


def test_a_port_that_is_taken_cannot_be_listened_on(producer: Producer) -> None:
    with serving(producer) as server, pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{server.port}"):
        TcpServer(producer, "127.0.0.1", server.port)


def test_an_address_of_another_host_cannot_be_listened_on(producer: Producer) -> None:
    with pytest.raises(StoreUnavailableError, match=r"192\.0\.2\.1:0"):
        TcpServer(producer, "192.0.2.1")


def test_a_port_where_nobody_listens_is_known_at_once(producer: Producer) -> None:
    with serving(producer) as server:
        info = producer.info(server.address)
    with reading(info) as source, pytest.raises(StoreUnavailableError, match=f"{info.tcp}.*does not listen"):
        one(source, producer, 3600)


# --- connections --------------------------------------------------------------------------------------------------


def test_a_connection_is_used_again(producer: Producer, server: TcpServer) -> None:
    with reading(producer.info(server.address)) as source:
        found = [one(source, producer) for _ in range(20)]
        connections = server.connections
    assert (all(found), connections) == (True, 1)


def test_threads_get_a_few_connections_at_most(producer: Producer, server: TcpServer) -> None:
    one_place = producer.put(NAME, PAYLOAD)
    with reading(producer.info(server.address)) as source:
        threads = [
            threading.Thread(target=lambda: source.read([want(NAME, one_place)] * 20, soon())) for _ in range(12)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        connections = server.connections
    assert 1 <= connections <= 4


def test_a_producer_that_was_started_again_is_read_from(producer: Producer) -> None:
    with serving(producer) as first:
        info = producer.info(first.address)
        source = TcpSource(info, "", Pool())
        before = one(source, producer)
    with serving(producer, port=first.port):
        after = one(source, producer)
        source.close()
    assert (before, after) == (True, True)


def test_closing_a_source_closes_its_connections(producer: Producer, server: TcpServer) -> None:
    with reading(producer.info(server.address)) as source:
        one(source, producer)
    assert until(lambda: server.connections == 0)


def test_two_thousand_requests_are_one_read(producer: Producer, server: TcpServer) -> None:
    places = {name_of(number): producer.put(name_of(number), b"%d" % number) for number in range(200)}
    with reading(producer.info(server.address)) as source:
        found = source.read([want(*each) for each in places.items()] * 10, soon())
    assert [blob_of(each).payload[0] for each in found] == [b"%d" % number for number in range(200)] * 10


def test_large_requests_among_small_ones_are_one_read(producer: Producer, server: TcpServer) -> None:
    place = producer.put(NAME, PAYLOAD)
    many = [(at, at + 1) for at in range(0, 65_536 * 2, 2)]
    asked = [want(NAME, place), want(NAME, place, many), want(NAME, place, ()), want(NAME, place, many)]
    with reading(producer.info(server.address)) as source:
        found = [blob_of(each) for each in source.read(asked, soon())]
    assert [len(each.payload) for each in found] == [1, 65_536, 0, 65_536]


def test_more_ranges_than_are_allowed_are_an_error_in_place(producer: Producer, server: TcpServer) -> None:
    place = producer.put(NAME, PAYLOAD)
    with reading(producer.info(server.address)) as source:
        found = source.read([want(NAME, place, [(0, 0)] * 65_537)], soon())
    assert isinstance(found[0], CorruptDataError)


@pytest.mark.parametrize("name", ["", "x" * 401, "ä"])
def test_a_name_that_cannot_be_asked_for_is_an_error_in_place(
    producer: Producer, server: TcpServer, name: str
) -> None:
    place = producer.put(NAME, PAYLOAD)
    with reading(producer.info(server.address)) as source:
        found = source.read([want(name, place), want(NAME, place)], soon())
    assert (type(found[0]), is_whole(blob_of(found[1]), NAME)) == (CorruptDataError, True)


def test_why_something_is_not_there_arrives(producer: Producer, server: TcpServer) -> None:
    gone = producer.put(name_of(2), b"x")
    old = producer.put(NAME, PAYLOAD)
    producer.delete(name_of(2))
    producer.replace(NAME, b"y")
    with reading(producer.info(server.address)) as source:
        found = source.read([want(name_of(2), gone), want(NAME, old)], soon())
    assert [(type(each), each.facts) for each in found if isinstance(each, RoutingError)] == [
        (DeletedError, {"name": name_of(2)}),
        (SupersededError, {"name": NAME, "attempt": 7}),
    ]


# --- limits -------------------------------------------------------------------------------------------------------


def test_an_idle_connection_makes_room_for_another_reader(producer: Producer) -> None:
    with serving(producer, limits=Limits(connections=1, idle=0.0)) as server:
        info = producer.info(server.address)
        with reading(info) as one_source, reading(info) as other:
            found = [one(source, producer) for source in (one_source, other) * 5]
    assert found == [True] * 10


def test_a_reader_too_many_is_told_so(producer: Producer) -> None:
    with serving(producer, limits=Limits(connections=1, idle=3600)) as server:
        info = producer.info(server.address)
        with reading(info) as first, reading(info) as second:
            one(first, producer)
            with pytest.raises(StoreUnavailableError, match="too many readers"):
                one(second, producer)
            assert one(first, producer)


def test_a_flood_of_connections_is_cut_off(producer: Producer) -> None:
    with serving(producer, limits=Limits(connections=2, idle=3600)) as server:
        peers = [greet(server.port) for _ in range(100)]
        until(lambda: server.connections > 30)
        most = server.connections
        for peer in peers:
            peer.close()
    assert most <= 2 + 32


def test_who_says_nothing_is_cut_off(producer: Producer) -> None:
    with serving(producer, limits=Limits(handshake=0.05)) as server:
        peer = greet(server.port)
        end = peer.recv(1)
        peer.close()
    assert end == b""


def test_who_says_only_half_a_greeting_is_cut_off(producer: Producer) -> None:
    with serving(producer, limits=Limits(handshake=0.05)) as server:
        peer = greet(server.port)
        peer.sendall(HELLO.encode()[:30])
        end = peer.recv(1)
        peer.close()
    assert end == b""


def test_a_reader_that_stops_reading_is_cut_off_and_its_lease_ends(producer: Producer) -> None:
    place = producer.put(NAME, bytes(BIG))
    with serving(producer, limits=Limits(stall=0.2)) as server:
        peer = greet(server.port, HELLO)
        peer.sendall(Request(0, NAME, place.card, place.generation, None).encode() * 4)
        until(lambda: producer.leases == 1)
        producer.delete(NAME)
        while_read = producer.used
        ended = until(lambda: producer.leases == 0)
        peer.close()
    assert (while_read > BIG, ended, producer.used) == (True, True, 0)


def test_a_slow_reader_that_goes_on_reading_is_not_cut_off(producer: Producer) -> None:
    place = producer.put(NAME, bytes(BIG))
    with serving(producer, limits=Limits(stall=3.0)) as server:
        peer = greet(server.port, HELLO)
        peer.sendall(Request(0, NAME, place.card, place.generation, None).encode())
        left = frames.REPLY_BYTES + place.header_bytes + BIG
        while left:
            piece = peer.recv(min(left, 1 << 20))
            assert piece
            left -= len(piece)
            time.sleep(0.005)
        peer.close()
    assert left == 0


# --- ending -------------------------------------------------------------------------------------------------------


def test_a_server_stops_at_once_whatever_its_readers_do(producer: Producer) -> None:
    place = producer.put(NAME, bytes(BIG))
    server = TcpServer(producer, "127.0.0.1")
    peers = [greet(server.port), greet(server.port, HELLO), greet(server.port, HELLO)]
    peers[1].sendall(Request(0, NAME, place.card, place.generation, None).encode())
    peers[2].sendall(Request(0, NAME, place.card, place.generation, None).encode()[:20])
    until(lambda: producer.leases == 1)
    server.stop()
    left = server.connections, producer.leases
    for peer in peers:
        peer.close()
    assert left == (0, 0)


def test_a_server_stops_twice(producer: Producer) -> None:
    server = TcpServer(producer, "127.0.0.1")
    server.stop()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), 5)


def test_a_forked_child_keeps_neither_the_port_nor_a_reader(folder: str) -> None:
    assert run("serve_and_fork", folder) == {"reader": "", "port": "refused"}


def test_a_holder_that_fails_ends_one_connection(producer: Producer, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def lease(self, name: str, card: int, generation: int) -> contextlib.nullcontext[tuple[bytes, memoryview]]:
            if card == 1:
                raise ZeroDivisionError
            return contextlib.nullcontext((b"h", memoryview(b"p")))

    server = TcpServer(Failing(), "127.0.0.1")
    peer, other = greet(server.port, HELLO), greet(server.port, HELLO)
    peer.sendall(Request(0, NAME, 1, 1, None).encode())
    ended = peer.recv(10)
    other.sendall(Request(0, NAME, 2, 1, None).encode())
    answer = other.recv(frames.REPLY_BYTES + 2, socket.MSG_WAITALL)
    for each in (peer, other):
        each.close()
    server.stop()
    assert (ended, answer[-2:], "ZeroDivisionError" in caplog.text) == (b"", b"hp", True)
