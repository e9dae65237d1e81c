"""Headers and payloads: pinned by golden files, and safe against any bytes."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import digests, envelope
from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.errors import CorruptDataError, UnsupportedError
from fastdeploy_routing_plugins.keys import RoutingKey
from fastdeploy_routing_plugins.names import Part, PartName, object_name
from fastdeploy_routing_plugins.store.reading import Piece, check_chunks, decode_piece

GOLDEN = Path(__file__).parent.parent / "golden" / "envelope-1.0.json"
GOLDEN_WHOLE = GOLDEN.with_name("envelope-1.1.json")
MUTATIONS = int(os.environ.get("FD_ROUTING_TEST_MUTATIONS", "5000"))


def example(tokens: int = 5000, layers: tuple[int, int] = (0, 3)) -> tuple[envelope.PartHeader, np.ndarray]:
    rng = np.random.default_rng(7)
    array = rng.integers(0, 256, (layers[1] - layers[0], tokens, 2)).astype(np.uint8)
    part = Part((10, 10 + tokens), layers)
    header = envelope.PartHeader(
        namespace="default",
        rollout_id="data:0:1:0 é\x00/../",
        choice=3,
        kind="routing",
        attempt=1_700_000_000_000_000_000,
        producer="host:1:ab",
        time_ns=1,
        num_experts=256,
        top_k=2,
        layer_ids=(1, 2, 5),
        dtype="uint8",
        layers=layers,
        tokens=part.tokens,
        total_tokens=None,
        digests=digests.digest_payload(digests.payload_of(array), part, 2),
        weight_versions=((10, 11, 7), (11, 10 + tokens, "step-8")),
    )
    return header, array


def seal() -> envelope.SealHeader:
    return envelope.SealHeader(
        namespace="n", rollout_id="r", choice=0, kind="routing", attempt=0, producer="p", time_ns=5, total_tokens=12
    )


def abort() -> envelope.AbortHeader:
    return envelope.AbortHeader(
        namespace="n", rollout_id="r", choice=0, kind="routing", attempt=0, producer="p", time_ns=5, reason="gave up"
    )


HEADERS = {"part": example(3)[0], "seal": seal(), "abort": abort()}


@pytest.mark.parametrize("which", HEADERS)
def test_headers_are_written_as_the_golden_file_has_them(which: str) -> None:
    golden = json.loads(GOLDEN.read_text())[which]
    assert envelope.encode_header(HEADERS[which]).decode() == golden["header"]


@pytest.mark.parametrize("which", HEADERS)
def test_golden_headers_are_read(which: str) -> None:
    golden = json.loads(GOLDEN.read_text())[which]
    assert envelope.decode_header(golden["header"].encode(), name=golden["name"]) == HEADERS[which]


def test_the_golden_payload_passes_its_digests() -> None:
    golden = json.loads(GOLDEN.read_text())["part"]
    header = envelope.decode_header(golden["header"].encode())
    assert isinstance(header, envelope.PartHeader)
    payload = memoryview(bytes.fromhex(golden["payload"]))
    digests.verify_chunks(header, (0, 3), (0, 3), payload, header.model().row_bytes)


def with_whole(tokens: int = 3) -> tuple[envelope.PartHeader, np.ndarray]:
    header, array = example(tokens)
    return msgspec.structs.replace(header, whole=digests.digest_whole(digests.payload_of(array))), array


def test_a_header_with_a_digest_of_everything_is_written_and_read_as_the_golden_file_has_it() -> None:
    golden, header = json.loads(GOLDEN_WHOLE.read_text())["part"], with_whole()[0]
    assert envelope.encode_header(header).decode() == golden["header"]
    assert envelope.decode_header(golden["header"].encode(), name=golden["name"]) == header


def whole_piece(header: envelope.PartHeader) -> Piece:
    what = header.what()
    return Piece(header.name(), what, what.part, what.part)


def test_what_was_changed_is_found_by_the_digest_of_everything() -> None:
    header, array = with_whole()
    raw = envelope.encode_header(header)
    for at in range(array.size):
        payload = bytearray(array.tobytes())
        payload[at] ^= 1
        with pytest.raises(CorruptDataError, match="layer position"):
            decode_piece(whole_piece(header), Blob(raw, (bytes(payload),)), verify=True)
    assert np.array_equal(decode_piece(whole_piece(header), Blob(raw, (array.tobytes(),)), verify=True)[1], array)


def test_a_wrong_digest_of_everything_does_not_condemn_what_the_chunks_prove() -> None:
    header, array = with_whole()
    wrong = msgspec.structs.replace(header, whole="0" * 16)
    blob = Blob(envelope.encode_header(wrong), (array.tobytes(),))
    assert np.array_equal(decode_piece(whole_piece(header), blob, verify=True)[1], array)
    with pytest.raises(CorruptDataError, match="those of the layers do"):
        check_chunks(whole_piece(header), wrong, blob)


def test_every_chunk_can_be_checked_beside_the_digest_of_everything() -> None:
    header, array = with_whole()
    bad = msgspec.structs.replace(header, digests="0" * len(header.digests))
    blob = Blob(envelope.encode_header(bad), (array.tobytes(),))
    decode_piece(whole_piece(bad), blob, verify=True)
    with pytest.raises(CorruptDataError, match="layer position 0"):
        check_chunks(whole_piece(bad), bad, blob)


def test_a_header_is_compared_with_what_its_name_is_composed_of() -> None:
    header = with_whole()[0]
    raw = envelope.encode_header(header)
    known = envelope.Identity("default", header.key(), header.attempt, header.what())
    assert envelope.decode_header(raw, name=header.name(), known=known) == header


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "other"},
        {"key": RoutingKey("other", 3)},
        {"key": RoutingKey("data:0:1:0 é\x00/../", 4)},
        {"key": RoutingKey("data:0:1:0 é\x00/../", 3, "other")},
        {"attempt": 1},
        {"what": PartName(Part((9, 12), (0, 3)), 3, None, 2, "a3e68e54")},
        {"what": PartName(Part((10, 13), (0, 3)), 3, 13, 2, "a3e68e54")},
        {"what": PartName(Part((10, 13), (0, 3)), 4, None, 2, "a3e68e54")},
        {"what": PartName(Part((10, 13), (0, 3)), 3, None, 4, "a3e68e54")},
        {"what": PartName(Part((10, 13), (0, 3)), 3, None, 2, "a3e68e55")},
    ],
    ids=str,
)
def test_a_header_of_something_else_is_corrupt_whatever_is_known(change: dict[str, Any]) -> None:
    header = with_whole()[0]
    honest = envelope.Identity("default", header.key(), header.attempt, header.what())
    other = msgspec.structs.replace(honest, **change)
    name = object_name(other.key, other.namespace, other.attempt, other.what)
    assert name != header.name()
    with pytest.raises(CorruptDataError, match="belongs to"):
        envelope.decode_header(envelope.encode_header(header), name=name, known=other)


def test_a_header_under_another_name_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="belongs to"):
        envelope.decode_header(envelope.encode_header(seal()), name=abort().name())


@given(st.sampled_from(["part", "seal", "abort"]), st.data())
def test_a_header_has_its_own_name_and_no_other(which: str, data: st.DataObject) -> None:
    header = HEADERS[which]
    raw, name = envelope.encode_header(header), header.name()
    assert envelope.decode_header(raw, name=name) == header
    at = data.draw(st.integers(0, len(name) - 1))
    other = name[:at] + data.draw(st.sampled_from("01a-_/p")) + name[at + data.draw(st.integers(0, 1)) :]
    if other != name:
        with pytest.raises(CorruptDataError):
            envelope.decode_header(raw, name=other)


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "other"},
        {"rollout_id": "other"},
        {"choice": 4},
        {"kind": "other"},
        {"attempt": 1},
        {"tokens": (9, 12), "weight_versions": ()},
        {"layers": (1, 4), "layer_ids": (1, 2, 5, 6)},
        {"layer_ids": (1, 2, 6)},
        {"layer_ids": (1, 2, 5, 6)},
        {"top_k": 3},
        {"num_experts": 255},
        {"total_tokens": 13},
    ],
)
def test_a_part_that_differs_in_what_its_name_says_is_another(change: dict[str, Any]) -> None:
    header = example(3)[0]
    other = msgspec.structs.replace(header, **change)
    with pytest.raises(CorruptDataError, match="belongs to"):
        envelope.decode_header(envelope.encode_header(other), name=header.name())


def test_a_newer_format_asks_for_an_upgrade() -> None:
    body = envelope.encode_header(seal()).split(b" ", 2)[2]
    magic = b"FDROUTING/1.2 "
    raw = magic + envelope._line_digest(magic, body) + b" " + body
    with pytest.raises(UnsupportedError, match=r"format 1\.2"):
        envelope.decode_header(raw)


def sealed(text: str) -> bytes:
    """A line whose digest is right, whatever it says: only an attacker, or a bug, writes it."""
    magic = b"FDROUTING/1.0 "
    return magic + envelope._line_digest(magic, text.encode()) + b" " + text.encode()


def lies() -> list[dict[str, object]]:
    honest = json.loads(envelope.encode_header(example(3)[0]).split(b" ", 2)[2])
    changes: list[dict[str, object]] = [
        {"layers": [0, 2**40]},
        {"layers": [2, 1]},
        {"tokens": [-1, 5]},
        {"tokens": [0, 2**62]},
        {"tokens": [5, 2]},
        {"dtype": "object"},
        {"dtype": "uint16"},
        {"dtype": "|O"},
        {"num_experts": 0},
        {"num_experts": 2**63},
        {"top_k": 0},
        {"top_k": 2**40},
        {"layer_ids": []},
        {"layer_ids": [3, 2, 1]},
        {"digests": ""},
        {"digests": "0" * 10_000_000},
        {"whole": ""},
        {"whole": None},
        {"whole": "0" * 10_000_000},
        {"attempt": -1},
        {"choice": 10**9},
        {"kind": "../x"},
        {"namespace": ""},
        {"namespace": "n" * 500},
        {"rollout_id": ""},
        {"total_tokens": 4},
        {"total_tokens": 1.5},
        {"weight_versions": [[10, 11, 1]]},
        {"weight_versions": [[10, 12, 1], [11, 13, 1]]},
        {"unknown": 1},
        {"object": "pickle"},
        {"num_experts": True},
        {"num_experts": "256"},
    ]
    return [{**honest, **change} for change in changes]


@pytest.mark.parametrize("lie", lies(), ids=str)
def test_a_header_that_lies_is_corrupt_even_with_a_right_digest(lie: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError):
        envelope.decode_header(sealed(json.dumps(lie)), name=example(3)[0].name())


NO_HEADERS = ["", "null", "[]", "{}", "[" * 100_000, '{"a":' * 50_000, "NaN", '"text"', "1e999"]


@pytest.mark.parametrize("text", NO_HEADERS, ids=lambda text: text[:8] or "empty")
def test_json_of_another_shape_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptDataError):
        envelope.decode_header(sealed(text))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        envelope.decode_header(data)


def test_parsing_allocates_no_more_than_a_few_times_its_input() -> None:
    raw = sealed(json.dumps({**lies()[0], "tokens": [0, 2**50], "layers": [0, 90_000]}))
    tracemalloc.start()
    with pytest.raises(CorruptDataError):
        envelope.decode_header(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(raw)


def mutate(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.randrange(256)
            case 2:
                del out[at : at + rng.choice((1, 7, 64, 4096))]
            case 3:
                out[at:at] = rng.randbytes(rng.choice((1, 8, 100)))
            case 4:
                out[at:at] = out[: rng.randrange(len(out) + 1)]
            case _:
                del out[at:]
    return bytes(out)


@pytest.mark.parametrize("made", [example, with_whole])
def test_mutated_objects_give_the_right_record_or_an_error(made: Callable[[int], Any]) -> None:
    """Flips, cuts and insertions in header and payload; never a crash, a wrong array, or a large allocation."""
    header, array = made(5000)
    raw, payload = envelope.encode_header(header), array.tobytes()
    what = header.what()
    piece = Piece(header.name(), what, what.part, what.part)
    rng = random.Random(1)
    caught = 0
    tracemalloc.start()
    for step in range(MUTATIONS):
        bad_header = mutate(raw, rng) if step % 2 else raw
        bad_payload = payload if step % 2 else mutate(payload, rng)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        got = None
        try:
            got = decode_piece(piece, Blob(bad_header, (bad_payload,)), verify=True)[1]
        except CorruptDataError:
            caught += 1
        peak = tracemalloc.get_traced_memory()[1]
        assert got is None or np.array_equal(got, array)
        assert peak - before < 20 * (len(bad_header) + 4096)
    tracemalloc.stop()
    assert caught > MUTATIONS * 0.8


def test_the_decoder_reads_no_more_fields_than_the_format_has() -> None:
    assert set(msgspec.structs.asdict(seal())) == {
        "namespace", "rollout_id", "choice", "kind", "attempt", "producer", "time_ns", "total_tokens",
    }  # fmt: skip
