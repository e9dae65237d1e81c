"""One reader's connection to a producer's TCP server; ``frames`` says what is spoken."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ....errors import CorruptDataError, RoutingError
from . import frames
from .frames import Answer, Challenge, ReplyHead, Request, Status
from .refusals import encode_error

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from .base import Holdings

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")
_INBOX: Final = 16 << 10  # bytes; requests that are larger get more
_AT_ONCE: Final = 8 << 20  # bytes handed to the kernel in one call
_REPLIES: Final = 256 << 10  # bytes of replies that are sent before further requests are looked at: a reader has work
_VECTORS: Final = 512  # pieces in one call; the kernel takes 1,024
_JOINED: Final = 1 << 20  # bytes of pieces that are put together
_PATIENCE: Final = struct.Struct("@ll")  # struct timeval of 64-bit Linux


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server, and each of its connections, may take.

    Attributes:
        connections: How many there may be.
        idle: Seconds after which a connection may be ended to make room for another.
        handshake: Seconds that a reader has to say who it is.
        stall: Seconds in which a reader must take 8 MiB of a reply, or all that is left of it; else it is cut off, so
            that what it reads can be freed.
    """

    connections: int = 512
    idle: float = 1.0
    handshake: float = 5.0
    stall: float = 30.0


class _Gone(Exception):
    """The reader went away."""


