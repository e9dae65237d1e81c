"""Cards: what a producer's shelf says about its objects."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.arena.layout import MAX_META
from fastdeploy_routing_plugins.errors import CorruptDataError, InvalidRecordError
from fastdeploy_routing_plugins.stores.rdma.card import Card, decode_card, encode_card

NUMBERS = st.integers(0, 2**64 - 1)
GOLDEN = bytes.fromhex("97a36e732fc402686401cc80cd03e9ce0001300004")


@given(st.text(max_size=400), st.binary(max_size=3000), st.tuples(*[NUMBERS] * 5))
def test_a_card_says_what_was_written_on_it(name: str, header: bytes, numbers: tuple[int, ...]) -> None:
    assert decode_card(encode_card(name, header, *numbers)) == Card(name, header, *numbers)


def test_a_card_is_these_bytes() -> None:
    assert encode_card("ns/", b"hd", 1, 128, 1001, 77824, 4) == GOLDEN


def test_a_card_of_a_later_version_is_read() -> None:
    assert decode_card(b"\x98" + GOLDEN[1:] + b"\xa5later") == decode_card(GOLDEN)


@pytest.mark.parametrize(("arena", "inline"), [(0, True), (1, False)])
def test_a_card_of_the_shelf_has_its_payload_with_it(arena: int, inline: bool) -> None:
    assert decode_card(encode_card("a", b"", arena, 0, 0, 0, 0)).inline == inline


def test_a_header_that_does_not_fit_on_a_card_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="smaller parts"):
        encode_card("a", bytes(MAX_META), 0, 0, 0, 0, 0)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_an_error_or_a_card(raw: bytes) -> None:
    with contextlib.suppress(CorruptDataError):
        assert isinstance(decode_card(raw), Card)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        GOLDEN[:-1],
        GOLDEN + b"x",
        b"\x96" + GOLDEN[1:-1],
        GOLDEN[:-1] + b"\xff",  # a negative number
        b"\x97\xa1\xff" + GOLDEN[5:],  # a name that is no text
        b"\x97\xda\x01\x91" + b"n" * 401 + GOLDEN[5:],  # and one that is too long
        b"\x97\xdd\xff\xff\xff\xff",
        bytes(MAX_META + 1),
    ],
)
def test_what_is_no_card_is_an_error(raw: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_card(raw)
