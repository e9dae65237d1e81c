"""What is said where Mooncake cannot be imported. These tests need no Mooncake."""

from __future__ import annotations

import importlib.abc
import sys
from types import ModuleType

import pytest

from fastdeploy_routing_plugins.errors import UnsupportedError
from fastdeploy_routing_plugins.stores.rdma.config import RdmaConfig
from fastdeploy_routing_plugins.stores.rdma.transport import rdma_devices, rdma_env
from fastdeploy_routing_plugins.stores.rdma.transport.rdma import RdmaEndpoint


@pytest.mark.parametrize(
    ("builds", "machine", "variables", "chosen", "expected"),
    [
        ([("mooncake-transfer-engine", "0.3.13.post1")], "x86_64", {}, "tcp", True),
        ([("mooncake-transfer-engine", "0.3.13.post1")], "x86_64", {}, "rdma", False),
        ([("mooncake-transfer-engine", "0.3.13.post1")], "aarch64", {}, "tcp", False),
        ([("mooncake-transfer-engine", "0.3.13.post1")], "x86_64", {"MC_USE_TENT": "1"}, "tcp", False),
        ([("mooncake-transfer-engine", "0.4.0")], "x86_64", {}, "tcp", False),
        ([("a-non-cuda", "0.3.1"), ("another", "0.4")], "x86_64", {}, "tcp", False),
        ([], "x86_64", {}, "tcp", False),  # built by hand
    ],
)
def test_order_is_relied_on_only_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
    builds: list[tuple[str, str]],
    machine: str,
    variables: dict[str, str],
    chosen: str,
    expected: bool,
) -> None:
    monkeypatch.setattr(rdma_env, "builds", lambda: builds)
    monkeypatch.setattr("platform.machine", lambda: machine)
    for name in ("MC_USE_TENT", "MC_USE_TEV1"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert rdma_env.reads_in_order(chosen) is expected


class Failing(importlib.abc.MetaPathFinder):
    """Lets the import of Mooncake fail."""

    def __init__(self, error: ImportError) -> None:
        self._error = error

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name.partition(".")[0] == "mooncake":
            raise self._error


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mooncake"]:
        monkeypatch.delitem(sys.modules, name)
    return monkeypatch


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'mooncake'", name="mooncake"), "is not installed: pip install"),
        (ModuleNotFoundError("No module named 'mooncake.engine'", name="mooncake.engine"), "is not installed"),
        (ImportError("libibverbs.so.1: cannot open shared object file"), "apt-get install libibverbs1"),
        (ImportError("libcudart.so.12: cannot open shared object file"), "mooncake-transfer-engine-non-cuda"),
        (ImportError("/lib/libc.so.6: version `GLIBC_2.38' not found"), "GLIBC_2.38"),
    ],
)
def test_a_failed_import_is_explained(without: pytest.MonkeyPatch, error: ImportError, said: str) -> None:
    without.setattr(sys, "meta_path", [Failing(error), *sys.meta_path])
    assert said in rdma_env.available(RdmaConfig(allow_tcp=True))


def test_an_endpoint_says_so_too(without: pytest.MonkeyPatch) -> None:
    without.setattr(sys, "meta_path", [Failing(ModuleNotFoundError(name="mooncake")), *sys.meta_path])
    with pytest.raises(UnsupportedError, match="is not installed"):
        RdmaEndpoint(RdmaConfig(allow_tcp=True))


def test_another_package_of_that_name_is_told_apart(without: pytest.MonkeyPatch) -> None:
    without.setitem(sys.modules, "mooncake", ModuleType("mooncake"))
    without.setitem(sys.modules, "mooncake.engine", ModuleType("mooncake.engine"))
    assert "too old, or another build" in rdma_env.available(RdmaConfig(allow_tcp=True))


@pytest.mark.parametrize(("allow_tcp", "chosen"), [(False, ""), (True, rdma_env.TCP)])
def test_tcp_is_chosen_only_where_it_is_allowed(monkeypatch: pytest.MonkeyPatch, allow_tcp: bool, chosen: str) -> None:
    monkeypatch.setattr(rdma_devices, "devices", lambda: ())
    assert rdma_env.protocol(RdmaConfig(allow_tcp=allow_tcp)) == chosen


def test_rdma_is_chosen_wherever_there_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = rdma_devices.Device("mlx5_0", (rdma_devices.Port(1, "ACTIVE", "Ethernet", ""),), usable=True)
    monkeypatch.setattr(rdma_devices, "devices", lambda: (device,))
    assert rdma_env.protocol(RdmaConfig(allow_tcp=True)) == rdma_env.RDMA
