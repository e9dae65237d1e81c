"""Why a metadata service does not answer, for people: asked after it did not, and takes its time."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ....errors import RoutingError
from .client import MetadataClient

if TYPE_CHECKING:
    from ..address import Address
    from .security import Security


def closed_port(address: Address, number: int, timeout: float, *, keys: bool) -> tuple[str, str] | None:
    """Returns what is wrong with a port of a service, and what to do; None if it is open."""
    serve = f"fd-routing serve {address}{' --keys DIR/server.json' if keys else ''}"
    what = f"{address.host}:{number}"
    try:
        socket.create_connection((address.host, number), timeout).close()
    except socket.gaierror as err:
        return f"{address.host} is no known host: {err.strerror}", "correct rdma_store_server"
    except ConnectionRefusedError:
        return f"nobody listens at {what}", f"start one with: {serve}"
    except TimeoutError:
        cure = f"is a firewall between? is the host up? the service is started with: {serve}"
        return f"{what} does not answer", cure
    except OSError as err:
        return f"{what} cannot be reached: {err.strerror}", "correct rdma_store_server"
    return None


def swapped(address: Address, namespace: str, security: Security, timeout: float) -> bool:
    """Whether a service answers where its stream of changes is said to be: then the ports are the wrong way round."""
    other = replace(address, sync=address.coord, coord=address.sync)
    client = MetadataClient(other, namespace, security, timeout)
    with suppress(RoutingError):
        try:
            client.open()
            client.status()
        finally:
            client.close()
        return True
    return False


def why_silent(address: Address, namespace: str, security: Security, timeout: float) -> tuple[str, str] | None:
    """Returns what is wrong, and what to do; None if that cannot be told.

    Args:
        address: Where the service should be.
        namespace: Of the client.
        security: Of the client.
        timeout: Seconds for each look.
    """
    for number in (address.sync, address.coord):
        if closed := closed_port(address, number, timeout, keys=bool(security.keys)):
            return closed
    if swapped(address, namespace, security, timeout):
        cure = f"swap them: its stream of changes is at {address.coord}, its questions are at {address.sync}"
        return f"the ports of {address} are the wrong way round", cure
    return _other_keys(address, security, timeout)


def _other_keys(address: Address, security: Security, timeout: float) -> tuple[str, str] | None:
    """Returns what is wrong with the keys of either side, which ZeroMQ tells nobody; None if nothing seems so."""
    mechanism = _mechanism(address, timeout)
    where = f"the service at {address.host}:{address.coord}"
    if mechanism == "CURVE" and not security.keys:
        return (
            f"{where} wants keys, and this side has none",
            "set option keys to a client file of its `fd-routing keygen`",
        )
    if mechanism == "CURVE":
        cure = f"is {security.keys!r} of the same `fd-routing keygen` folder, and in its clients.json still?"
        return f"{where} takes other keys than this side's", cure
    if mechanism == "NULL" and security.keys:
        return f"{where} has no keys, and this side has some", "serve with --keys, or leave option keys out"
    return None


def _mechanism(address: Address, timeout: float) -> str:
    """Returns the security mechanism that a socket of ZeroMQ greets with; empty: it does not.

    The greeting of 64 bytes, whose bytes 12 to 31 name it, is that of ZMTP 3.0 (RFC 23 of ZeroMQ). To signature and
    version alone a socket answers with all of its own; to another mechanism than its own with none.
    """
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
    answer = b""
    with suppress(OSError), socket.create_connection((address.host, address.coord), timeout) as peer:
        peer.settimeout(timeout)
        peer.sendall(greeting)
        while len(answer) < 32 and (more := peer.recv(64)):
            answer += more
    return answer[12:32].rstrip(b"\0").decode("ascii", "replace") if answer[:1] == b"\xff" else ""
