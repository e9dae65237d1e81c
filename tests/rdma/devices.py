"""The RDMA devices that the tests use, and the kernel's counters of what went over them."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastdeploy_routing_plugins.stores.rdma.transport.rdma_devices import devices, why_none

VARIABLE = "FD_ROUTING_RDMA_DEVICE"
_SYS = Path("/sys/class/infiniband")
_MTU = 4096  # bytes of payload that a packet carries at most
_WORD = 4  # bytes of the unit of port_xmit_data, see the kernel's Documentation/ABI/stable/sysfs-class-infiniband


@dataclass(frozen=True)
class Side:
    """A device, and the address that it answers at.

    Attributes:
        device: Its name.
        address: An IP address of its interface.
    """

    device: str
    address: str

    @property
    def options(self) -> dict[str, Any]:
        """Options of a store that uses it."""
        return {"transport": "rdma", "device": self.device, "bind": self.address}

    def sent(self) -> int:
        """Returns how many bytes it has sent at most, as its own counters say."""
        total = 0
        for port in (_SYS / self.device / "ports").iterdir():
            packets = port / "hw_counters" / "sent_pkts"  # Soft-RoCE
            words = port / "counters" / "port_xmit_data"  # cards
            if packets.exists():
                total += int(packets.read_text()) * _MTU
            elif words.exists():
                total += int(words.read_text()) * _WORD
            else:
                raise AssertionError(f"device {self.device} has no counter of what it sends")
        return total

    @property
    def interface(self) -> str:
        """Name of its network interface."""
        return (_SYS / self.device / "ports/1/gid_attrs/ndevs/0").read_text().strip()


@dataclass(frozen=True)
class Lane:
    """The two ends of a way that routing takes; one device may be both."""

    producer: Side
    reader: Side

    @property
    def crosses(self) -> bool:
        """Whether there are two devices."""
        return self.producer.device != self.reader.device


def lane() -> Lane | str:
    """Returns the devices to use, or why there are none."""
    wanted = os.environ.get(VARIABLE, "")
    if find_spec("mooncake") is None:
        return "Mooncake's Transfer Engine is not installed"
    found = devices()
    why = why_none(found, wanted)
    if why:
        return f"{why}; docs/rdma.md says how to make one in software"
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    names = names or [each.name for each in found if each.active and each.usable]
    sides = [Side(name, _address(name)) for name in names[:2]]
    if not all(side.address for side in sides):
        return f"the devices {', '.join(names)} have no IP address among their GIDs"
    return Lane(sides[0], sides[-1])


def _address(device: str) -> str:
    """Returns the IPv4 address among a device's GIDs."""
    for gid in sorted((_SYS / device / "ports/1/gids").iterdir(), key=lambda path: int(path.name)):
        try:
            mapped = ipaddress.IPv6Address(gid.read_text().strip()).ipv4_mapped
        except (OSError, ValueError):
            continue
        if mapped is not None:
            return str(mapped)
    return ""
