"""The bytes of the TCP transport: pinned, and read with care."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import errors
from fastdeploy_routing_plugins.errors import CorruptDataError, RoutingError
from fastdeploy_routing_plugins.stores.rdma.transport import frames, refusals
from fastdeploy_routing_plugins.stores.rdma.transport.frames import (
    Answer,
    Challenge,
    Hello,
    ReplyHead,
    Request,
    Status,
)

OWNER = "00112233445566778899aabbccddeeff"
NONCE = bytes(range(32))
NUMBERS = st.integers(0, 2**64 - 1)
RANGES = st.lists(NUMBERS, max_size=40).map(sorted).map(lambda n: tuple(zip(n[::2], n[1::2], strict=False)))
REQUESTS = st.builds(
    Request,
    number=st.integers(0, 2**32 - 1),
    name=st.text("abc/-0", min_size=1, max_size=400),
    card=NUMBERS,
    generation=NUMBERS,
    ranges=st.none() | RANGES,
)
HELLO = Hello(OWNER, True, NONCE).encode()
CHALLENGE = Challenge(Answer.PROVE, NONCE[::-1]).encode()
MAGIC = "4644524f5554450a0100000000000000"
GOLDEN = {
    "hello": (HELLO, "4644524f5554450a0100010000000000" + OWNER + NONCE.hex()),
    "hello to anybody": (
        Hello("", False, NONCE).encode(),
        "4644524f5554450a0100000000000000" + "00" * 16 + NONCE.hex(),
    ),
    "challenge": (CHALLENGE, "4644524f5554450a0100010000000000" + NONCE[::-1].hex()),
    "verdict": (frames.encode_verdict(Answer.WRONG_SECRET), "0500000000000000" + "00" * 32),
    "reader's proof": (
        frames.prove("a secret", b"reader", HELLO, CHALLENGE),
        "e8cdb43f694142832d79005ea7812090f9ff97ea2e46ae0c3cdb08286d5e6d85",
    ),
    "request": (
        Request(3, "ns/a", 18, 7, ((1, 2), (5, 9))).encode(),
        "0100040003000000"
        "1200000000000000"
        "0700000000000000"
        "0200000000000000"
        "6e732f61"
        "01000000000000000200000000000000"
        "05000000000000000900000000000000",
    ),
    "request for all": (
        Request(4, "ns/a", 18, 7, None).encode(),
        "010004000400000012000000000000000700000000000000ffffffff000000006e732f61",
    ),
    "reply": (
        ReplyHead(Status.OBJECT, 3, 1000, 1 << 33).encode(),
        "0200000003000000e8030000000000000000000002000000",
    ),
    "error": (
        refusals.encode_error(errors.SupersededError("gone", hint="look again", attempt=5)),
        "94aa73757065727365646564a4676f6e65aa6c6f6f6b20616761696e81a7617474656d707405",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_frame_is_these_bytes(name: str) -> None:
    raw, golden = GOLDEN[name]
    assert raw.hex() == golden


@pytest.mark.parametrize("hello", [Hello(OWNER, True, NONCE), Hello("", False, NONCE, version=9)])
def test_a_hello_says_what_was_meant(hello: Hello) -> None:
    assert frames.decode_hello(hello.encode()) == hello


def test_a_challenge_says_what_was_meant() -> None:
    challenge = Challenge(Answer.BUSY, NONCE, version=3)
    assert frames.decode_challenge(challenge.encode()) == challenge


@pytest.mark.parametrize("decode", [frames.decode_hello, frames.decode_challenge])
def test_a_foreign_greeting_is_an_error(decode: object) -> None:
    assert callable(decode)
    size = frames.HELLO_BYTES if decode is frames.decode_hello else frames.CHALLENGE_BYTES
    with pytest.raises(CorruptDataError):
        decode(b"GET / HTTP/1.1\r\n".ljust(size))


def test_proofs_of_both_sides_differ() -> None:
    assert frames.prove("s", b"reader", HELLO, CHALLENGE) != frames.prove("s", b"producer", HELLO, CHALLENGE)


@pytest.mark.parametrize("other", [(HELLO, HELLO), (CHALLENGE, CHALLENGE)])
def test_a_proof_is_good_for_one_connection(other: tuple[bytes, bytes]) -> None:
    assert frames.prove("s", b"reader", *other) != frames.prove("s", b"reader", HELLO, CHALLENGE)


@given(REQUESTS)
def test_a_request_says_what_was_asked(request: Request) -> None:
    raw = request.encode()
    assert frames.request_size(raw[: frames.REQUEST_BYTES]) == len(raw) <= frames.MAX_REQUEST
    assert frames.decode_request(memoryview(raw)) == request


@given(st.binary(min_size=frames.REQUEST_BYTES, max_size=frames.REQUEST_BYTES))
def test_the_head_of_a_request_asks_for_no_more_than_is_allowed(raw: bytes) -> None:
    with contextlib.suppress(CorruptDataError):
        assert frames.request_size(raw) <= frames.MAX_REQUEST


@pytest.mark.parametrize(
    ("at", "raw"),
    [
        (0, b"\2\0"),  # a reply
        (2, b"\0\0"),  # no name
        (2, b"\x91\1"),  # a name of 401 bytes
        (24, b"\1\0\1\0"),  # 65,537 ranges
        (24, b"\xfe\xff\xff\xff"),
    ],
)
def test_a_head_that_is_not_allowed_is_an_error(at: int, raw: bytes) -> None:
    head = bytearray(Request(3, "ns/a", 18, 7, None).encode()[: frames.REQUEST_BYTES])
    head[at : at + len(raw)] = raw
    with pytest.raises(CorruptDataError):
        frames.request_size(bytes(head))


@pytest.mark.parametrize("ranges", [((5, 4),), ((0, 9), (8, 10)), ((0, 1), (1 << 63, 2))])
def test_ranges_that_are_out_of_order_are_an_error(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(CorruptDataError, match="order"):
        frames.decode_request(Request(1, "a", 1, 1, ranges).encode())


def test_a_name_that_is_no_text_is_an_error() -> None:
    raw = Request(1, "a", 1, 1, None).encode()
    with pytest.raises(CorruptDataError, match="name"):
        frames.decode_request(raw[:-1] + b"\xff")


def test_a_reply_says_what_was_meant() -> None:
    head = ReplyHead(Status.ERROR, 2**32 - 1, 2**32 - 1, 2**64 - 1)
    assert frames.decode_reply(head.encode()) == head


def test_a_foreign_reply_is_an_error() -> None:
    with pytest.raises(CorruptDataError):
        frames.decode_reply(bytes(frames.REPLY_BYTES))


@pytest.mark.parametrize(
    "err",
    [
        errors.NotFoundError("gone", moved=True),
        errors.DeletedError("gone", hint="put it again", waited=1.5),
        errors.EvictedError("gone", name=None),
        errors.ExpiredError("gone"),
        errors.SupersededError("gone", attempt=2**64 - 1),
        errors.StoreUnavailableError("not now"),
    ],
)
def test_an_error_arrives_as_it_was_raised(err: RoutingError) -> None:
    found = refusals.decode_error(refusals.encode_error(err))
    assert (type(found), found.message, found.hint, found.facts) == (type(err), err.message, err.hint, err.facts)


def test_an_error_that_a_reader_can_do_nothing_about_is_that_the_store_is_unavailable() -> None:
    found = refusals.decode_error(
        refusals.encode_error(errors.StoreClosedError("closed", odd=object(), large=1 << 70))
    )
    assert (type(found), found.facts) == (errors.StoreUnavailableError, {})


def test_a_long_error_is_cut() -> None:
    err = errors.NotFoundError("ä" * 10_000, hint="x" * 10_000, fact="y" * 10_000)
    raw = refusals.encode_error(err)
    assert (len(raw) <= refusals.MAX_ERROR, refusals.decode_error(raw).message) == (True, "ä" * 500)


@pytest.mark.parametrize("fact", ["self", "message", "hint"])
def test_a_fact_that_would_be_an_argument_is_dropped(fact: str) -> None:
    raw = refusals.encode_error(errors.NotFoundError("gone", fact=1)).replace(
        b"\xa4fact", bytes([0xA0 + len(fact)]) + fact.encode()
    )
    assert refusals.decode_error(raw).facts == {}


@given(st.binary(max_size=300))
def test_foreign_bytes_are_no_error_of_ours(raw: bytes) -> None:
    with pytest.raises(CorruptDataError):
        refusals.decode_error(raw)
