"""A TCP connection, from the side of who receives much: every wait has a deadline, and wake-ups are few.

The kernel is told (``SO_RCVLOWAT``) to wake this side when an eighth of what is still missing is there, or a megabyte
of it, not for every segment; it widens the window accordingly.
"""

from __future__ import annotations

import math
import select
import socket
import time
from typing import TYPE_CHECKING, Final

from .serving import tune

if TYPE_CHECKING:
    from collections.abc import Callable

_WAKE: Final = 1 << 20  # bytes
_SHARES: Final = 8  # of what is missing; one of them is waited for
FEW: Final = 256 << 10  # bytes that are not worth telling the kernel
_VECTORS: Final = 512  # pieces of memory of one call; Linux takes 1,024
_SILENCE: Final = 0.25  # s without that much, after which it is asked whether the producer lives, again and again


class Stream:
    """An open connection. Only one thread uses it at a time.

    Args:
        host: Where to connect to.
        port: Where to connect to.
        deadline: When to give up, in ``time.monotonic()``.
        silent: Called while the other side is silent; raises if waiting is no use any more.

    Raises:
        TimeoutError: the deadline passed.
        OSError: nobody listens there.
    """

    def __init__(self, host: str, port: int, deadline: float, silent: Callable[[], None]) -> None:
        self._silent = silent
        self._wake = 1
        self._early = b""
        self._peer = _connect(host, port, deadline)
        try:
            tune(self._peer)
            self._peer.setblocking(False)
            self._readable, self._writable = select.poll(), select.poll()
            self._readable.register(self._peer, select.POLLIN)
            self._writable.register(self._peer, select.POLLOUT)
        except BaseException:
            self._peer.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        self._peer.close()

    def __del__(self) -> None:
        peer = getattr(self, "_peer", None)
        if peer is not None:
            peer.close()  # what an interrupt let fall

    def send(self, data: bytes, deadline: float) -> None:
        """Sends everything. Raises TimeoutError or OSError."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._peer.send(view, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._wait(self._writable, deadline)

    def exactly(self, count: int, deadline: float) -> bytes:
        """Returns the next so many bytes. Raises TimeoutError or OSError."""
        raw = bytearray(count)
        self.fill([memoryview(raw)], deadline)
        return bytes(raw)

    @property
    def unread_bytes(self) -> int:
        """How much was taken back and did not come again yet."""
        return len(self._early)

    def unread(self, data: bytes) -> None:
        """Takes back what came and belongs to something else than was thought: it comes again, before all else."""
        self._early = data + self._early

    def fill(self, buffers: list[memoryview], deadline: float, enough: int | None = None) -> int:
        """Receives until all buffers are full, or until enough has come.

        Args:
            buffers: Where to; in the end, what is not full yet.
            deadline: When to give up.
            enough: How many bytes are enough; None: all.

        Returns:
            How many came.

        Raises:
            TimeoutError: the deadline passed.
            OSError: the connection broke.
        """
        buffers[:] = [each for each in buffers if each.nbytes]
        if enough is None:
            enough = sum([each.nbytes for each in buffers])
        came = self._again(buffers) if self._early else 0
        while came < enough:
            missing = enough - came
            self._expect(missing)
            if missing >= FEW:  # it is better not to touch the connection while the kernel still fills it
                self._wait(self._readable, deadline)
            try:
                got = self._peer.recvmsg_into(buffers[:_VECTORS])[0]
            except BlockingIOError:
                self._wait(self._readable, deadline)
                continue
            if not got:
                raise ConnectionResetError("the other side closed the connection")
            came += got
            _consume(buffers, got)
        return came

    def _again(self, buffers: list[memoryview]) -> int:
        """Fills buffers with what was taken back."""
        came = 0
        while self._early and buffers:
            some = self._early[: buffers[0].nbytes]
            buffers[0][: len(some)] = some
            self._early = self._early[len(some) :]
            came += len(some)
            _consume(buffers, len(some))
        return came

    def _expect(self, nbytes: int) -> None:
        """Tells the kernel when to wake this side."""
        wake = 1
        if nbytes >= FEW:  # what has come is copied while the rest comes
            wake = min(_WAKE, nbytes // _SHARES)
        if wake != self._wake:
            self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)
            self._wake = wake

    def _wait(self, poll: select.poll, deadline: float) -> None:
        while not poll.poll(math.ceil(min(seconds_left(deadline), _SILENCE) * 1000)):
            seconds_left(deadline)
            self._silent()


def _consume(buffers: list[memoryview], count: int) -> None:
    """Takes so many bytes, which have come, off the front."""
    full = 0
    for each in buffers:
        if count < each.nbytes:
            break
        count -= each.nbytes
        full += 1
    del buffers[:full]
    if count:
        buffers[0] = buffers[0][count:]


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connects to the first of a host's addresses where somebody listens."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for index, (family, kind, protocol, _, where) in enumerate(addresses):
        peer = socket.socket(family, kind, protocol)
        try:
            peer.settimeout(seconds_left(deadline))
            peer.connect(where)
        except OSError:
            peer.close()
            if index + 1 == len(addresses):
                raise
        except BaseException:
            peer.close()
            raise
        else:
            return peer
    raise ConnectionRefusedError(f"{host} has no address")


def seconds_left(deadline: float) -> float:
    """Returns the seconds until a deadline.

    Raises:
        TimeoutError: it has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
