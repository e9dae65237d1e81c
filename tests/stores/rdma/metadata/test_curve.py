"""CURVE keys: who has them is let in, and nobody else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.cli.cmd_keygen import command
from fastdeploy_routing_plugins.cli.output import Output
from fastdeploy_routing_plugins.errors import ConfigError, StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient, Security
from fastdeploy_routing_plugins.stores.rdma.metadata.follow import Follower

from .helpers import client_of, free_address, name, producing, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service


def make_keys(folder: Path, *names: str) -> None:
    command.main([str(folder), *names], standalone_mode=False, obj=Output(None))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def service(keys: Path) -> Iterator[Service]:
    with serving(security=Security(str(keys / "server.json"))) as service:
        yield service


def refused(service: Service, security: Security) -> bool:
    client = MetadataClient(service.address, "ns", security, timeout=0.4)
    with pytest.raises(StoreUnavailableError, match="does not answer") as caught:
        client.open()
    return "keys" in caught.value.hint


def test_who_has_keys_is_let_in(service: Service, keys: Path) -> None:
    security = Security(str(keys / "client.json"))
    with client_of(service.address, security=security) as client, producing(client) as producer:
        assert producer.put(name()) is None


def test_the_stream_is_behind_keys_too(service: Service, keys: Path) -> None:
    security = Security(str(keys / "client.json"))
    with client_of(service.address, security=security) as client, producing(client) as producer:
        follower = Follower(client, "x:1")
        follower.open()
        until(lambda: follower.update(0) or client.status()["followed"] == 2)
        producer.put(name())
        until(lambda: follower.update(0) or follower.listing.names)
        assert follower.listing.names == [name()]
        follower.close()


def test_who_has_none_is_not(service: Service) -> None:
    assert refused(service, Security())


def test_who_has_those_of_another_service_is_not(service: Service, tmp_path: Path) -> None:
    make_keys(tmp_path / "others")
    assert refused(service, Security(str(tmp_path / "others" / "client.json")))


def test_who_is_not_listed_is_not(service: Service, keys: Path) -> None:
    (keys / "clients.json").write_text('{"type": "clients", "clients": {}}')
    assert refused(service, Security(str(keys / "client.json")))


def test_a_client_that_is_added_is_let_in_at_once(service: Service, keys: Path) -> None:
    make_keys(keys, "late")
    with client_of(service.address, security=Security(str(keys / "late.json"))) as client:
        assert client.status()["names"] == 0


def test_keys_do_not_replace_a_secret(keys: Path) -> None:
    security = Security(str(keys / "server.json"), "hush")
    theirs = Security(str(keys / "client.json"), "hush")
    with serving(security=security) as service, client_of(service.address, security=theirs) as client:
        assert client.status()["names"] == 0


@pytest.mark.parametrize("damage", ["missing", "readable", "foreign", "wrong kind"])
def test_keys_that_cannot_be_used_are_named(keys: Path, damage: str) -> None:
    path = keys / "client.json"
    if damage == "missing":
        path.unlink()
    elif damage == "readable":
        path.chmod(0o644)
    elif damage == "foreign":
        path.write_text("{}")
    else:
        path = keys / "server.json"
    client = MetadataClient(free_address(), "ns", Security(str(path)))
    with pytest.raises(ConfigError, match=str(path)):
        client.open()


def test_a_service_with_a_clients_keys_does_not_start(keys: Path) -> None:
    with pytest.raises(ConfigError, match="service"), serving(security=Security(str(keys / "client.json"))):
        pass


def test_keys_are_this_users_alone(keys: Path) -> None:
    assert {os.stat(path).st_mode & 0o777 for path in keys.iterdir()} == {0o600}
