"""This host as others see it: who it is, how it is reached, and whether it has RDMA."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING

from ...errors import StoreUnavailableError, UnsupportedError
from .transport import rdma

if TYPE_CHECKING:
    from .config import RdmaConfig
    from .transport.rdma import RdmaEndpoint


def host_id() -> str:
    """Returns what names the running system: the kernel's boot id."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


def local_address(host: str, port: int) -> str:
    """Returns the address of this host that another one is reached from.

    Raises:
        StoreUnavailableError: it cannot be reached.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # sends nothing: it only chooses a route
            return str(probe.getsockname()[0])
    except OSError as err:
        raise StoreUnavailableError(
            f"no way from this host to {host}: {err}", hint="option bind says which address readers reach"
        ) from err


def is_loopback(host: str) -> bool:
    """Whether only this host reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_endpoint(config: RdmaConfig) -> RdmaEndpoint | None:
    """Returns the RDMA engine if the configuration and the host have one.

    Raises:
        UnsupportedError: the configuration names ``rdma`` and it cannot be used here.
    """
    if config.transport not in ("auto", "rdma"):
        return None
    reason = rdma.available(config)
    if reason and config.transport == "rdma":
        raise UnsupportedError(f"transport 'rdma' cannot be used here: {reason}")
    return None if reason else rdma.RdmaEndpoint(config, "")
