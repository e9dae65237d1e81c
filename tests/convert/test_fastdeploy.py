"""FastDeploy's ``response`` mode and its values in p2pstore: bytes without shape and dtype."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.convert import fastdeploy, p2pstore
from fastdeploy_routing_plugins.convert.rows import ForeignRows
from fastdeploy_routing_plugins.errors import InvalidRecordError

from .helpers import SCHEMA, WIDE, as_json, flat64, routing

EDGE = {count: RoutingSchema(count, 4, range(1, 7)) for count in (254, 255, 256, 257)}


def reply(text, prompt=11, completion=10, choices=1):
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"choices": [{"index": i} for i in range(choices)], "usage": usage, "routed_experts": text}


def bfloat16(ids):
    """The bit patterns that Paddle's dtype "uint16" has for integers."""
    return (ids.astype("f4").view("u4") >> 16).astype("<u2")


def padded(ids, tokens, fill):
    full = np.full((tokens, *ids.shape[1:]), fill, ids.dtype)
    full[: len(ids)] = ids
    return full


@pytest.mark.parametrize(
    ("experts", "shared", "dtype"),
    [(254, 0, "uint8"), (255, 0, "uint16"), (253, 1, "uint8"), (253, 2, "uint16"), (65_534, 0, "uint16"),
     (65_535, 0, "uint32")],
)  # fmt: skip
def test_the_dtype_is_the_one_that_fastdeploy_chooses(experts, shared, dtype):
    assert fastdeploy.routing_dtype(experts, shared) == dtype


@pytest.mark.parametrize("schema", [SCHEMA, WIDE, *EDGE.values()], ids=str)
def test_a_reply_becomes_a_record(schema):
    ids = routing(20, schema=schema)
    text = flat64(ids, fastdeploy.routing_dtype(schema.num_experts))
    ((choice, rows),) = fastdeploy.read(as_json(reply(text)), schema)
    assert (choice, rows.record("a").routing.tolist()) == (0, ids.transpose(1, 0, 2).tolist())


def test_a_row_of_the_last_token_is_dropped():
    ((_, rows),) = fastdeploy.read(reply(flat64(routing(21), "|u1")), SCHEMA)
    assert (len(rows), rows.total_tokens) == (20, 20)


@pytest.mark.parametrize("rows", [19, 22])
def test_rows_that_do_not_match_the_tokens_are_refused(rows):
    with pytest.raises(InvalidRecordError, match=f"{rows} rows do not fit 21 tokens"):
        fastdeploy.read(reply(flat64(routing(rows), "|u1")), SCHEMA)


def test_another_dtype_that_fits_the_size_is_named():
    with pytest.raises(InvalidRecordError) as caught:
        fastdeploy.read(reply(flat64(routing(20), "<i8")), SCHEMA)
    assert "dtype int64" in caught.value.hint


def test_a_stated_dtype_is_believed():
    ((_, rows),) = fastdeploy.read(reply(flat64(routing(20), "<i8")), SCHEMA, dtype="int64")
    assert rows.record("a").routing.tolist() == routing(20).transpose(1, 0, 2).tolist()


def test_an_unknown_dtype_is_refused():
    with pytest.raises(InvalidRecordError, match="dtype must be one of"):
        fastdeploy.rows("", SCHEMA, dtype="float16")


def test_routing_of_one_of_several_choices_is_refused():
    with pytest.raises(InvalidRecordError, match="2 choices and the routing of one"):
        fastdeploy.read(reply(flat64(routing(20), "|u1"), choices=2), SCHEMA)


def test_a_reply_without_routing_is_refused():
    with pytest.raises(InvalidRecordError, match="holds no routed_experts"):
        fastdeploy.read(reply(None), SCHEMA)


@pytest.mark.parametrize(("schema", "dtype", "fill"), [(SCHEMA, "|u1", 255), (WIDE, "<u2", 65_535)])
def test_rows_that_nothing_was_written_to_are_missing(schema, dtype, fill):
    ids = routing(20, schema=schema).astype(dtype)
    ids[3:5] = fill
    rows = fastdeploy.rows(flat64(ids, dtype), schema, num_tokens=21)
    assert [part.part.tokens for part in rows.parts()] == [(0, 3), (5, 20)]


def test_a_legal_id_is_never_taken_for_a_fill_value():
    schema = RoutingSchema(256, 1, [0])
    rows = fastdeploy.rows(flat64(np.full((5, 1, 1), 255), "|u1"), schema, dtype="uint8")
    assert rows.record("a").routing.tolist() == [[[255]] * 5]


