"""An unmodified `P2PClient.get` reads what the engine puts, in every key and value form."""

from __future__ import annotations

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.errors import ConflictError, UnsupportedError

from .servers import SCHEMA, ask, padded, routing, store, trainer

# What FastDeploy keeps ids in: one more value than there are experts has to fit below the type's largest.
DTYPES = {64: "uint8", 254: "uint8", 256: "uint16", 300: "uint16", 70_000: "uint32"}


@pytest.fixture
def client(redis):
    with trainer(redis) as made:
        yield made


@pytest.mark.parametrize("experts", DTYPES)
def test_a_whole_rollout_is_raw_bytes_under_its_id(redis, client, experts):
    schema = RoutingSchema(experts, 4, (1, 2, 5))
    array = routing(schema)
    with store(redis, schema) as writer:
        writer.put("id", array)
        assert ask(client.get("id")) == array.astype(DTYPES[experts]).tobytes()


@pytest.mark.parametrize("experts", DTYPES)
def test_a_whole_rollout_is_an_array_by_option(redis, client, experts):
    schema = RoutingSchema(experts, 4, (1, 2, 5))
    array = routing(schema)
    with store(redis, schema, value="array") as writer:
        writer.put("id", array)
        found = ask(client.get("id"))
    assert found.dtype == DTYPES[experts]
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("value", ["raw", "array"])
def test_a_layer_is_an_array_under_id_and_number(redis, client, value):
    array = routing()
    with store(redis, SCHEMA, value=value) as writer:
        for layer in range(3):
            writer.put("id", array[layer], layers=(layer, layer + 1), total_tokens=20)
        found = [ask(client.get(f"id_{layer}")) for layer in range(3)]
        np.testing.assert_array_equal(np.stack(found), array)
        np.testing.assert_array_equal(writer.get("id").routing, array)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_dtype_and_padding_are_as_the_trainer_wants_them(redis, client, dtype):
    array = routing()
    with store(redis, SCHEMA, dtype=dtype, pad_to=32) as writer:
        writer.put("id", array)
        assert ask(client.get("id")) == padded(array, 32, dtype).tobytes()
        np.testing.assert_array_equal(writer.get("id").routing, array)


def test_without_headers_redis_holds_what_fastdeploy_would_have_put(redis, client):
    with store(redis, SCHEMA, header=False) as writer:
        writer.put("id", routing())
        with redis.client() as raw:
            keys = {key for key in raw.keys("*") if not key.startswith(("p2p:providers:", "p2p:cache_meta"))}
        assert keys == {"p2p:files:id", "p2p:files:index"}
        assert ask(client.get("id")) == routing().tobytes()


def test_awkward_ids_are_keys_as_they_are(redis, client):
    ids = [
        "a/b",
        "..",
        "a b",
        "x:1:0:2",
        "x:1:0:20",
        "*",
        "ü\N{SNOWMAN}",
        "l" * 300,
        "Run",
        "run",
        "a\0b",
        "'\"\\",
        "{x}",
    ]
    with store(redis, SCHEMA) as writer:
        for seed, rollout_id in enumerate(ids):
            writer.put(rollout_id, routing(seed=seed))
        found = {rollout_id: ask(client.get(rollout_id)) for rollout_id in ids}
    assert found == {rollout_id: routing(seed=seed).tobytes() for seed, rollout_id in enumerate(ids)}


@pytest.mark.parametrize("rollout_id", ["88888888", "job-1888888880", "index", "multipart:pending", "fd-routing/x"])
def test_keys_that_p2pstore_drops_or_needs_itself_are_refused(redis, rollout_id):
    with store(redis, SCHEMA) as writer:
        with pytest.raises(UnsupportedError):
            writer.put(rollout_id, routing())
        assert writer.list() == []


def test_keys_of_this_package_never_hold_what_p2pstore_drops(redis):
    with store(redis, SCHEMA) as writer:
        for attempt in (88_888_888, 8_888_888_888):
            writer.put("id", routing(), choice=1, attempt=attempt)
        np.testing.assert_array_equal(writer.get("id", choice=1).routing, routing())


def test_parts_that_fastdeploy_has_no_key_for_are_not_in_the_trainers_way(redis, client):
    array = routing()
    with store(redis, SCHEMA) as writer:
        writer.put("id", array[:, :8], tokens=(0, 8))
        writer.put("id", array[:, 8:], tokens=(8, 20), total_tokens=20)
        assert ask(client.get("id")) is None
        np.testing.assert_array_equal(writer.get("id").routing, array)


def test_other_choices_are_not_in_the_trainers_way(redis, client):
    with store(redis, SCHEMA) as writer:
        writer.put("id", routing(seed=1), choice=1)
        assert ask(client.get("id")) is None
        writer.put("id", routing(seed=0))
        assert ask(client.get("id")) == routing(seed=0).tobytes()
        np.testing.assert_array_equal(writer.get("id", choice=1).routing, routing(seed=1))


def test_a_higher_attempt_takes_the_key(redis, client):
    with store(redis, SCHEMA) as writer:
        writer.put("id", routing(seed=1), attempt=1)
        writer.put("id", routing(seed=2), attempt=2)
        assert ask(client.get("id")) == routing(seed=2).tobytes()


def test_a_key_that_means_two_things_is_a_conflict(redis):
    with store(redis, SCHEMA) as writer:
        writer.put("a_1", routing())
        with pytest.raises(ConflictError):
            writer.put("a", routing()[1], layers=(1, 2), total_tokens=20)
        np.testing.assert_array_equal(writer.get("a_1").routing, routing())


def test_an_equal_put_is_a_success_and_another_a_conflict(redis, client):
    with store(redis, SCHEMA) as writer:
        writer.put("id", routing())
        assert writer.put("id", routing()).duplicate
        with pytest.raises(ConflictError):
            writer.put("id", routing(seed=1))
        assert ask(client.get("id")) == routing().tobytes()


def test_without_headers_too(redis, client):
    with store(redis, SCHEMA, header=False) as writer, store(redis, SCHEMA, header=False, value="array") as second:
        writer.put("id", routing())
        assert writer.put("id", routing()).duplicate
        with pytest.raises(ConflictError):
            second.put("id", routing(seed=1))
        assert ask(client.get("id")) == routing().tobytes()


def test_values_of_other_programs_are_not_overwritten(redis, client):
    ask(client.put("id", b"something"))
    with store(redis, SCHEMA) as writer, pytest.raises(ConflictError):
        writer.put("id", routing())
    assert ask(client.get("id")) == b"something"
