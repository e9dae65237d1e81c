"""``fd-routing serve`` and ``keygen``: what they print, refuse and leave behind."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.stores.rdma.address import parse
from fastdeploy_routing_plugins.stores.rdma.metadata.page import page_path

from .helpers import invoke, invoke_json, run, started

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def address() -> str:
    """An address at which nobody listens."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return f"zmq://127.0.0.1:{first.getsockname()[1]},127.0.0.1:{second.getsockname()[1]}"


@pytest.fixture
def service(address: str) -> Iterator[subprocess.Popen[str]]:
    """A service that listens there."""
    with started("serve", address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on {address}\n"
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def has_page(address: str) -> bool:
    """Whether the page of counters of the service at this address is there; others' come and go meanwhile."""
    where = parse(address)
    return os.path.exists(page_path(f"{where.host}:{where.coord}"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_good_order(address: str, number: int) -> None:
    with started("serve", address) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert has_page(address)
        process.send_signal(number)
        assert (process.wait(20), process.stdout.read(), has_page(address)) == (0, "", False)


def config(server: str) -> str:
    own = {"routing_store_type": "rdma", "rdma_store_server": server, "routing_store_config": {"timeout": 0.5}}
    return json.dumps(own)


def test_who_swaps_the_ports_is_told_so(service: subprocess.Popen[str], address: str) -> None:
    first, _, second = address.removeprefix("zmq://").partition(",")
    swapped = f"zmq://{second},{first}"
    found = invoke("ls", "--routing-replay-config", config(swapped))
    assert (found.exit_code, "the wrong way round" in found.stderr) == (1, True)
    assert f"its stream of changes is at {first.rpartition(':')[2]}," in found.stderr
    lines = invoke("doctor", "--config", config(swapped), "--timeout", "2").stdout
    assert "the wrong way round" in lines


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("zmq://nowhere.invalid:5765,nowhere.invalid:5766", "nowhere.invalid is no known host"),
        ("", "nobody listens at"),
    ],
)
def test_a_service_that_is_not_there_is_told_by_why(address: str, server: str, said: str) -> None:
    found = invoke("ls", "--config", config(server or address))
    assert (found.exit_code, said in found.stderr, "Traceback" in found.stderr) == (1, True, False)


def test_status_says_how_it_is(service: subprocess.Popen[str], address: str) -> None:
    document = invoke_json("serve", address, "--status")
    assert (document["pid"] != os.getpid(), document["names"], document["settling"]) == (True, 0, False) or (
        document["settling"] is True
    )


def test_status_for_people_names_the_epoch(service: subprocess.Popen[str], address: str) -> None:
    assert "epoch" in invoke("serve", address, "--status").stdout


def test_status_without_a_service_fails_with_a_hint(address: str) -> None:
    done = run("serve", address, "--status", "--json", "--timeout", "0.3")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "store_unavailable"


def test_with_json_the_ready_line_is_a_document(address: str) -> None:
    with started("serve", address, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["listening"] == address
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def test_an_address_that_is_taken_is_an_error(service: subprocess.Popen[str], address: str) -> None:
    done = run("serve", address)
    assert (done.returncode, "cannot listen" in done.stderr, "already" in done.stderr) == (1, True, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "192.0.2.7"])
def test_without_keys_only_this_host_is_served(host: str) -> None:
    done = invoke("serve", f"zmq://{host}:5765,{host}:5766")
    assert (done.exit_code, "--insecure" in done.stderr) == (2, True)


def test_an_address_that_is_none_is_wrong_usage() -> None:
    assert invoke("serve", "tcp://127.0.0.1:1").exit_code == 2


def test_a_lease_shorter_than_the_suspicion_is_wrong_usage(address: str) -> None:
    assert invoke("serve", address, "--suspect", "5", "--lease", "4").exit_code == 2


def test_keys_and_a_secret_are_asked_for(address: str, tmp_path: Path) -> None:
    invoke("keygen", str(tmp_path))
    (tmp_path / "secret").write_text("hush\n")
    secret = f"@{tmp_path / 'secret'}"
    with started("serve", address, "--keys", str(tmp_path / "server.json"), "--secret", secret) as process:
        assert process.stdout is not None
        process.stdout.readline()
        done = invoke("serve", address, "--status", "--keys", str(tmp_path / "client.json"), "--secret", "hush")
        assert (done.exit_code, "epoch" in done.stdout) == (0, True)
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@pytest.mark.parametrize(
    ("serves", "asks", "said"),
    [
        ("a", "", "wants keys, and this side has none"),
        ("a", "b", "takes other keys than this side's"),
        ("", "b", "has no keys, and this side has some"),
    ],
)
def test_what_is_wrong_with_the_keys_is_told(address: str, tmp_path: Path, serves: str, asks: str, said: str) -> None:
    for folder in ("a", "b"):
        invoke("keygen", str(tmp_path / folder))
    options = ["--keys", str(tmp_path / serves / "server.json")] if serves else []
    own = {"server": address, "timeout": 0.5} | ({"keys": str(tmp_path / asks / "client.json")} if asks else {})
    config = json.dumps({"routing_store_type": "rdma", "routing_store_config": own})
    with started("serve", address, *options) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = invoke("ls", "--config", config)
        looked = invoke("doctor", "--config", config, "--timeout", "1")
        keys = ["--keys", own["keys"]] if asks else []
        status = invoke("serve", address, "--status", *keys, "--timeout", "1")
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert (found.exit_code, said in found.stderr, said in looked.stdout) == (1, True, True)
    assert (status.exit_code, said in status.stderr) == (1, True)


@pytest.mark.parametrize(("secret", "said"), [("", "wants a secret"), ("wrong", "wants another secret")])
def test_what_is_wrong_with_the_secret_is_told(address: str, secret: str, said: str) -> None:
    own = {"server": address, "secret": secret}
    with started("serve", address, "--secret", "hush") as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = invoke("ls", "--config", json.dumps({"routing_store_type": "rdma", "routing_store_config": own}))
        status = invoke("serve", address, "--status", "--secret", secret)
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert (found.exit_code, said in found.stderr, said in status.stderr) == (2, True, True)


def test_how_to_serve_names_keys_where_they_are_configured(address: str, tmp_path: Path) -> None:
    invoke("keygen", str(tmp_path))
    own = {"server": address, "timeout": 0.5, "keys": str(tmp_path / "client.json")}
    looked = invoke("doctor", "--config", json.dumps({"routing_store_type": "rdma", "routing_store_config": own}))
    assert f"fd-routing serve {address} --keys DIR/server.json" in " ".join(looked.stdout.split())
    (tmp_path / "clients.json").unlink()
    served = invoke("serve", address, "--keys", str(tmp_path / "server.json"))
    assert (served.exit_code, "clients.json lies beside server.json" in served.stderr) == (2, True)


def test_keygen_makes_files_for_this_user_alone(tmp_path: Path) -> None:
    files = invoke_json("keygen", str(tmp_path / "keys"), "a", "b")["files"]
    assert {os.path.basename(path) for path in files} == {"server.json", "clients.json", "a.json", "b.json"}
    assert {os.stat(path).st_mode & 0o777 for path in files} == {0o600}


def test_keygen_never_overwrites(tmp_path: Path) -> None:
    invoke("keygen", str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert invoke("keygen", str(tmp_path)).exit_code == 2
    assert invoke("keygen", str(tmp_path), "client").exit_code == 2
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_keygen_adds_clients(tmp_path: Path) -> None:
    invoke("keygen", str(tmp_path))
    assert invoke("keygen", str(tmp_path), "late").exit_code == 0
    assert set(json.loads((tmp_path / "clients.json").read_text())["clients"]) == {"client", "late"}


@pytest.mark.parametrize("name", ["../x", "server", "clients", "", "a/b"])
def test_keygen_refuses_names_that_are_no_file(tmp_path: Path, name: str) -> None:
    assert invoke("keygen", str(tmp_path), name).exit_code == 2


def test_keygen_leaves_nothing_half_made(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("mine")
    assert invoke("keygen", str(tmp_path), "a", "b").exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]