def test_bfloat16_patterns_are_recognised():
    ids = routing(20, schema=EDGE[256])
    rows = fastdeploy.rows(flat64(bfloat16(ids), "<u2"), EDGE[256], num_tokens=21)
    assert rows.record("a").routing.tolist() == ids.transpose(1, 0, 2).tolist()


@pytest.mark.parametrize(
    ("make", "fill"),
    [(lambda ids: ids.astype("<u2"), 0xFFFF), (bfloat16, 0xFFFF), (bfloat16, 0xBF80)],
    ids=["uint16 wrapped", "bfloat16 wrapped", "bfloat16 -1.0"],
)
def test_a_fill_value_does_not_make_integers_look_like_bfloat16(make, fill):
    ids = routing(20, schema=EDGE[256])
    data = padded(make(ids), 64, fill)
    rows = p2pstore.rows(data.transpose(1, 0, 2).tobytes(), EDGE[256])
    assert rows.record("a").routing.tolist() == ids.transpose(1, 0, 2).tolist()


def test_what_is_encoded_is_flat_and_token_first():
    record = ForeignRows(routing(20, schema=EDGE[256]), EDGE[256], total_tokens=20).record("a")
    decoded = np.frombuffer(base64.b64decode(fastdeploy.encode(record)), "<u2").reshape(20, 6, 4)
    assert decoded.tolist() == routing(20, schema=EDGE[256]).tolist()


def test_a_record_that_begins_later_cannot_be_encoded():
    record = ForeignRows(routing(5), SCHEMA, start=3, total_tokens=8).record("a")
    with pytest.raises(InvalidRecordError, match="begin with token 0"):
        fastdeploy.encode(record)


# --- p2pstore ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda raw: np.frombuffer(raw, "u1")])
def test_a_fused_value_becomes_a_record(form):
    raw = np.ascontiguousarray(routing(20).astype("u1").transpose(1, 0, 2)).tobytes()
    assert p2pstore.rows(form(raw), SCHEMA).record("a").routing.tobytes() == raw


def test_padding_to_the_longest_length_is_dropped():
    ids = padded(routing(20).astype("u1"), 512, 255)
    rows = p2pstore.rows(ids.transpose(1, 0, 2).tobytes(), SCHEMA)
    assert (len(rows), rows.total_tokens) == (20, 20)


def test_padding_of_signed_ids_is_dropped():
    ids = padded(routing(20), 512, -1)
    assert len(p2pstore.rows(ids.transpose(1, 0, 2).astype("<i4").tobytes(), SCHEMA, dtype="int32")) == 20


def test_nothing_but_padding_is_refused():
    with pytest.raises(InvalidRecordError, match="none of 16 rows was filled"):
        p2pstore.rows(b"\xff" * 16 * 24, SCHEMA)


def test_the_value_of_one_layer_is_a_part():
    rows = p2pstore.rows(routing(20)[:, 2].astype("u1").tobytes(), SCHEMA, layer=2)
    assert (rows.part.layers, rows.record("a").routing.tolist()) == ((2, 3), [routing(20)[:, 2].tolist()])


@pytest.mark.parametrize("layer", [-1, 6, "0", True, 1.0])
def test_a_layer_that_there_is_not_is_refused(layer):
    with pytest.raises(InvalidRecordError, match="no layer at position"):
        p2pstore.rows(b"", SCHEMA, layer=layer)


@pytest.mark.parametrize("size", [1, 23, 25, 24 * 20 - 1])
def test_a_size_that_does_not_divide_is_refused(size):
    with pytest.raises(InvalidRecordError, match="no whole number of tokens"):
        p2pstore.rows(bytes(size), SCHEMA)


def test_no_bytes_are_no_tokens():
    assert p2pstore.rows(b"", SCHEMA).total_tokens == 0


@pytest.mark.parametrize("value", ["text", None, 7, np.arange(48, dtype="u1")[::2], np.array([None])])
def test_what_is_no_bytes_in_one_piece_is_refused(value):
    with pytest.raises(InvalidRecordError, match="bytes in one piece"):
        p2pstore.rows(value, SCHEMA)


def test_uint16_read_as_uint8_is_noticed():
    ids = routing(20, schema=EDGE[255]).astype("<u2")
    raw = np.ascontiguousarray(ids.transpose(1, 0, 2)).tobytes()
    with pytest.raises(InvalidRecordError, match="names an expert twice"):
        p2pstore.rows(raw, EDGE[255], dtype="uint8").record("a")


def test_what_is_put_into_p2pstore_is_layer_first():
    record = ForeignRows(routing(20), SCHEMA, total_tokens=20).record("a")
    assert p2pstore.encode(record) == record.routing.astype("u1").tobytes()
