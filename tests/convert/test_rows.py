"""``ForeignRows``: what came from elsewhere, in a store."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingSchema, open_store
from fastdeploy_routing_plugins.convert import sglang
from fastdeploy_routing_plugins.convert.rows import ForeignRows, placed
from fastdeploy_routing_plugins.errors import IncompleteError, InvalidRecordError

from .helpers import SCHEMA, flat64, hidden, routing


@pytest.fixture
def store(tmp_path):
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(tmp_path)}}
    with open_store(config, schema=SCHEMA) as opened:
        yield opened


def put(store, key, rows):
    for part in rows.parts():
        store.put(key, part.rows, **part.place)


def test_all_rows_become_the_rollout(store):
    put(store, "a", ForeignRows(routing(20), SCHEMA, total_tokens=20))
    assert store.get("a").routing.tolist() == routing(20).transpose(1, 0, 2).tolist()


def test_missing_rows_are_missing_parts(store):
    ids = routing(20)
    ids[3:5] = ids[19] = -1
    put(store, "a", ForeignRows(ids, SCHEMA, total_tokens=20, fill=-1))
    with pytest.raises(IncompleteError) as caught:
        store.get("a")
    assert [part.tokens for part in caught.value.missing] == [(3, 5), (19, 20)]


def test_turns_of_one_rollout_complete_each_other(store):
    first = sglang.rows(flat64(routing(12)), SCHEMA)
    put(store, "a", ForeignRows(first.rows, SCHEMA))
    put(store, "a", sglang.rows(flat64(routing(20)[12:]), SCHEMA, start=12, num_tokens=21))
    assert (
        store.get("a").routing.tolist() == np.concatenate([routing(12), routing(20)[12:]]).transpose(1, 0, 2).tolist()
    )


def test_rows_that_alternate_without_end_are_refused(measured):
    ids = np.zeros((1_000_000, 1, 1), "i1")
    ids[::2] = -1
    rows = ForeignRows(ids, RoutingSchema(4, 1, [0]), fill=-1)
    with measured(40 * ids.nbytes), pytest.raises(InvalidRecordError, match="alternate 1000000 times"):
        rows.parts()


def test_no_known_row_is_no_part():
    assert ForeignRows(np.full((3, 6, 4), -1), SCHEMA, total_tokens=3, fill=-1).parts() == []


def test_no_row_at_all_is_an_empty_part(store):
    put(store, "a", ForeignRows(routing(0), SCHEMA, total_tokens=0))
    assert store.get("a").routing.shape == (6, 0, 4)


def test_a_record_has_no_holes():
    ids = routing(20)
    ids[3:5] = -1
    with pytest.raises(InvalidRecordError, match="2 of 20 tokens have no routing, the first is token 13"):
        ForeignRows(ids, SCHEMA, start=10, total_tokens=30, fill=-1).record("a")


def test_a_record_cannot_be_written_to():
    assert not ForeignRows(routing(3).astype("u1"), SCHEMA, total_tokens=3).record("a").routing.flags.writeable


def test_the_payload_stays_as_writable_as_it_was():
    ids = routing(3).transpose(1, 0, 2).astype("u1").transpose(1, 0, 2)
    ForeignRows(ids, SCHEMA, total_tokens=3).record("a")
    assert ids.flags.writeable


def test_ids_out_of_range_are_refused():
    with pytest.raises(InvalidRecordError, match=r"is not in 0\.\.63"):
        ForeignRows(routing(3) + 60, SCHEMA, total_tokens=3).record("a")


@pytest.mark.parametrize("wrong", [0x7F80, 0x7F81, 0x7FC0, 0xFF81, 0xFFFF])
def test_wrong_ids_that_are_patterns_of_no_float_number_are_refused_without_a_warning(wrong):
    ids = routing(3).astype("u2")
    ids[1, 2, 3] = wrong
    with pytest.raises(InvalidRecordError, match=f"id {wrong} at layer position 2, token 1, slot 3"):
        ForeignRows(ids, SCHEMA, total_tokens=3).record("a")


def test_a_representation_shows_no_ids():
    text = repr(ForeignRows(routing(3), SCHEMA, total_tokens=3))
    assert text == f"ForeignRows(shape=(3, 6, 4), dtype=int64, layers 0:6, tokens 0:3 of 3, {SCHEMA})"


@pytest.mark.parametrize("start", [-1, 1.0, "0", None, True, 10**12])
def test_a_start_is_a_token(start):
    with pytest.raises(InvalidRecordError, match="start must be an integer"):
        placed(routing(3), SCHEMA, start=start, num_tokens=None, fill=None)


@pytest.mark.parametrize("num_tokens", [0, -1, 1.0, "4", True, 10**12])
def test_a_number_of_tokens_is_a_number(num_tokens):
    with pytest.raises(InvalidRecordError, match="num_tokens must be an integer"):
        placed(routing(3), SCHEMA, start=0, num_tokens=num_tokens, fill=None)


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 50))
def test_parts_are_the_known_rows_and_no_others(known, start):
    ids = routing(len(known))
    ids[[index for index, real in enumerate(known) if not real]] = -1
    covered = {
        token: part.rows[token - part.start].tolist()
        for part in ForeignRows(ids, SCHEMA, start=start, fill=-1).parts()
        for token in range(*part.part.tokens)
    }
    assert covered == {start + index: ids[index].tolist() for index, real in enumerate(known) if real}


def test_importing_the_package_imports_no_converter():
    code = "import fastdeploy_routing_plugins, sys; print([m for m in sys.modules if 'convert' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_converters_need_no_framework():
    code = (
        "import sys, json\n"
        "from fastdeploy_routing_plugins.convert import fastdeploy, p2pstore, pdtensor, sglang, vllm\n"
        "print(json.dumps([m for m in ('paddle', 'torch') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_dense_layers_cost_no_copy():
    rows = sglang.rows(flat64(hidden(routing(20))), SCHEMA, num_hidden_layers=8)
    assert rows.rows.base is not None
