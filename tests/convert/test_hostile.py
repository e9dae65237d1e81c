"""Damaged and hostile payloads, random ones: a record that fits the schema, or a typed error, and little memory."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pickle
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.convert import fastdeploy, npy, p2pstore, payload, pdtensor, sglang, vllm
from fastdeploy_routing_plugins.errors import InvalidRecordError, RoutingError

from .helpers import (
    HIDDEN,
    SCHEMA,
    WIDE,
    as_json,
    flat64,
    hidden,
    mutants,
    npy64,
    routing,
    sglang_answer,
)

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.convert.rows import ForeignRows

MUTATIONS = int(os.environ.get("FD_ROUTING_TEST_MUTATIONS", "5000"))
EDGE = RoutingSchema(256, 4, range(1, 7))
TOKENS = 20
Read = "Callable[[bytes], list[ForeignRows]]"

IDS = routing(TOKENS)
NARROW = IDS.astype("u1")
LAYER_FIRST = np.ascontiguousarray(NARROW.transpose(1, 0, 2))
VLLM = {
    "choices": [{"index": 0, "routed_experts": npy64(IDS), "token_ids": [1] * 10}],
    "usage": {"prompt_tokens": 11},
}
LISTS = {
    "choices": [{"index": 0, "routed_experts": IDS[11:].tolist()}],
    "prompt_routed_experts": IDS[:11].tolist(),
    "usage": {"prompt_tokens": 11, "completion_tokens": 10},
}
RESPONSE = {
    "choices": [{"index": 0}],
    "routed_experts": flat64(IDS, "|u1"),
    "usage": {"prompt_tokens": 11, "completion_tokens": 10},
}


def _all(found: list[tuple[int, ForeignRows]]) -> list[ForeignRows]:
    return [rows for _, rows in found]


# name: (a good payload, how it is read); the second of each pair starts behind the base64, which damage seldom passes
CASES: dict[str, tuple[bytes, Any]] = {
    "sglang reply": (
        as_json(sglang_answer(flat64(hidden(IDS)), 11, 10)),
        lambda data: _all(sglang.read(data, SCHEMA, num_hidden_layers=HIDDEN)),
    ),
    "sglang ids": (
        hidden(IDS).astype("<i4").tobytes(),
        lambda data: [sglang.rows(base64.b64encode(data), SCHEMA, num_hidden_layers=HIDDEN)],
    ),
    "vllm reply": (as_json(VLLM), lambda data: _all(vllm.read(data, SCHEMA))),
    "vllm npy": (base64.b64decode(npy64(IDS)), lambda data: [vllm.rows(base64.b64encode(data), SCHEMA)]),
    "vllm npy of uint16": (
        base64.b64decode(npy64(routing(TOKENS, schema=WIDE), "<u2")),
        lambda data: [vllm.rows(base64.b64encode(data), WIDE)],
    ),
    "vllm lists": (as_json(LISTS), lambda data: _all(vllm.read(data, SCHEMA))),
    "fastdeploy reply": (as_json(RESPONSE), lambda data: _all(fastdeploy.read(data, SCHEMA))),
    "fastdeploy ids": (NARROW.tobytes(), lambda data: [fastdeploy.rows(base64.b64encode(data), SCHEMA)]),
    "p2pstore": (LAYER_FIRST.tobytes(), lambda data: [p2pstore.rows(data, SCHEMA)]),
    "p2pstore of bfloat16": (
        (LAYER_FIRST.astype("f4").view("u4") >> 16).astype("<u2").tobytes(),
        lambda data: [p2pstore.rows(data, EDGE)],
    ),
    "pdtensor": (pickle.dumps(LAYER_FIRST, 4), lambda data: [pdtensor.decode(data, SCHEMA)]),
    "pdtensor of protocol 2": (pickle.dumps(LAYER_FIRST, 2), lambda data: [pdtensor.decode(data, SCHEMA)]),
    "pdtensor of a tensor": (
        pickle.dumps(LAYER_FIRST.astype("<i4"), 4),
        lambda data: [pdtensor.decode(data, SCHEMA)],
    ),
    "pdtensor of a layer": (
        pickle.dumps(LAYER_FIRST[2], 4),
        lambda data: [pdtensor.decode(data, SCHEMA, layer=2)],
    ),
}


def outcome(read: Any, data: bytes) -> Any:
    """Returns the records that come out, or None for a typed error; anything else that is raised is a fault."""
    try:
        records = [part.record("a") for rows in read(data) for part in rows.parts()]
    except RoutingError:
        return None
    for record in records:
        assert record.routing.shape == (record.part.num_layers, record.part.num_tokens, record.schema.top_k)
        assert record.routing.dtype == record.schema.dtype
        assert record.routing.size == 0 or int(record.routing.max()) < record.schema.num_experts
        assert record.total_tokens is None or record.part.tokens[1] <= record.total_tokens
    return records


@pytest.mark.parametrize("name", CASES)
def test_the_good_payloads_are_good(name: str) -> None:
    data, read = CASES[name]
    assert [record.num_tokens for record in outcome(read, data)] == [TOKENS]


@pytest.mark.parametrize("name", CASES)
def test_damage_gives_a_valid_record_or_a_typed_error(name: str) -> None:
    data, read = CASES[name]
    for damaged in mutants(data, MUTATIONS // len(CASES), random.Random(name)):
        outcome(read, damaged)


@pytest.mark.parametrize("name", CASES)
def test_what_is_cut_off_gives_the_rows_before_the_cut_or_a_typed_error(name: str) -> None:
    data, read = CASES[name]
    (whole,) = outcome(read, data)
    layer_first = name.startswith("p2pstore")  # bytes without a shape: other rows than before
    for size in range(0, len(data), max(1, len(data) // 400)):
        for record in outcome(read, data[:size]) or []:
            assert layer_first or np.array_equal(record.routing, whole.routing[:, : record.num_tokens])


@pytest.mark.parametrize("name", CASES)
@given(data=st.binary(max_size=300))
def test_noise_gives_a_valid_record_or_a_typed_error(name: str, data: bytes) -> None:
    outcome(CASES[name][1], data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "usage", "meta_info", "routed_experts", "prompt_tokens", "completion_tokens", "index",
                 "token_ids", "sgl_ext", "prompt_routed_experts", "routed_experts_dtype"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize("module", [sglang, vllm, fastdeploy], ids=lambda module: module.__name__.rpartition(".")[2])
@given(reply=JSON)
def test_any_json_gives_a_valid_record_or_a_typed_error(module: Any, reply: Any) -> None:
    for form in (reply, json.dumps(reply)):
        outcome(lambda given: _all(module.read(given, SCHEMA)), form)


@given(
    tokens=st.integers(0, 12),
    num_experts=st.sampled_from([4, 64, 254, 255, 256, 257, 1000, 65_536, 70_000]),
    layer_ids=st.lists(st.integers(0, 11), min_size=1, max_size=5, unique=True).map(sorted),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_format_brings_the_same_routing_back(
    tokens: int, num_experts: int, layer_ids: list[int], seed: int
) -> None:
    schema = RoutingSchema(num_experts, 4, layer_ids)
    rng = np.random.default_rng(seed)
    first = rng.integers(0, num_experts, (tokens, schema.num_layers, 1))
    ids = (first + np.arange(4) * max(1, num_experts // 4)) % num_experts
    record = sglang.rows(flat64(ids), schema, num_tokens=tokens + 1).record("a")
    back = [
        sglang.rows(sglang.encode(record, num_hidden_layers=12), schema, num_hidden_layers=12),
        fastdeploy.rows(fastdeploy.encode(record), schema, num_tokens=tokens + 1),
        p2pstore.rows(p2pstore.encode(record), schema),
        p2pstore.rows(p2pstore.encode(record, dtype="int32"), schema, dtype="int32"),
        pdtensor.decode(pickle.dumps(record.routing, 4), schema),
    ]
    if num_experts <= 65_536:
        back.append(vllm.rows(vllm.encode(record, num_hidden_layers=12), schema, num_hidden_layers=12))
    assert [rows.record("a").routing.tolist() for rows in back] == [record.routing.tolist()] * len(back)


def npy_header(version: bytes, length: bytes, descr: str, rows: int) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, 6, 4), }}"
    return base64.b64encode(npy.MAGIC + version + length + text.ljust(118).encode())


LYING = {
    "100 TB": npy_header(b"\1\0", b"\x76\0", "|u1", 99_999_999_999),
    "2 GiB": npy_header(b"\2\0", b"\x76\0\0\0", "<u4", 22_369_622),
}


@pytest.mark.parametrize("name", LYING)
def test_a_size_that_lies_allocates_nothing(name: str, measured: Any) -> None:
    with measured(1 << 20), pytest.raises(InvalidRecordError):
        vllm.decode(LYING[name], SCHEMA)


@pytest.mark.parametrize("value", [0, 63, 64, 0x80, 0xFF])
@pytest.mark.parametrize("name", ["sglang ids", "fastdeploy ids", "p2pstore", "p2pstore of bfloat16"])
def test_ids_that_are_all_wrong_take_no_more_than_a_multiple_of_their_size(
    name: str, value: int, measured: Any
) -> None:
    data = bytes([value]) * (6 * 8 * 4 * 4 * 4096)
    with measured(20 * len(data)):
        outcome(CASES[name][1], data)


def test_what_is_over_the_limit_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_BYTES", 1000)
    with pytest.raises(InvalidRecordError, match="over the limit of 1000"):
        sglang.decode("A" * 2000, SCHEMA)


def test_deeply_nested_json_is_refused() -> None:
    text = b'{"choices": ' + b"[" * 100_000
    for module in (sglang, vllm, fastdeploy):
        with pytest.raises(InvalidRecordError):
            module.read(text, SCHEMA)


def test_no_error_shows_what_is_in_the_payload() -> None:
    secret = b"SECRETSECRET"
    messages = []
    for (_, read), data in itertools.product(CASES.values(), (secret * 40, b'{"routed_experts": "' + secret + b'"}')):
        try:
            read(data)
        except RoutingError as err:
            messages.append(str(err))
    assert (len(messages) > len(CASES), [text for text in messages if "SECRET" in text]) == (True, [])


def test_an_array_of_many_axes_is_refused() -> None:
    axes = ", ".join(["1"] * 65)
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({axes}), }}".ljust(374)
    raw = npy.MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text.encode() + b"\1"
    with pytest.raises(InvalidRecordError, match="65 axes"):
        vllm.decode(base64.b64encode(raw), SCHEMA)


def test_a_prompt_of_another_dtype_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="prompt_routed_experts has dtype"):
        vllm.rows(npy64(IDS, "<u8"), SCHEMA, prompt=npy64(IDS, "<i8"))


@pytest.mark.parametrize("dtype", [["int32"], {}, 5])
def test_a_dtype_that_is_no_name_is_refused(dtype: Any) -> None:
    for call in (sglang.decode, sglang.rows, fastdeploy.rows):
        with pytest.raises(InvalidRecordError, match="dtype must be one of"):
            call("AAAA", SCHEMA, dtype=dtype)


def test_a_model_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidRecordError):
        sglang.decode("", SCHEMA, num_hidden_layers=10**21)
