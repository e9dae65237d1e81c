"""Whoever deletes, and whatever: nothing else goes with it, and the producer's memory is given back."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fastdeploy_routing_plugins.errors import AbsentError

from .servers import PATIENCE, SCHEMA, ask, kept_here, reader, routing, store, trainer


@pytest.fixture
def client(redis):
    with trainer(redis) as made:
        yield made


def wait_until(condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_trainers_delete_is_seen(redis, client):
    with store(redis, SCHEMA) as writer:
        writer.put("id", routing())
        assert ask(client.delete("id"))
        assert writer.list() == []
        wait_until(lambda: kept_here() == [])
        writer.put("id", routing(seed=1))
        np.testing.assert_array_equal(writer.get("id").routing, routing(seed=1))


def test_a_trainers_overwrite_is_seen(redis, client):
    with store(redis, SCHEMA) as writer:
        writer.put("id", routing())
        ask(client.put("id", b"something else"))
        with pytest.raises(AbsentError):
            writer.get("id")


def test_deletes_take_the_exact_key(redis, client):
    with store(redis, SCHEMA) as writer:
        for rollout_id in ("x:1", "x:10", "x:1:0", "x"):
            writer.put(rollout_id, routing())
        ask(client.put("x:1_0", b"neighbour"))
        assert writer.delete("x:1") == 1
        assert [found.key.rollout_id for found in writer.list()] == ["x", "x:10", "x:1:0"]
        assert ask(client.get("x:1_0")) == b"neighbour"
        wait_until(lambda: kept_here() == ["x", "x:10", "x:1:0"])


def test_deletes_take_what_others_put_too(redis, client):
    ask(client.put("id", routing().tobytes()))
    ask(client.put("id2", routing().tobytes()))
    with reader(redis) as ours:
        assert ours.delete("id") == 1
        assert [found.key.rollout_id for found in ours.list()] == ["id2"]
    wait_until(lambda: list(client.transports[0]._storage) == ["id2"])


@pytest.mark.parametrize("everything", [False, True])
def test_clearing_leaves_what_others_put(redis, client, everything):
    ask(client.put("theirs", b"value"))
    with store(redis, SCHEMA) as writer:
        writer.put("ours", routing())
        assert writer.clear(everything=everything) == 1
        assert writer.list() == []
    assert ask(client.get("theirs")) == b"value"


def test_clearing_takes_everything_if_the_server_is_ours_alone(redis, client):
    ask(client.put("theirs", b"value"))
    with store(redis, SCHEMA, exclusive=True) as writer:
        writer.put("ours", routing())
        assert writer.clear(everything=True) == 1
        wait_until(lambda: kept_here() == [])
    assert client.list() == []


def test_a_value_that_was_put_since_is_left_alone(redis, client):
    """Whoever looked at a value and deletes it does not take the next one."""
    with reader(redis) as ours:
        backend = ours.resolved.create_backend()
        backend._open()
        try:
            ask(client.put("id", routing().tobytes()))
            looked_at = backend._index.generations(["id"])[0]
            ask(client.put("id", routing(seed=1).tobytes()))
            assert not backend._index.drop("id", looked_at)
        finally:
            backend._close()
    assert ask(client.get("id")) == routing(seed=1).tobytes()


def test_closing_takes_what_nobody_can_serve_any_more(redis, client):
    with store(redis, SCHEMA) as writer:
        writer.put("id", routing())
        writer.put("empty", routing(tokens=0))
    assert client.list() == []
    with redis.client() as raw:
        assert [key for key in raw.keys("*") if key != "p2p:cache_meta" and not key.startswith("p2p:providers:")] == []
