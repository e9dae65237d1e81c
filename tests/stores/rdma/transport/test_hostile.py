"""Hostile bytes on both ends of the TCP transport: no crash, no growth, no hang, and never a wrong answer."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from fastdeploy_routing_plugins.arena.pool import Pool
from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.errors import CorruptDataError, DeletedError, RoutingError, StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place
from fastdeploy_routing_plugins.stores.rdma.transport import frames, refusals
from fastdeploy_routing_plugins.stores.rdma.transport.base import Wanted
from fastdeploy_routing_plugins.stores.rdma.transport.frames import (
    Answer,
    Challenge,
    Hello,
    ReplyHead,
    Request,
    Status,
)
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import TcpSource

from .process import Process, soon, until
from .producing import blob_of, is_whole, want

MUTATIONS = int(os.environ.get("FD_ROUTING_TEST_MUTATIONS", "5000"))
HELLO = Hello("", False, bytes(32)).encode()
MIB = 1 << 20


def mutated(chosen: random.Random, raw: bytes) -> bytes:
    """Returns bytes with a few changes: flipped, replaced by extremes, cut, doubled, moved."""
    data = bytearray(raw)
    for _ in range(chosen.choice([1, 1, 1, 2, 5])):
        at = chosen.randrange(len(data) + 1)
        kind = chosen.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << chosen.randrange(8)
        elif kind == 1:
            data[at : at + 4] = chosen.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\1\0", b"\xff\xff\xff\x7f"])
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = chosen.randbytes(chosen.randrange(40))
        elif kind == 4:
            data[at:at] = data[: chosen.randrange(len(data) + 1)]
        else:
            data[at : at + 8] = chosen.randbytes(8)
    return bytes(data)


def answers(port: int, sent: bytes) -> bytes:
    """Returns all that a producer says to these bytes."""
    found = bytearray()
    with socket.create_connection(("127.0.0.1", port), 30) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)
        while piece := peer.recv(1 << 16):
            found += piece
            if len(found) > 1 << 20:
                break
    return bytes(found)


def objects(raw: bytes) -> Iterator[bytes]:
    """Yields the headers of the objects in what a producer said."""
    at = frames.CHALLENGE_BYTES
    while at + frames.REPLY_BYTES <= len(raw):
        head = frames.decode_reply(raw[at : at + frames.REPLY_BYTES])
        at += frames.REPLY_BYTES
        if head.status == Status.OBJECT:
            yield raw[at : at + head.header_bytes]
        else:
            assert head.status == Status.ERROR
        at += head.header_bytes + head.payload_bytes


def test_mutated_requests_do_a_producer_no_harm(folder: str) -> None:
    chosen = random.Random(0)
    names = ["ns/a", "ns/b", "ns/c"]
    with Process(folder) as producer, contextlib.closing(TcpSource(producer.info, "", Pool())) as source:
        places = [producer.put(name, 2000) for name in names]
        requests = [
            Request(number, name, place.card, place.generation, ranges).encode()
            for number, (name, place) in enumerate(zip(names, places, strict=True))
            for ranges in (None, (), ((0, 10), (50, 2000)))
        ]
        port, allowed = int(producer.info.tcp.rpartition(":")[2]), {name.encode() for name in names}

        def play(count: int) -> None:
            for turn in range(count):
                good = HELLO + b"".join(chosen.choices(requests, k=chosen.randrange(4)))
                heads = list(objects(answers(port, mutated(chosen, good))))
                assert all(head.split(b" ")[0] in allowed for head in heads)
                if turn % 50 == 0:
                    found = source.read([want(*each) for each in zip(names, places, strict=True)], soon())
                    assert all(is_whole(blob_of(blob), name) for blob, name in zip(found, names, strict=True))

        play(200)
        until(lambda: producer.ask("connections") == 1)
        before = producer.ask("size")
        play(MUTATIONS)
        until(lambda: producer.ask("connections") == 1)
        after = producer.ask("size")
        leases = producer.ask("leases")
    assert after["resident"] - before["resident"] < 16 * MIB
    assert (after["threads"], after["fds"], leases) == (before["threads"], before["fds"], 0)


# --- a producer that lies -----------------------------------------------------------------------------------------

NAME = "ns/a"
PLACE = Place(5, 7, 4, 100_000, 0, 5, 7, 8192)
HEADER, PAYLOAD = b"head", bytes(100_000)
WELCOME = Challenge(Answer.WELCOME, bytes(32)).encode()


class Counting(Pool):
    """A pool that knows the most that was asked of it."""

    most = 0

    def take(self, nbytes: int) -> memoryview:
        self.most = max(self.most, nbytes)
        return super().take(nbytes)


class Liar:
    """Answers every connection with bytes that do not depend on what it is asked."""

    def __init__(self) -> None:
        self.said = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                with peer, contextlib.suppress(OSError):
                    peer.settimeout(30)
                    peer.recv(frames.HELLO_BYTES, socket.MSG_WAITALL)
                    peer.sendall(WELCOME)
                    peer.recv(1 << 16)
                    peer.sendall(self.said)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._listener.close()


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    made = Liar()
    yield made
    made.close()


def outcome(liar: Liar, said: bytes, pool: Pool, wanted: Sequence[Wanted] = (want(NAME, PLACE),)) -> object:
    """Returns what reading leads to when the producer says this."""
    liar.said = said
    source = TcpSource(OwnerInfo("0" * 32, "h", "node", 1, "", (), liar.address), "", pool)
    try:
        return source.read(wanted, soon())[0]
    except RoutingError as err:
        return err
    finally:
        source.close()


def reply(status: int = 0, number: int = 0, header: int = 4, payload: int = 100_000) -> bytes:
    return ReplyHead(status, number, header, payload).encode()


def test_a_true_reply_is_taken(liar: Liar) -> None:
    found = outcome(liar, reply() + HEADER + PAYLOAD, Pool())
    assert isinstance(found, Blob)
    assert (found.header, found.payload[0]) == (HEADER, PAYLOAD)


@pytest.mark.parametrize(
    "said",
    [
        reply(payload=(1 << 64) - 1),
        reply(payload=1 << 40),
        reply(payload=99_999),
        reply(header=(1 << 32) - 1),
        reply(header=5),
        reply(number=1),
        reply(status=1, header=4097, payload=0),
        reply(status=1, header=10, payload=10),
        reply(status=1, header=10, payload=0) + bytes(10),
        reply(status=2),
        b"\1" + reply()[1:],
        bytes(frames.REPLY_BYTES),
    ],
    ids=lambda raw: raw[: frames.REPLY_BYTES].hex(),
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_lie_is_an_error_and_takes_no_memory_that_was_not_asked_for(liar: Liar, said: bytes, count: int) -> None:
    pool = Counting()
    found = outcome(liar, said + HEADER + PAYLOAD, pool, [want(NAME, PLACE)] * count)
    assert (type(found), pool.most <= 100_000) == (CorruptDataError, True)


@pytest.mark.parametrize("said", [b"", reply()[:5], reply(), reply() + HEADER, reply() + HEADER + PAYLOAD[1:]])
def test_a_reply_that_is_cut_off_is_an_error(liar: Liar, said: bytes) -> None:
    found = outcome(liar, said, Pool())
    assert isinstance(found, StoreUnavailableError)


@pytest.mark.parametrize("header_bytes", [0, 4, 10_000])
@pytest.mark.parametrize("payload_bytes", [0, 10, 100_000])
def test_an_error_in_place_of_an_object_arrives(liar: Liar, header_bytes: int, payload_bytes: int) -> None:
    raw = refusals.encode_error(DeletedError("it was deleted", hint="look elsewhere"))
    wanted = want(NAME, Place(5, 7, header_bytes, payload_bytes, 0, 5, 7, 8192))
    found = outcome(liar, reply(1, 0, len(raw), 0) + raw, Pool(), [wanted])
    assert isinstance(found, DeletedError)
    assert (found.message, found.hint) == ("it was deleted", "look elsewhere")


def test_more_than_an_error_is_an_error(liar: Liar) -> None:
    raw = refusals.encode_error(DeletedError("it was deleted"))
    assert isinstance(outcome(liar, reply(1, 0, len(raw), 0) + raw + b"x", Pool()), CorruptDataError)


def test_mutated_replies_are_an_object_of_the_right_size_or_an_error(liar: Liar) -> None:
    chosen = random.Random(1)
    gone = refusals.encode_error(StoreUnavailableError("no", hint="x"))
    good = [reply() + HEADER + PAYLOAD, reply(1, 0, len(gone), 0) + gone]
    pool = Counting()
    for _ in range(MUTATIONS // 5):
        found = outcome(liar, mutated(chosen, chosen.choice(good)[: chosen.choice([30, 200_000])]), pool)
        if isinstance(found, Blob):
            assert [len(found.header), *map(len, found.payload)] == [4, 100_000]
        else:
            assert isinstance(found, RoutingError)
    assert pool.most in (0, 100_000)


def test_mutated_replies_to_several_requests_are_their_objects_or_an_error(liar: Liar) -> None:
    chosen = random.Random(3)
    gone = refusals.encode_error(DeletedError("no"))
    good = [reply(number=0) + HEADER + PAYLOAD, reply(1, 1, len(gone), 0) + gone, reply(number=2) + HEADER + PAYLOAD]
    wanted = [want(NAME, PLACE)] * 3
    for _ in range(MUTATIONS // 10):
        found: list[tuple[int, Blob]] = []
        liar.said = mutated(chosen, b"".join(good))
        source = TcpSource(OwnerInfo("0" * 32, "h", "node", 1, "", (), liar.address), "", Pool())
        with contextlib.suppress(RoutingError):
            source.each(wanted, soon(), lambda index, blob, found=found: found.append((index, blob)))
        source.close()
        assert [index for index, _ in found] in ([], [0], [2], [0, 2], [0, 1, 2])
        assert all([len(blob.header), *map(len, blob.payload)] == [4, 100_000] for _, blob in found)


def test_mutated_greetings_are_no_welcome_to_the_unknown(liar: Liar) -> None:
    chosen = random.Random(2)
    for _ in range(MUTATIONS // 10):
        raw = mutated(chosen, WELCOME).ljust(frames.CHALLENGE_BYTES, b"\0")[: frames.CHALLENGE_BYTES]
        with contextlib.suppress(CorruptDataError):
            found = frames.decode_challenge(raw)
            assert found.encode()[8:12] == raw[8:12]
