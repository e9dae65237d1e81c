"""What readers and backends handle: told apart, copied, and shown without the data."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc

import msgspec
import numpy as np
import pytest
from rich.pretty import pretty_repr

import fastdeploy_routing_plugins as package
from fastdeploy_routing_plugins import RoutingKey, RoutingRecord, RoutingSchema
from fastdeploy_routing_plugins.backend import Blob, GetRequest
from fastdeploy_routing_plugins.names import Part

SCHEMA = RoutingSchema(256, 2, [3, 4])


@pytest.fixture
def record() -> RoutingRecord:
    routing = np.full((2, 3, 2), 213, np.uint8)
    return RoutingRecord(routing, RoutingKey("a"), SCHEMA, Part((0, 3), (0, 2)), 3, 7)


def test_help_shows_the_fields() -> None:
    assert list(inspect.signature(RoutingRecord).parameters)[:3] == ["routing", "key", "schema"]
    assert "weight_versions" in pydoc.render_doc(RoutingRecord)
    for name in package.__all__:
        pydoc.render_doc(getattr(package, name))


def test_nothing_shows_the_data(record: RoutingRecord) -> None:
    blob = Blob(b"header", (b"SECRET",))
    for shown in (repr(record), pretty_repr(record), repr(blob), pretty_repr(blob)):
        assert "213" not in shown
        assert "SECRET" not in shown
    assert "(2, 3, 2)" in pretty_repr(record)


def test_a_record_can_be_copied_and_sent(record: RoutingRecord) -> None:
    for other in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        np.testing.assert_array_equal(other.routing, record.routing)
        assert (other.key, other.attempt, other.part) == (record.key, 7, record.part)
    assert msgspec.structs.replace(record, attempt=8).attempt == 8
    with pytest.raises(AttributeError):
        record.attempt = 9  # type: ignore[misc]


def test_requests_for_the_same_are_equal() -> None:
    one, other = GetRequest("n", None, memoryview(bytearray(3))), GetRequest("n")
    assert one == other
    assert {one: 1}[other] == 1
    assert one not in {GetRequest("n", ()), GetRequest("m")}
    assert one != "n"
