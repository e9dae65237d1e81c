"""vLLM's ``routed_experts``: ``.npy`` in base64, token first; nested lists and arrays of vLLM 0.21."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.convert import npy, vllm
from fastdeploy_routing_plugins.convert.rows import ForeignRows
from fastdeploy_routing_plugins.errors import InvalidRecordError

from .helpers import HIDDEN, SCHEMA, SPREAD, WIDE, as_json, hidden, npy64, routing


def reply(*texts, prompt=11, generated=10, **more):
    choices = [
        {"index": i, "text": "...", "routed_experts": text, "token_ids": [1] * generated}
        for i, text in enumerate(texts)
    ]
    return {"id": "cmpl-1", "choices": choices, "usage": {"prompt_tokens": prompt}, **more}


@pytest.mark.parametrize(
    ("schema", "dtype"), [(SCHEMA, "|u1"), (SPREAD, "|u1"), (WIDE, "<u2"), (WIDE, "<i2"), (SCHEMA, ">u2")]
)
def test_a_choice_becomes_the_record_of_its_moe_layers(schema, dtype):
    ids = routing(20, schema=schema)
    ((_, rows),) = vllm.read(reply(npy64(hidden(ids, schema), dtype)), schema, num_hidden_layers=HIDDEN)
    assert np.array_equal(rows.record("a").routing, ids.transpose(1, 0, 2))


def test_every_choice_is_read_with_its_own_number_of_tokens():
    found = vllm.read(as_json(reply(npy64(routing(20)), npy64(routing(20, 1)))), SCHEMA)
    assert [(choice, rows.total_tokens) for choice, rows in found] == [(0, 20), (1, 20)]


def test_one_choice_without_token_ids_is_counted_by_the_usage():
    choices = [{"index": 0, "routed_experts": npy64(routing(20))}]
    usage = {"prompt_tokens": 11, "completion_tokens": 99}
    with pytest.raises(InvalidRecordError, match="20 rows do not fit 110 tokens"):
        vllm.read({"choices": choices, "usage": usage}, SCHEMA)


def test_leading_rows_may_be_left_out():
    ((_, rows),) = vllm.read(reply(npy64(routing(20)[11:])), SCHEMA, start=11)
    assert (rows.part.tokens, rows.total_tokens) == ((11, 20), 20)


@pytest.mark.parametrize("rows", [19, 21])
def test_rows_that_do_not_match_the_tokens_are_refused(rows):
    with pytest.raises(InvalidRecordError, match="rows do not fit 21 tokens"):
        vllm.read(reply(npy64(routing(rows))), SCHEMA)


def test_lists_of_the_prompt_and_the_completion_are_joined():
    ids = routing(21)  # vLLM 0.21 has a row for the last token too
    found = vllm.read(
        as_json(reply(ids[11:].tolist(), prompt_routed_experts=ids[:11].tolist())), SCHEMA, num_hidden_layers=HIDDEN
    )
    assert np.array_equal(found[0][1].record("a").routing, ids[:20].transpose(1, 0, 2))


def test_tokens_from_the_prefix_cache_are_missing_parts():
    ids = routing(21).astype("i2")
    ids[:8] = -1
    rows = vllm.rows(ids[11:], SCHEMA, prompt=ids[:11], num_tokens=21)
    assert [part.part.tokens for part in rows.parts()] == [(8, 20)]


def test_a_completion_that_is_cut_off_leaves_missing_tokens_at_the_end():
    ids = routing(20).astype("i2")
    rows = vllm.rows(ids[11:15], SCHEMA, prompt=ids[:11], num_tokens=21)
    assert (rows.part.tokens, rows.total_tokens) == ((0, 15), 20)


@pytest.mark.parametrize(
    "value",
    [
        [[[1, 2, 3, 4]] * 6, [[1, 2, 3, 4]] * 5],
        [[[1, 2, 3, 4]] * 5 + [[1, 2, 3]]],
        [[[1, 2, 3, 1.5]] * 6],
        [[[1, 2, 3, True]] * 6],
        [[[1, 2, 3, "4"]] * 6],
        [[[1, 2, 3, 2**40]] * 6],
        [[[1, 2, 3, None]] * 6],
        [1, 2],
        [[[[1]]]],
        {"a": 1},
        None,
        7,
        [[[1, 2, 3, 4, 5]] * 6],
    ],
)
def test_lists_of_something_else_are_refused(value):
    with pytest.raises(InvalidRecordError):
        vllm.decode(value, SCHEMA)


def test_lists_that_contain_themselves_are_refused():
    value = []
    value.append(value)
    with pytest.raises(InvalidRecordError):
        vllm.decode(value, SCHEMA)


def test_a_reply_without_routing_is_refused():
    with pytest.raises(InvalidRecordError, match="holds no routed_experts"):
        vllm.read(reply(None), SCHEMA)


@pytest.mark.parametrize("shape", [(20, 5, 4), (20, 6, 3), (20, 6), (20, 6, 4, 1), (480,)])
def test_another_shape_is_refused(shape):
    with pytest.raises(InvalidRecordError):
        vllm.decode(npy64(np.zeros(shape, "u1")), SCHEMA)


def test_dense_layers_without_their_number_are_explained():
    with pytest.raises(InvalidRecordError, match="8 layers, the schema has 6") as caught:
        vllm.decode(npy64(hidden(routing(20))), SCHEMA)
    assert "num_hidden_layers" in caught.value.hint


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "|b1", "<c8", "<M8[s]", "|S4", "<U3", "|V2"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(InvalidRecordError):
        vllm.decode(npy64(np.zeros((2, 6, 4)), dtype), SCHEMA)


def test_columns_first_is_refused():
    file = io.BytesIO()
    np.save(file, np.asfortranarray(routing(20).astype("u1")))
    with pytest.raises(InvalidRecordError, match="no integers in C order"):
        vllm.decode(base64.b64encode(file.getvalue()), SCHEMA)


def test_an_array_of_objects_is_refused_and_not_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "bomb"), "w")

    file = io.BytesIO()
    np.save(file, np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(InvalidRecordError):
        vllm.decode(base64.b64encode(file.getvalue()), SCHEMA)
    assert not (tmp_path / "bomb").exists()


def npy_file(header: str, data: bytes = b"", *, version: bytes = b"\1\0", length: int | None = None) -> bytes:
    size = len(header) if length is None else length
    width = 2 if version == b"\1\0" else 4
    return npy.MAGIC + version + size.to_bytes(width, "little") + header.encode("latin-1") + data


GOOD = "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 6, 4), }"
DATA = bytes(range(24))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        npy.MAGIC,
        npy.MAGIC + b"\1\0",
        npy_file(GOOD),
        npy_file(GOOD, DATA[:-1]),
        npy_file(GOOD, DATA + b"\0"),
        npy_file(GOOD, DATA, version=b"\4\0"),
        npy_file(GOOD, DATA, length=len(GOOD) + 1),
        npy_file(GOOD, DATA, length=65535),
        npy_file(GOOD + " " * 2000, DATA),
        npy_file(GOOD, DATA, version=b"\2\0", length=2**32 - 1),
        npy_file(GOOD.replace("(1, 6, 4)", f"({2**40}, 6, 4)"), DATA),
        npy_file(GOOD.replace("(1, 6, 4)", f"({2**62}, {2**62}, 4)"), DATA),
        npy_file(GOOD.replace("(1, 6, 4)", f"({10**30}, 6, 4)"), DATA),
        npy_file(GOOD.replace("(1, 6, 4)", "(-1, 6, 4)"), DATA),
        npy_file(GOOD.replace("(1, 6, 4)", "(1, 0, 4)")),
        npy_file(GOOD.replace("(1, 6, 4)", "(1, 6, 0)")),
        npy_file(GOOD.replace("(1, 6, 4)", "()"), b"\0"),
        npy_file(GOOD.replace("(1, 6, 4)", "(1L, 6, 4)"), DATA),
        npy_file(GOOD.replace("'|u1'", "'|O'"), DATA),
        npy_file(GOOD.replace("'|u1'", "[('a', '|u1')]"), DATA),
        npy_file(GOOD.replace("'|u1'", "'|u3'"), DATA),
        npy_file(GOOD.replace("'shape'", "'descr'"), DATA),
        npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': __import__('os').system('x'), }", DATA),
        npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 6, 4), 'more': 1}", DATA),
        npy_file("[" * 900, DATA),
    ],
)
def test_a_header_that_lies_is_refused(raw):
    with pytest.raises(InvalidRecordError):
        npy.read(raw)


@pytest.mark.parametrize(
    "header",
    [
        GOOD,
        GOOD + " " * 30 + "\n",
        '{"shape": (1, 6, 4), "fortran_order": False, "descr": "|u1"}',
        "{'descr':'|u1','fortran_order':False,'shape':(1,6,4)}",
    ],
)
@pytest.mark.parametrize("version", [b"\1\0", b"\2\0", b"\3\0"])
def test_headers_of_other_writers_are_read(header, version):
    assert npy.read(npy_file(header, DATA, version=version)).tobytes() == DATA


def test_no_rows_are_no_rows():
    assert vllm.decode(npy64(np.zeros((0, 6, 4))), SCHEMA).shape == (0, 6, 4)


def test_no_rows_of_absurd_layers_allocate_nothing():
    raw = npy_file(GOOD.replace("(1, 6, 4)", f"(0, {2**62}, {2**62})"))
    assert npy.read(raw).size == 0


def test_what_is_read_cannot_be_written_to():
    assert not vllm.decode(npy64(routing(3)), SCHEMA).flags.writeable


@pytest.mark.parametrize(
    ("num_experts", "dtype"), [(64, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16")]
)
def test_what_is_encoded_is_what_numpy_loads(num_experts, dtype):
    schema = RoutingSchema(num_experts, 4, range(1, 4))
    ids = np.sort(np.random.default_rng(0).integers(0, num_experts - 4, (9, 3, 1)) + np.arange(4)[::-1])
    text = vllm.encode(ForeignRows(ids, schema, total_tokens=9).record("a"), num_hidden_layers=5)
    loaded = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    assert (str(loaded.dtype), loaded.tolist()) == (dtype, hidden(ids, schema, 5).tolist())


def test_more_experts_than_vllms_dtypes_hold_cannot_be_encoded():
    record = ForeignRows(np.zeros((1, 1, 1), "u4"), RoutingSchema(70_000, 1, [0]), total_tokens=1).record("a")
    with pytest.raises(InvalidRecordError, match="uint16 does not hold ids of 70000 experts"):
        vllm.encode(record)
