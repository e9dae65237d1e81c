"""Addresses and options of `rdma` over p2pstore; needs neither p2pstore nor Redis."""

from __future__ import annotations

import importlib.util

import pytest

from fastdeploy_routing_plugins.errors import ConfigError, MissingDependencyError
from fastdeploy_routing_plugins.schema import RoutingSchema
from fastdeploy_routing_plugins.stores.rdma.config import RdmaConfig
from fastdeploy_routing_plugins.stores.rdma.p2pstore import needs
from fastdeploy_routing_plugins.stores.rdma.p2pstore.config import parse, parse_schema


def test_one_server():
    address = parse("redis://user:secret@10.0.0.5:6380/3?protocol=tcp&device=mlx5_0")
    assert address.places == (("10.0.0.5", 6380),)
    assert (address.database, address.username, address.password) == (3, "user", "secret")
    assert (address.protocol, address.device) == ("tcp", "mlx5_0")
    assert address.url == "redis://user:secret@10.0.0.5:6380/3"


def test_sentinels():
    address = parse("redis+sentinel://:secret@a:26379,b:26380/main/2?protocol=rdma")
    assert address.places == (("a", 26379), ("b", 26380))
    assert (address.service, address.database, address.password) == ("main", 2, "secret")
    assert address.url == "redis+sentinel://:secret@a:26379,b:26380/main/2"


def test_defaults_are_redis_own():
    address = parse("redis://host")
    assert (address.places, address.database, address.protocol) == ((("host", 6379),), 0, "")


def test_passwords_are_not_shown():
    address = parse("redis://:secret@host:1")
    assert "secret" not in repr(address) + str(address)


@pytest.mark.parametrize(
    "server",
    [
        "redis://",
        "redis://host:0",
        "redis://host:70000",
        "redis://a:1,b:2",
        "redis://host/x",
        "redis://host/1/2",
        "redis://host?protocol=udp",
        "redis://host?protocol=tcp&protocol=tcp",
        "redis://host?key_prefix=x",
        "redis://ho st",
        "redis+sentinel://a,,b/main",
        "redis+sentinel://a/main/x",
        "rediss://host:6379",
    ],
)
def test_what_p2pstore_would_take_amiss_is_refused(server):
    with pytest.raises(ConfigError):
        RdmaConfig(server=server)


def test_refusals_do_not_show_passwords():
    with pytest.raises(ConfigError) as caught:
        RdmaConfig(server="redis://:secret@host:70000")
    assert "secret" not in str(caught.value)


def test_tls_is_refused_by_name():
    with pytest.raises(ConfigError, match="TLS"):
        RdmaConfig(server="rediss://host:6379")


@pytest.mark.parametrize(
    "options",
    [
        {"transport": "shm"},
        {"transport": "rdma"},
        {"device": "mlx5_1"},
        {"schema": "experts=4"},
        {"dtype": "int16"},
        {"pad_to": -1},
        {"timeout": 0.0},
    ],
)
def test_options_that_do_not_fit_are_refused(options):
    with pytest.raises(ConfigError):
        RdmaConfig(server="redis://host?protocol=tcp&device=mlx5_0", **options)


def test_schema_of_runs():
    assert parse_schema("experts=256,top_k=8,layers=3-5+9") == RoutingSchema(256, 8, (3, 4, 5, 9))


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "experts=1,top_k=1",
        "experts=a,top_k=1,layers=1",
        "experts=9,top_k=1,layers=5-3",
        "experts=9,top_k=1,layers=",
        "experts=9,top_k=1,layers=0-999999999",
    ],
)
def test_no_schema(text):
    with pytest.raises(ConfigError):
        parse_schema(text)


def test_no_address_is_not_over_p2pstore():
    assert not RdmaConfig().redis


@pytest.mark.parametrize("missing", ["p2pstore", "redis", "mooncake"])
def test_what_is_missing_is_named(missing, monkeypatch):
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == missing else importlib.util)
    with pytest.raises(MissingDependencyError) as caught:
        needs.check()
    assert caught.value.module == missing
