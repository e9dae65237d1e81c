"""What the kernel says about RDMA devices, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdeploy_routing_plugins.stores.rdma.transport import rdma_devices
from fastdeploy_routing_plugins.stores.rdma.transport.rdma_devices import Device, Port


class Host:
    """A folder that looks like the kernel's."""

    def __init__(self, root: Path) -> None:
        self.sys, self.verbs, self.dev = root / "infiniband", root / "infiniband_verbs", root / "dev"
        for folder in (self.sys, self.verbs, self.dev):
            folder.mkdir()

    def add(self, name: str, *states: str, door: bool = True) -> None:
        for number, state in enumerate(states, 1):
            port = self.sys / name / "ports" / str(number)
            port.mkdir(parents=True)
            (port / "state").write_text(f"{state}\n")
            (port / "link_layer").write_text("InfiniBand\n")
            (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        verbs = f"uverbs{len(list(self.verbs.iterdir()))}"
        (self.verbs / verbs).mkdir()
        (self.verbs / verbs / "ibdev").write_text(f"{name}\n")
        if door:
            (self.dev / verbs).touch()

    def devices(self) -> tuple[Device, ...]:
        return rdma_devices.devices(self.sys, self.verbs, self.dev)

    def why_none(self, wanted: str = "") -> str:
        return rdma_devices.why_none(self.devices(), wanted)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_host_without_devices_has_none(tmp_path: Path) -> None:
    assert rdma_devices.devices(tmp_path / "no", tmp_path / "no", tmp_path / "no") == ()


def test_a_device_is_described(host: Host) -> None:
    host.add("mlx5_0", "4: ACTIVE", "1: DOWN")
    ports = (
        Port(1, "ACTIVE", "InfiniBand", "200 Gb/sec (4X HDR)"),
        Port(2, "DOWN", "InfiniBand", "200 Gb/sec (4X HDR)"),
    )
    assert host.devices() == (Device("mlx5_0", ports, usable=True),)


def test_a_device_whose_files_are_gone_has_no_state(host: Host) -> None:
    (host.sys / "odd" / "ports" / "1").mkdir(parents=True)
    (host.sys / "odd" / "ports" / "x").mkdir()
    assert host.devices() == (Device("odd", (Port(1, "", "", ""),), usable=False),)


def test_one_active_port_is_enough(host: Host) -> None:
    host.add("mlx5_0", "1: DOWN")
    host.add("mlx5_1", "1: DOWN", "4: ACTIVE")
    assert host.why_none() == ""


@pytest.mark.parametrize(
    ("states", "door", "wanted", "said"),
    [
        ([], True, "", "no RDMA device"),
        (["1: DOWN"], True, "", "no port of an RDMA device is active (mlx5_0: DOWN)"),
        (["4: ACTIVE"], False, "", "may not open the RDMA device mlx5_0"),
        (["4: ACTIVE"], True, "mlx5_7", "no RDMA device mlx5_7 (option device): this host has: mlx5_0"),
        ([], True, "mlx5_7", "this host has: none"),
    ],
)
def test_what_is_wrong_is_said(host: Host, states: list[str], door: bool, wanted: str, said: str) -> None:
    if states:
        host.add("mlx5_0", *states, door=door)
    assert said in host.why_none(wanted)


def test_only_wanted_devices_count(host: Host) -> None:
    host.add("mlx5_0", "4: ACTIVE")
    host.add("mlx5_1", "1: DOWN")
    assert (host.why_none("mlx5_0"), host.why_none(" mlx5_0 , mlx5_1 ")) == ("", "")
    assert "mlx5_1: DOWN" in host.why_none("mlx5_1")
