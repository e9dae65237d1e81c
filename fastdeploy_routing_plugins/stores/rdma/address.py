"""Addresses of a metadata service: ``zmq://HOST:SYNC,HOST:COORD``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ...errors import ConfigError

_EXAMPLE = "for example zmq://10.0.0.5:5765,10.0.0.5:5766"
_PLACE = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+|\*)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a metadata service listens.

    Attributes:
        host: Host name or address of both sockets.
        sync: Port of the stream of changes.
        coord: Port of questions and answers.
    """

    host: str
    sync: int
    coord: int

    def __str__(self) -> str:
        return f"zmq://{_bracketed(self.host)}:{self.sync},{_bracketed(self.host)}:{self.coord}"

    @property
    def endpoints(self) -> tuple[str, str]:
        """ZeroMQ's names of ``(sync, coord)``."""
        return f"tcp://{_bracketed(self.host)}:{self.sync}", f"tcp://{_bracketed(self.host)}:{self.coord}"

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def everywhere(self) -> bool:
        """Whether it means all interfaces; only to listen on."""
        return self.host in ("*", "0.0.0.0", "::")  # noqa: S104 - recognised, not bound


def parse(text: str) -> Address:
    """Takes an address apart.

    Raises:
        ConfigError: it is none; the message says what is wrong.
    """
    scheme, mark, rest = text.partition("://")
    if not mark or scheme.lower() != "zmq":
        raise _bad(text, "does not begin with zmq://")
    places = [_PLACE.fullmatch(place) for place in rest.rstrip("/").split(",")]
    if len(places) != 2 or None in places:
        raise _bad(text, "is not two places HOST:PORT, the stream of changes and the questions, parted by a comma")
    hosts, ports = set(), []
    for match in places:
        assert match is not None
        hosts.add(match[1] or match[2])
        ports.append(int(match[3]))
    if len(hosts) != 1:
        raise _bad(text, "names two hosts, but one service has both ports")
    if not all(0 < port < 65_536 for port in ports) or ports[0] == ports[1]:
        raise _bad(text, "needs two different ports from 1 to 65535")
    return Address(hosts.pop(), ports[0], ports[1])


def _bad(text: str, what: str) -> ConfigError:
    problem = f"rdma_store_server {text!r:.100} {what}; {_EXAMPLE}"
    return ConfigError(problem, problems=(problem,))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
