"""Our reader reads what an unmodified `P2PClient.put` of FastDeploy's stock store put, in every key and value form."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.errors import AbsentError, CorruptDataError, StoreError

from .servers import SCHEMA, ask, padded, reader, routing, store, trainer

STOCK = {64: "uint8", 256: "uint16", 300: "uint16", 70_000: "uint32"}


@pytest.fixture
def client(redis):
    with trainer(redis) as made:
        yield made


@pytest.mark.parametrize("experts", STOCK)
@pytest.mark.parametrize("length", [20, 64])
def test_raw_bytes_of_all_layers(redis, client, experts, length):
    schema = RoutingSchema(experts, 4, (1, 2, 5))
    array = routing(schema)
    ask(client.put("x:1:0:0", padded(array, length, STOCK[experts]).tobytes()))
    with reader(redis, schema) as trainer_side:
        record = trainer_side.get("x:1:0:0")
    assert (record.schema, record.total_tokens) == (schema, 20)
    np.testing.assert_array_equal(record.routing, array)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_an_array_of_all_layers(redis, client, dtype):
    ask(client.put("id", padded(routing(), 64, dtype)))
    with reader(redis) as trainer_side:
        np.testing.assert_array_equal(trainer_side.get("id").routing, routing())


def test_raw_bytes_of_a_stated_dtype(redis, client):
    ask(client.put("id", padded(routing(), 64, "int32").tobytes()))
    with reader(redis, dtype="int32") as trainer_side:
        np.testing.assert_array_equal(trainer_side.get("id").routing, routing())


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_arrays_of_single_layers(redis, client, dtype):
    for layer, array in enumerate(padded(routing(), 64, dtype)):
        ask(client.put(f"id_{layer}", array))
    with reader(redis) as trainer_side:
        np.testing.assert_array_equal(trainer_side.get("id").routing, routing())
        np.testing.assert_array_equal(
            trainer_side.get("id", layers=(1, 2), tokens=(3, 9)).routing, routing()[1:2, 3:9]
        )


def test_all_of_it_is_listed(redis, client):
    ask(client.put("fused:1", padded(routing(), 32, "uint8").tobytes()))
    ask(client.put("fused_2", padded(routing(), 32, "uint8").tobytes()))
    for layer, array in enumerate(routing()):
        ask(client.put(f"layers_{layer}", array))
    ask(client.put("something else", b"12345"))
    ask(client.put("text", np.array(["a", "b"])))
    with store(redis, SCHEMA) as writer, reader(redis) as trainer_side:
        writer.put("ours", routing())
        assert [found.key.rollout_id for found in trainer_side.list()] == ["fused:1", "fused_2", "layers", "ours"]


def test_what_has_a_header_is_not_listed_twice(redis):
    with store(redis, SCHEMA) as writer, reader(redis) as trainer_side:
        name = writer.put("ours", routing(), attempt=7).name
        backend = trainer_side.resolved.create_backend()
        backend._open()
        try:
            assert backend._list("") == [name]
        finally:
            backend._close()


def test_ids_of_any_length(redis, client):
    ask(client.put("l" * 300, routing().tobytes()))
    with reader(redis) as trainer_side:
        np.testing.assert_array_equal(trainer_side.get("l" * 300).routing, routing())


def test_without_a_schema_nothing_is_found(redis, client):
    ask(client.put("id", routing().tobytes()))
    with store(redis, SCHEMA) as trainer_side, pytest.raises(AbsentError):
        trainer_side.get("id")


def test_what_was_put_without_headers(redis):
    with store(redis, SCHEMA, header=False, pad_to=50) as writer, reader(redis) as trainer_side:
        writer.put("id", routing())
        np.testing.assert_array_equal(trainer_side.get("id").routing, routing())


def test_a_reader_that_waits(redis, client):
    from threading import Timer

    later = Timer(0.3, lambda: ask(client.put("id", routing().tobytes())))
    with reader(redis) as trainer_side:
        later.start()
        np.testing.assert_array_equal(trainer_side.get("id", timeout=20).routing, routing())
    later.join()


def test_pickles_of_bytes_are_looked_into_and_never_run(redis, client):
    """What p2pstore up to 0.1.13 makes of bytes; put as an array here, which it leaves alone."""
    framed = np.frombuffer(pickle.dumps(padded(routing(), 64, "uint8").tobytes(), 4), np.uint8)
    ask(client.put("id", framed))
    with redis.client() as raw:
        record = json.loads(raw.get("p2p:files:id"))
        record["metadata"] |= {"object_type": "object", "tensor_shape": [], "tensor_dtype": None}
        raw.set("p2p:files:id", json.dumps(record))
    with reader(redis) as trainer_side:
        np.testing.assert_array_equal(trainer_side.get("id").routing, routing())


@pytest.mark.parametrize(
    "change",
    [
        {"data_size": 1 << 50},
        {"data_size": -1},
        {"data_size": "7"},
        {"data_size": 10**400},
        {"tensor_shape": "x", "object_type": "numpy"},
        {"tensor_dtype": "O", "object_type": "numpy"},
        {"tensor_dtype": "float32", "object_type": "numpy"},
        {"object_type": None},
        {"file_key": "other"},
    ],
)
def test_damaged_records_are_errors(redis, client, change):
    ask(client.put("id", routing().tobytes()))
    with redis.client() as raw:
        record = json.loads(raw.get("p2p:files:id"))
        record["metadata"] |= change
        raw.set("p2p:files:id", json.dumps(record))
    with reader(redis, timeout=1.0) as trainer_side, pytest.raises(StoreError):
        trainer_side.get("id")


@pytest.mark.parametrize(
    "record", ["", "x", "[]", "{}", '{"host": 5, "metadata": {}}', '{"host": "h", "metadata": 5}', "[" * 5000]
)
def test_records_that_are_none_are_errors(redis, record):
    with redis.client() as raw:
        raw.set("p2p:files:id", record)
        raw.sadd("p2p:files:index", "id")
    with reader(redis) as trainer_side:
        assert trainer_side.list() == []
        with pytest.raises(AbsentError):
            trainer_side.get("id")


def test_ids_that_the_model_does_not_have_are_no_routing(redis, client):
    ask(client.put("id", np.full((3, 20, 4), 99, np.uint8).tobytes()))
    with reader(redis) as trainer_side, pytest.raises(AbsentError):
        trainer_side.get("id")


def test_with_headers_damage_is_noticed(redis):
    with store(redis, SCHEMA) as writer, store(redis, value="array") as trainer_side:
        writer.put("id", routing())
        from fastdeploy_routing_plugins.stores.rdma.p2pstore import held

        for client, _ in held._here().used.values():
            for transport in client._client.transports:
                for key, value in transport._storage.items():
                    transport._storage[key] = bytes([value[0] ^ 1]) + value[1:]
        with pytest.raises(CorruptDataError):
            trainer_side.get("id")
