"""SGLang's ``routed_experts``: base64 of flat int32, token first, all hidden layers, n-1 rows."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from fastdeploy_routing_plugins.convert import sglang
from fastdeploy_routing_plugins.convert.rows import ForeignRows
from fastdeploy_routing_plugins.errors import InvalidRecordError

from .helpers import HIDDEN, SCHEMA, SPREAD, WIDE, as_json, flat64, hidden, routing, sglang_answer


def first(reply, schema=SCHEMA, **how):
    (choice, rows), *_ = sglang.read(reply, schema, **{"num_hidden_layers": HIDDEN, **how})
    assert choice == 0
    return rows


@pytest.mark.parametrize("schema", [SCHEMA, SPREAD, WIDE], ids=["together", "spread", "wide"])
def test_an_answer_becomes_the_record_of_its_moe_layers(schema):
    ids = routing(20, schema=schema)
    answer = sglang_answer(flat64(hidden(ids, schema)), 11, 10)
    assert np.array_equal(first(answer, schema).record("a").routing, ids.transpose(1, 0, 2))


@pytest.mark.parametrize("form", [lambda answer: answer, as_json, lambda answer: as_json(answer).decode()])
def test_a_reply_may_be_json_text_or_decoded(form):
    assert len(first(form(sglang_answer(flat64(hidden(routing(20))), 11, 10)))) == 20


def test_the_last_token_has_no_row_and_the_total_says_so():
    assert first(sglang_answer(flat64(hidden(routing(20))), 11, 10)).total_tokens == 20


def test_rows_begin_at_the_requests_start():
    rows = first(sglang_answer(flat64(hidden(routing(20)[12:])), 11, 10), start=12)
    assert (rows.part.tokens, rows.total_tokens) == ((12, 20), 20)


def test_a_start_that_leaves_no_row_is_an_empty_part():
    assert first(sglang_answer("", 20, 1), start=20).part.tokens == (20, 20)


@pytest.mark.parametrize("rows", [0, 18, 19, 21, 22])
def test_rows_that_do_not_match_the_tokens_are_refused(rows):
    with pytest.raises(InvalidRecordError, match=f"{rows} rows do not fit 21 tokens"):
        first(sglang_answer(flat64(hidden(routing(rows))), 11, 10))


def test_a_server_that_ignores_the_start_is_noticed():
    with pytest.raises(InvalidRecordError, match="20 rows do not fit 21 tokens: the first row is of token 12"):
        first(sglang_answer(flat64(hidden(routing(20))), 11, 10), start=12)


def test_a_batch_is_one_choice_after_the_other():
    answers = [sglang_answer(flat64(hidden(routing(5 + i, i))), 3, 3 + i) for i in range(3)]
    assert [(choice, len(rows)) for choice, rows in sglang.read(answers, SCHEMA, num_hidden_layers=HIDDEN)] == [
        (0, 5),
        (1, 6),
        (2, 7),
    ]


def test_the_openai_like_server_has_the_same_in_sgl_ext():
    choices = [{"index": 0, "message": {}, "sgl_ext": {"routed_experts": flat64(hidden(routing(20)))}}]
    reply = {"choices": choices, "usage": {"prompt_tokens": 11, "completion_tokens": 10, "total_tokens": 21}}
    assert first(reply).total_tokens == 20


def test_a_usage_of_several_choices_does_not_count_for_each():
    choices = [{"index": i, "sgl_ext": {"routed_experts": flat64(hidden(routing(4 + i)))}} for i in range(2)]
    reply = {"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 99}}
    assert [rows.total_tokens for _, rows in sglang.read(reply, SCHEMA, num_hidden_layers=HIDDEN)] == [4, 5]


@pytest.mark.parametrize(("name", "dtype"), [("int32", "<i4"), ("uint16", "<u2"), ("uint8", "|u1")])
def test_a_dtype_that_the_reply_states_is_believed(name, dtype):
    answer = sglang_answer(flat64(hidden(routing(20)), dtype), 11, 10, routed_experts_dtype=name)
    assert np.array_equal(first(answer).record("a").routing, routing(20).transpose(1, 0, 2))


def test_a_dtype_that_is_not_known_is_refused():
    with pytest.raises(InvalidRecordError, match="routed_experts_dtype must be one of"):
        first(sglang_answer("", 11, 10, routed_experts_dtype="float16"))


def test_rows_that_were_not_captured_are_missing_parts():
    ids = hidden(routing(20))
    ids[:7] = ids[12] = -1
    parts = first(sglang_answer(flat64(ids), 11, 10)).parts()
    assert [part.part.tokens for part in parts] == [(7, 12), (13, 20)]


def test_a_row_that_is_half_captured_is_refused():
    ids = hidden(routing(20))
    ids[5, 3] = -1
    with pytest.raises(InvalidRecordError, match="id -1 at layer position 2, token 5"):
        first(sglang_answer(flat64(ids), 11, 10)).record("a")


def test_a_reply_without_routing_is_refused():
    with pytest.raises(InvalidRecordError, match="holds no routed_experts"):
        first({"text": "...", "meta_info": {"prompt_tokens": 1, "completion_tokens": 1}})


@pytest.mark.parametrize(
    "reply", [None, 7, {"meta_info": 3}, [{}], "not json", b"\xff", {"meta_info": {"routed_experts": 3}}]
)
def test_what_is_no_reply_is_refused(reply):
    with pytest.raises(InvalidRecordError):
        first(reply)


def test_layers_that_the_model_cannot_have_are_refused():
    with pytest.raises(InvalidRecordError, match="num_hidden_layers=6 does not fit"):
        first(sglang_answer("", 11, 10), num_hidden_layers=6)


@pytest.mark.parametrize(
    ("spoil", "hint"),
    [
        (lambda raw: base64.b85encode(raw).decode(), "another encoding, such as base85"),
        (lambda raw: base64.urlsafe_b64encode(raw).decode(), "variant for URLs"),
        (lambda raw: base64.encodebytes(raw).decode(), "blanks around it"),
        (lambda raw: base64.b64encode(raw).decode()[:-3], "cut off"),
        (lambda raw: "ä" + base64.b64encode(raw).decode()[1:], "another encoding"),
    ],
)
def test_other_encodings_are_told_apart(spoil, hint):
    with pytest.raises(InvalidRecordError) as caught:
        sglang.decode(spoil(bytes(range(256)) * 6), SCHEMA)
    assert hint in caught.value.hint


def test_no_error_shows_the_payload():
    with pytest.raises(InvalidRecordError) as caught:
        sglang.decode("c2VjcmV0" * 99 + "!", SCHEMA)
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize("schema", [SCHEMA, SPREAD, WIDE], ids=["together", "spread", "wide"])
@pytest.mark.parametrize("layers", [None, 9])
def test_what_is_encoded_is_what_sglangs_own_reader_expects(schema, layers):
    ids = routing(20, schema=schema)
    record = ForeignRows(ids, schema, total_tokens=20).record("a")
    decoded = np.frombuffer(base64.b64decode(sglang.encode(record, num_hidden_layers=layers)), np.int32)
    expected = ids if layers is None else hidden(ids, schema, 9)
    assert np.array_equal(decoded.reshape(20, -1, schema.top_k), expected)


def test_a_record_without_all_layers_cannot_be_encoded():
    record = ForeignRows(routing(5)[:, 2:4], SCHEMA, total_tokens=5, layers=(2, 4)).record("a")
    with pytest.raises(InvalidRecordError, match="not all layers"):
        sglang.encode(record)


def test_a_part_keeps_its_place_through_both_directions():
    record = ForeignRows(routing(20)[12:], SCHEMA, start=12, total_tokens=20).record("a")
    start = record.part.tokens[0]
    again = sglang.rows(sglang.encode(record), SCHEMA, start=start, num_tokens=21).record("a")
    assert (again.part, again.routing.tolist()) == (record.part, record.routing.tolist())
