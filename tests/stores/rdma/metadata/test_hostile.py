"""Damaged, foreign and hostile frames: an error or silence, no crash, no growth, and others are served as ever."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from fastdeploy_routing_plugins.errors import CorruptDataError
from fastdeploy_routing_plugins.stores.rdma.metadata import changes, framing
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m
from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry

from . import samples
from .helpers import client_of, name, prefix, producing, served, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service

MUTATIONS = int(os.environ.get("FD_ROUTING_TEST_MUTATIONS", "5000"))
HELLO = framing.encode_question(m.Hello("ns", bytes(16)), 1, 1000)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[MetadataClient]:
    with client_of(service.address) as client:
        yield client


class Stranger:
    """A peer that sends what it likes."""

    def __init__(self, coord: int) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket: zmq.Socket[bytes] = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = self.socket.sndtimeo = 20_000
        self.socket.connect(f"tcp://127.0.0.1:{coord}")

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.context.term()

    def ask(self, raw: bytes) -> Any:
        """Sends a frame, and returns the body of the next answer."""
        self.socket.send(raw)
        return framing.decode_answer(self.socket.recv())[1]


@pytest.fixture
def stranger(service: Service) -> Iterator[Stranger]:
    with Stranger(service.address.coord) as stranger:
        yield stranger


def mutant(rng: random.Random, frames: list[bytes]) -> bytes:
    """Returns a frame that was damaged."""
    raw = bytearray(rng.choice(frames))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw)) if raw else 0
        kind = rng.randrange(6)
        if kind == 0:
            raw[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del raw[at : at + rng.randint(1, 8)]
        elif kind == 2:
            raw[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 3:
            del raw[at:]
        elif kind == 4:
            raw[at : at + 4] = struct.pack(">I", rng.choice((0, 1, 2**31, 2**32 - 1)))
        else:
            other = rng.choice(frames)
            raw[at:] = other[rng.randrange(len(other)) :]
    return bytes(raw)


def test_damaged_questions_harm_nobody() -> None:
    rng = random.Random(5)
    # What is removed by a damaged frame that happens to be well-formed is another's to lose: names of `other`.
    frames = [raw.replace(b"\xa2ns", b"\xa2oo").replace(b"ns/", b"oo/") for raw in samples.frames().values()]
    hello = framing.encode_question(m.Hello("oo", bytes(16)), 1, 1000)
    with served() as service, client_of(service.address) as client, producing(client) as producer:
        producer.put(name())
        entry = Entry(name(), producer.owner, b"place")
        with Stranger(service.address.coord) as stranger:
            before = 0
            for index in range(MUTATIONS):
                if index % 50 == 0:
                    stranger.socket.send(hello)
                stranger.socket.send(mutant(rng, frames))
                while stranger.socket.poll(0):
                    framing.decode_answer(stranger.socket.recv())  # whatever is said is well-formed
                if index % 500 == 250:
                    client.connection().cache.clear()
                    assert client.lookup([name()]) == [entry]
                    before = before or client.status()["memory"]
        figures = client.status()
        assert client.listing([prefix()])[0].entries == [entry]
        assert figures["refused"]["malformed"] > MUTATIONS // 10
        assert figures["memory"] < before + (32 << 20)


def test_damaged_answers_are_read_or_corrupt() -> None:
    rng = random.Random(6)
    frames = list(samples.frames().values())
    for _ in range(MUTATIONS):
        raw = mutant(rng, frames)
        for read in (framing.decode_answer, changes.decode_told):
            with contextlib.suppress(CorruptDataError):
                read(raw)


def test_who_does_not_greet_is_asked_to(stranger: Stranger) -> None:
    answer = stranger.ask(framing.encode_question(m.AskEntries([name()]), 1, 1000))
    assert answer.code == m.Refusal.GREET


def test_another_version_is_refused_with_ours(stranger: Stranger) -> None:
    answer = stranger.ask(b"\x07" + HELLO[1:])
    assert (answer.code, "version 1" in answer.message) == (m.Refusal.VERSION, True)


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x91\xcc\xff", b"\x92\x03" + b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"]
)
def test_what_is_no_question_is_called_malformed(stranger: Stranger, body: bytes) -> None:
    stranger.ask(HELLO)
    assert stranger.ask(HELLO[: framing.QUESTION_HEAD] + body).code == m.Refusal.MALFORMED


@pytest.mark.parametrize(
    "body",
    [
        m.Publish(samples.OWNER, [name()], []),
        m.AskListings([prefix()], ["", ""]),
        m.Register(b"\xc1"),
        m.Register(samples.INFO.replace(samples.OWNER.encode(), b"../" + samples.OWNER[3:].encode())),
    ],
)
def test_what_contradicts_itself_is_called_malformed(stranger: Stranger, body: Any) -> None:
    stranger.ask(HELLO)
    stranger.ask(framing.encode_question(m.Register(samples.INFO), 2, 1000))
    assert stranger.ask(framing.encode_question(body, 3, 1000)).code == m.Refusal.MALFORMED


@pytest.mark.parametrize(
    "bad", ["ns/x", "ns/x/000000/routing/0/", "ns/x/000000/rou ting/0/x", "ns/X/0/r/0/x", "ns/a/b/c/d/e/f"]
)
def test_what_no_object_is_called_is_malformed(stranger: Stranger, bad: str) -> None:
    stranger.ask(HELLO)
    stranger.ask(framing.encode_question(m.Register(samples.INFO), 2, 1000))
    assert stranger.ask(framing.encode_question(m.Publish(samples.OWNER, [bad], [b""]), 3, 1000)).code == 5


@pytest.mark.parametrize("namespace", ["a/b", "A", "..", "a b", "é"])
def test_no_namespace_is_called_so(stranger: Stranger, namespace: str) -> None:
    raw = framing.encode_question(m.Hello(namespace, bytes(16)), 1, 1000)
    assert stranger.ask(raw).code == m.Refusal.NAMESPACE


def test_frames_in_parts_are_dropped_and_counted(client: MetadataClient, stranger: Stranger) -> None:
    stranger.socket.send_multipart([HELLO, HELLO, b"x" * 1000])
    until(lambda: client.status()["refused"].get("frames"))
    assert isinstance(stranger.ask(HELLO), m.Welcome)


def test_a_frame_beyond_the_limit_ends_its_connection_alone(client: MetadataClient, stranger: Stranger) -> None:
    stranger.socket.rcvtimeo = 300
    stranger.socket.send(HELLO + bytes(framing.MAX_MESSAGE))
    with pytest.raises(zmq.Again):
        stranger.socket.recv()
    assert client.status()["names"] == 0


def test_a_repeated_question_does_nothing_twice(client: MetadataClient, stranger: Stranger) -> None:
    with producing(client) as producer:
        producer.put(name())
        stranger.ask(HELLO)
        question = framing.encode_question(m.Delete([name()]), 2, 1000)
        assert stranger.ask(question) == m.Deleted(1)
        until(lambda: producer.dropped)
        producer.put(name())
        assert stranger.ask(question) == m.Deleted(1)
        assert client.listing([prefix()])[0].names == [name()]


def test_a_repeated_question_by_another_connection_does_nothing_twice(
    service: Service, client: MetadataClient, stranger: Stranger
) -> None:
    with producing(client) as producer, Stranger(service.address.coord) as again:
        producer.put(name())
        stranger.ask(HELLO)
        question = framing.encode_question(m.Delete([name()]), 3, 1000)
        assert stranger.ask(question) == m.Deleted(1)
        until(lambda: producer.dropped)
        producer.put(name())
        again.ask(HELLO)
        assert again.ask(question) == m.Deleted(1)
        assert client.listing([prefix()])[0].names == [name()]


def test_connections_beyond_the_limit_have_to_greet_again() -> None:
    with serving(connections=2) as service, client_of(service.address) as client:
        for _ in range(5):
            with Stranger(service.address.coord) as stranger:
                stranger.ask(framing.encode_question(m.Hello("ns", os.urandom(16)), 1, 1000))
        figures = client.status()  # its own connection was forgotten: it greets again by itself
        assert (figures["connections"], figures["refused"].get("greet", 0)) == (2, 0)


def test_who_does_not_read_its_answers_does_not_hold_up_others(client: MetadataClient, service: Service) -> None:
    names = [name(f"x=3a{index}") for index in range(2000)]
    with producing(client) as producer, Stranger(service.address.coord) as stranger:
        client.publish(producer.owner, [(each, b"p" * 40) for each in names])
        stranger.ask(HELLO)
        for number in range(2, 1000):
            try:
                stranger.socket.send(framing.encode_question(m.AskListings(["ns/"]), number, 1000), zmq.NOBLOCK)
            except zmq.Again:
                break
        client.connection().cache.clear()
        assert client.lookup(names[:1]) == [Entry(names[0], producer.owner, b"p" * 40)]


def test_names_beyond_the_limit_are_refused_by_name() -> None:
    with serving(names=3) as service, client_of(service.address) as client, producing(client) as producer:
        for index in range(3):
            producer.put(name(f"x=3a{index}"))
        with pytest.raises(Exception, match="3 names, its limit"):
            producer.put(name("y"))


def test_who_dies_among_heartbeats_with_much_unread_does_not_take_the_service_along() -> None:
    with served() as service, client_of(service.address) as client, producing(client) as producer:
        client.publish(producer.owner, [(name(f"x=3a{index}"), b"p" * 40) for index in range(2000)])
        for _ in range(10):
            with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
                stranger.linger = 0
                stranger.rcvtimeo = stranger.sndtimeo = 20_000
                stranger.setsockopt(zmq.HEARTBEAT_IVL, 2)
                stranger.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60_000)
                stranger.connect(service.address.endpoints[1])
                stranger.send(framing.encode_question(m.Hello("ns", os.urandom(16)), 1, 1000))
                stranger.recv()
                for number in range(2, 400):
                    stranger.send(framing.encode_question(m.AskListings(["ns/"]), number, 1000))
                    if number % 20 == 0:
                        time.sleep(0.002)  # for a heartbeat
        assert client.lookup([name("x=3a1")]) == [Entry(name("x=3a1"), producer.owner, b"p" * 40)]


def greeted(stranger: Stranger) -> bool:
    """Whether a stranger was answered; a service that sheds everything may shed that, too."""
    try:
        stranger.ask(HELLO)
    except zmq.Again:
        return False
    return True


def test_a_flood_is_thrown_away_and_who_asks_again_is_answered() -> None:
    with serving(unread=-1) as service, client_of(service.address) as client, producing(client) as producer:
        client.publish(producer.owner, [(name(f"x=3a{index}"), b"p" * 40) for index in range(2000)])
        with Stranger(service.address.coord) as stranger:
            stranger.socket.rcvtimeo = 300
            until(lambda: greeted(stranger))
            for number in range(2, 800):
                stranger.socket.send(framing.encode_question(m.AskListings(["ns/"]), number, 1000))
            until(lambda: client.status()["refused"].get("flood", 0) > 100)
        client.connection().cache.clear()
        assert client.lookup([name("x=3a1")]) == [Entry(name("x=3a1"), producer.owner, b"p" * 40)]
