"""RDMA devices of this host, as the kernel describes them in ``/sys/class/infiniband``.

Nothing here needs a library: also ``fd-routing doctor`` asks it where Mooncake is not installed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SYS: Final = Path("/sys/class/infiniband")
_VERBS: Final = Path("/sys/class/infiniband_verbs")
_DEV: Final = Path("/dev/infiniband")
_ACTIVE: Final = "ACTIVE"


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an RDMA device.

    Attributes:
        number: From 1.
        state: ``"ACTIVE"``, ``"DOWN"``, ``"INIT"``, … as the kernel names it; empty if it does not say.
        link: ``"InfiniBand"`` or ``"Ethernet"``.
        rate: For people, for example ``"200 Gb/sec (4X HDR)"``.
    """

    number: int
    state: str
    link: str
    rate: str


@dataclass(frozen=True, slots=True)
class Device:
    """An RDMA device.

    Attributes:
        name: For example ``"mlx5_0"``.
        ports: Its ports.
        usable: Whether this process may open it.
    """

    name: str
    ports: tuple[Port, ...]
    usable: bool

    @property
    def active(self) -> bool:
        """Whether a port of it is up."""
        return any(port.state == _ACTIVE for port in self.ports)


def devices(sys: Path = _SYS, verbs: Path = _VERBS, dev: Path = _DEV) -> tuple[Device, ...]:
    """Returns the RDMA devices that the kernel knows, sorted by name.

    Args:
        sys: Where the kernel lists devices.
        verbs: Where it says which character device is whose.
        dev: Where the character devices are.
    """
    doors = {_text(entry / "ibdev"): dev / entry.name for entry in _entries(verbs)}
    return tuple(
        Device(entry.name, _ports(entry), os.access(doors.get(entry.name, dev / "none"), os.R_OK | os.W_OK))
        for entry in _entries(sys)
    )


def diagnosis(found: tuple[Device, ...], wanted: str) -> tuple[str, str] | None:
    """Says why none of the devices can be used, and what to do about it; None if one can.

    Args:
        found: From ``devices``.
        wanted: The names that may be used, parted by commas; empty: all.
    """
    names = {name.strip() for name in wanted.split(",") if name.strip()}
    if unknown := names - {each.name for each in found}:
        there = ", ".join(each.name for each in found) or "none"
        return f"there is no RDMA device {', '.join(sorted(unknown))} (option device)", f"this host has: {there}"
    candidates = [each for each in found if not names or each.name in names]
    if not candidates:
        text = "this host has no RDMA device (/sys/class/infiniband is empty)"
        return text, "leave transport at 'auto', or take 'tcp'"
    active = [each for each in candidates if each.active]
    if not active:
        states = "; ".join(
            f"{each.name}: {', '.join(p.state or 'unknown' for p in each.ports)}" for each in candidates
        )
        return f"no port of an RDMA device is active ({states})", "`ibv_devinfo` and `rdma link` show why"
    if not any(each.usable for each in active):
        shown = ", ".join(each.name for each in active)
        cure = "a container needs --device=/dev/infiniband and --cap-add=IPC_LOCK (or --ulimit memlock=-1)"
        return f"this process may not open the RDMA device {shown}", cure
    return None


def why_none(found: tuple[Device, ...], wanted: str) -> str:
    """Returns ``diagnosis`` in one text; empty if a device can be used."""
    return ": ".join(diagnosis(found, wanted) or ())


def _ports(device: Path) -> tuple[Port, ...]:
    found = []
    for entry in _entries(device / "ports"):
        if entry.name.isdecimal():
            state = _text(entry / "state").rpartition(":")[2].strip()  # "4: ACTIVE"
            found.append(Port(int(entry.name), state, _text(entry / "link_layer"), _text(entry / "rate")))
    return tuple(found)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
