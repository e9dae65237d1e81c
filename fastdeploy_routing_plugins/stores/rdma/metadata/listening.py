"""The service's sockets."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Final

import zmq

from ....errors import StoreUnavailableError
from ..address import Address
from .framing import MAX_MESSAGE

if TYPE_CHECKING:
    from .curve import Guard

_UNSENT: Final = 256  # answers that wait for one connection to read them
_BACKLOG: Final = 1024
_IDLE: Final = 60  # s of silence after which the system asks whether the other side is still there


def listen(
    context: zmq.Context[Any], address: Address, guard: Guard | None, opened: list[zmq.Socket[bytes]]
) -> tuple[Address, zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Opens both sockets.

    Args:
        context: Where they belong.
        address: Where to listen; ports of 0 are any free ones.
        guard: Lets in who may come; None: everybody.
        opened: Gets the sockets, also if this fails.

    Returns:
        Where they listen, the socket of questions, and that of the stream of changes.

    Raises:
        StoreUnavailableError: the address cannot be listened at.
    """
    coord = _open(context, zmq.ROUTER, guard, opened)
    coord.setsockopt(zmq.ROUTER_MANDATORY, 1)
    sync = _open(context, zmq.XPUB, guard, opened)
    sync.setsockopt(zmq.XPUB_MANUAL, 1)
    _bind(coord, address.host, address.coord)
    _bind(sync, address.host, address.sync)
    return Address(address.host, _port(sync), _port(coord)), coord, sync


def _open(
    context: zmq.Context[Any], kind: int, guard: Guard | None, opened: list[zmq.Socket[bytes]]
) -> zmq.Socket[bytes]:
    made: zmq.Socket[bytes] = context.socket(kind)
    opened.append(made)
    made.linger = 0
    made.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
    made.setsockopt(zmq.SNDHWM, _UNSENT)
    # No limit to what waits to be read, and no heartbeats: libzmq 4.3.5 aborts the process if a connection fails that
    # it stopped reading because of the limit, and a heartbeat is due or comes (stream_engine_base.cpp, _io_error).
    made.setsockopt(zmq.RCVHWM, 0)
    made.setsockopt(zmq.TCP_KEEPALIVE, 1)
    made.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _IDLE)
    made.setsockopt(zmq.BACKLOG, _BACKLOG)
    if guard is not None:
        guard.arm(made)
    return made


def _bind(sock: zmq.Socket[bytes], host: str, port: int) -> None:
    numeric = _numeric(host)
    if ":" in numeric:
        sock.setsockopt(zmq.IPV6, 1)
        numeric = f"[{numeric}]"
    place = f"tcp://{numeric}:{port or '*'}"
    try:
        sock.bind(place)
    except zmq.ZMQError as err:
        hint = "is a service running there already?" if err.errno == zmq.EADDRINUSE else "is it this host's?"
        raise StoreUnavailableError(f"cannot listen at {place}: {os.strerror(err.errno or 0)}", hint=hint) from err


def _numeric(host: str) -> str:
    """Returns the address of a host, since ZeroMQ listens at no names."""
    if host in ("*", "0.0.0.0"):  # noqa: S104 - the command line says what that means
        return "0.0.0.0"  # noqa: S104
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as err:
        raise StoreUnavailableError(f"cannot listen at {host}: {err.strerror}", hint="write its address") from err


def _port(sock: zmq.Socket[bytes]) -> int:
    return int(sock.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