class Connection:
    """A reader, in a thread of its own.

    Args:
        peer: The connection.
        holdings: What is served.
        secret: What the reader must know; empty: nothing.
        owner: Who serves.
        limits: See ``Limits``.
        stopping: Set when the server ends.
        busy: Whether to turn the reader away, because there are too many.

    Attributes:
        idle_since: Since when the reader has asked for nothing, in ``time.monotonic()``; infinite while it is served.
    """

    def __init__(
        self,
        peer: socket.socket,
        holdings: Holdings,
        secret: str,
        owner: str,
        limits: Limits,
        stopping: threading.Event,
        *,
        busy: bool,
    ) -> None:
        self._peer = peer
        self._holdings = holdings
        self._secret = secret
        self._owner = owner
        self._limits = limits
        self._stopping = stopping
        self._busy = busy
        self._inbox = memoryview(bytearray(_INBOX))
        self._begin = self._end = 0  # what of the inbox is there and not used yet
        self.idle_since = time.monotonic()

    def run(self) -> None:
        """Serves until the reader goes away, or speaks something else."""
        try:
            tune(self._peer)
            self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._limits.stall))
            if not self._shake_hands():
                return
            while True:
                self.idle_since = time.monotonic()
                request = self._next()
                self.idle_since = float("inf")
                with ExitStack() as leases:
                    self._send(self._replies(request, leases))
        except (_Gone, OSError):
            pass
        except CorruptDataError as err:
            _log.info("a connection was cut: %s", err.message)  # no warning: strangers must not fill the log
        except Exception:  # noqa: BLE001 - one reader's trouble is not the others'
            _log.exception("serving a reader failed")

    def shutdown(self) -> None:
        """Ends the connection from another thread."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the descriptor."""
        self._peer.close()

    # --- beginning ----------------------------------------------------------------------------------------------

    def _shake_hands(self) -> bool:
        """Finds out who is there; False if it was turned away."""
        deadline = time.monotonic() + self._limits.handshake
        raw = self._exactly(frames.HELLO_BYTES, deadline)
        hello = frames.decode_hello(raw)
        challenge = Challenge(self._first_answer(hello), os.urandom(frames.NONCE)).encode()
        self._send([challenge])
        answer = frames.decode_challenge(challenge).answer
        if answer == Answer.PROVE:
            proof = self._exactly(frames.PROOF, deadline)
            known = hmac.compare_digest(proof, frames.prove(self._secret, b"reader", raw, challenge))
            answer = Answer.WELCOME if known else Answer.WRONG_SECRET
            if not known:
                self._stopping.wait(0.2)  # makes guessing slow
            own = frames.prove(self._secret, b"producer", raw, challenge) if known else bytes(frames.PROOF)
            self._send([frames.encode_verdict(Answer(answer), own)])
        self._peer.settimeout(None)
        return answer == Answer.WELCOME

    def _first_answer(self, hello: frames.Hello) -> Answer:
        if hello.version != frames.VERSION:
            return Answer.OTHER_VERSION
        if self._busy:
            return Answer.BUSY
        if self._secret and not hello.secret:
            return Answer.NEEDS_SECRET
        if hello.secret and not self._secret:
            return Answer.HAS_NO_SECRET
        if hello.owner and self._owner and hello.owner != self._owner:
            return Answer.OTHER_OWNER
        return Answer.PROVE if self._secret else Answer.WELCOME

    def _exactly(self, count: int, deadline: float) -> bytes:
        """Returns the next bytes of a handshake."""
        while self._end - self._begin < count:
            self._peer.settimeout(max(0.001, deadline - time.monotonic()))
            self._receive()
        raw = bytes(self._inbox[self._begin : self._begin + count])
        self._begin += count
        return raw

    # --- requests -----------------------------------------------------------------------------------------------

    def _next(self) -> Request:
        """Waits for the next request, for as long as it takes."""
        while (request := self._ready()) is None:
            self._make_room()
            self._receive()
        return request

    def _ready(self) -> Request | None:
        """Returns the next request if all of it is there."""
        here = self._inbox[self._begin : self._end]
        if len(here) < frames.REQUEST_BYTES:
            return None
        need = frames.request_size(here[: frames.REQUEST_BYTES])
        if len(here) < need:
            return None
        self._begin += need
        return frames.decode_request(here[:need])

    def _receive(self) -> None:
        got = self._peer.recv_into(self._inbox[self._end :])
        if not got:
            raise _Gone
        self._end += got

    def _make_room(self) -> None:
        """Sees to it that the request that has begun, or the next one, fits into the inbox."""
        here = self._inbox[self._begin : self._end]
        begun = len(here) >= frames.REQUEST_BYTES
        size = max(_INBOX, frames.request_size(here[: frames.REQUEST_BYTES])) if begun else _INBOX
        if size == len(self._inbox):
            self._inbox[: len(here)] = here  # they may overlap: memory is moved, not copied
        else:
            inbox = memoryview(bytearray(size))
            inbox[: len(here)] = here
            self._inbox = inbox
        self._begin, self._end = 0, len(here)

    # --- replies ------------------------------------------------------------------------------------------------

    def _replies(self, request: Request | None, leases: ExitStack) -> list[bytes | memoryview]:
        """Returns the reply to a request, and to those that are there already, as far as one call may send them."""
        pieces: list[bytes | memoryview] = []
        nbytes = 0
        while request is not None:
            try:
                lease = self._holdings.lease(request.name, request.card, request.generation)
                header, payload = leases.enter_context(lease)
            except RoutingError as err:
                raw = encode_error(err)
                pieces += ReplyHead(Status.ERROR, request.number, len(raw), 0).encode(), raw
            else:
                wanted = _pieces(payload, request)
                wanted_bytes = sum([each.nbytes for each in wanted])
                head = ReplyHead(Status.OBJECT, request.number, len(header), wanted_bytes).encode()
                pieces += head, header, *wanted
                nbytes += wanted_bytes
            request = self._ready() if nbytes < _REPLIES and len(pieces) < _VECTORS else None
        return pieces

    def _send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Sends everything; a reader that takes too little of it for too long is cut off."""
        left = [memoryview(each) for each in pieces if len(each)]
        at = 0
        while at < len(left):
            batch, nbytes = [], 0
            for each in left[at : at + _VECTORS]:
                batch.append(each[: _AT_ONCE - nbytes])
                nbytes += batch[-1].nbytes
                if nbytes == _AT_ONCE:
                    break
            since = time.monotonic()
            try:
                sent = self._peer.sendmsg(batch, (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                sent = 0
            if sent < nbytes and time.monotonic() - since >= self._limits.stall:
                _log.warning("a reader that took too little of a reply for %g s was cut off", self._limits.stall)
                raise _Gone
            while at < len(left) and sent >= left[at].nbytes:
                sent -= left[at].nbytes
                at += 1
            if sent:
                left[at] = left[at][sent:]


def _pieces(payload: memoryview, request: Request) -> list[memoryview]:
    """Returns the wanted pieces of a payload, in place; very many small ones are put together."""
    if request.ranges is None:
        return [payload]
    if request.ranges and request.ranges[-1][1] > payload.nbytes:
        _log.info("a connection was cut: more than the %d bytes of %s was asked for", payload.nbytes, request.name)
        raise _Gone
    pieces = [payload[start:stop] for start, stop in request.ranges]
    nbytes = sum([each.nbytes for each in pieces])
    if len(pieces) > _VECTORS and nbytes <= _JOINED:
        return [memoryview(b"".join(pieces))]  # sooner done than many calls
    return pieces


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return _PATIENCE.pack(whole, int((seconds - whole) * 1e6))


def tune(peer: socket.socket) -> None:
    """Sets what both sides of a connection want: no delays, and a notice when the other host is gone."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
