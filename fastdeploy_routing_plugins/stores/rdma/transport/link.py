"""One connection of a reader to a producer's TCP server; ``frames`` says what is spoken.

Replies are received straight into recycled memory. The kernel is told how much is still missing (``SO_RCVLOWAT``), so
that it wakes this side when that much is there, or a megabyte of it, not for every segment.

Nothing on a connection tells a producer that is frozen from one that is slow, so while nothing comes the reader asks
elsewhere, see ``silent``.
"""

from __future__ import annotations

import hmac
import os
import socket
import time
from typing import TYPE_CHECKING, Final

import msgspec

from ....backend import Blob
from ....errors import (
    AbsentError,
    ConfigError,
    CorruptDataError,
    RoutingError,
    StoreUnavailableError,
    SupersededError,
    UnsupportedError,
)
from . import frames
from .frames import Answer, Hello, Status
from .serving import tune
from .spans import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .base import Wanted
    from .pool import Pool

_WINDOW: Final = 16 << 10  # bytes of requests without a reply; both kernels have room for them, so nobody waits
_WAKE: Final = 1 << 20  # bytes
_SILENCE: Final = 0.25  # s without that much, after which it is asked whether the producer lives, again and again
_NOTHING: Final = memoryview(b"")


def _wait_on() -> None:
    """Knows nothing of the producer."""


class Job(msgspec.Struct):
    """An object to fetch.

    Attributes:
        wanted: What is wanted.
        spans: The same as spans, one for each piece of the answer.
        nbytes: Their bytes.
        number: The request's number.
        request: The request's bytes.
        result: What came.
    """

    wanted: Wanted
    spans: tuple[tuple[int, int], ...]
    nbytes: int
    number: int
    request: bytes
    result: Blob | RoutingError | None = None


class Link:
    """An open connection. Only one thread uses it at a time; after any error it must be closed.

    Args:
        host: The producer's address.
        port: The producer's port.
        owner: The producer's id.
        secret: What both know; empty: nothing.
        pool: Where payloads are received.
        deadline: When to give up, in ``time.monotonic()``.
        silent: Called while the producer is silent; raises if that is no use any more.

    Raises:
        TimeoutError: the deadline passed.
        OSError: nobody listens, or the connection broke.
        StoreUnavailableError: somebody else listens there, or the producer has too many readers.
        ConfigError: one side has a secret that the other has not.
        UnsupportedError: the other side speaks another version.
    """

    def __init__(
        self,
        host: str,
        port: int,
        owner: str,
        secret: str,
        pool: Pool,
        deadline: float,
        silent: Callable[[], None] = _wait_on,
    ) -> None:
        self._pool = pool
        self._silent = silent
        self._where = f"{host}:{port}"
        self._head = memoryview(bytearray(frames.REPLY_BYTES))
        self._wake = 1
        self._peer = _connect(host, port, deadline)
        try:
            tune(self._peer)
            self._shake_hands(owner, secret, deadline)
        except BaseException:
            self._peer.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        self._peer.close()

    # --- beginning ----------------------------------------------------------------------------------------------

    def _shake_hands(self, owner: str, secret: str, deadline: float) -> None:
        hello = Hello(owner, bool(secret), os.urandom(frames.NONCE)).encode()
        self._send(hello, deadline)
        raw = self._exactly(frames.CHALLENGE_BYTES, deadline)
        try:
            challenge = frames.decode_challenge(raw)
        except CorruptDataError:
            raise StoreUnavailableError(f"what listens at {self._where} is no producer of routing") from None
        if challenge.answer == Answer.OTHER_VERSION or challenge.version != frames.VERSION:
            raise UnsupportedError(
                f"the producer at {self._where} speaks version {challenge.version} of the TCP protocol, "
                f"this side {frames.VERSION}",
                hint="install the same version of fastdeploy-routing-plugins on both sides",
            )
        answer = challenge.answer
        if answer == Answer.PROVE and secret:
            self._send(frames.prove(secret, b"reader", hello, raw), deadline)
            answer, proof = frames.decode_verdict(self._exactly(frames.VERDICT_BYTES, deadline))
            expected = frames.prove(secret, b"producer", hello, raw)
            if answer == Answer.WELCOME and not hmac.compare_digest(proof, expected):
                answer = Answer.WRONG_SECRET
        elif answer == Answer.WELCOME and secret:
            answer = Answer.HAS_NO_SECRET
        if answer != Answer.WELCOME:
            raise _refusal(answer, self._where)

    def _exactly(self, count: int, deadline: float) -> bytes:
        raw = bytearray(count)
        self._fill([memoryview(raw)], deadline)
        return bytes(raw)

    # --- fetching -----------------------------------------------------------------------------------------------

    def fetch(self, jobs: Sequence[Job], deadline: float) -> None:
        """Fetches objects; each job has its result as soon as it is there.

        Raises:
            TimeoutError: the deadline passed.
            OSError: the connection broke.
            StoreUnavailableError: the producer cannot serve now.
            CorruptDataError: what came is not what was asked for.
        """
        sent = waiting = 0
        ahead = False  # whether the next reply's head is there
        for index, job in enumerate(jobs):
            batch: list[bytes] = []
            if waiting <= _WINDOW // 2:
                while sent < len(jobs) and (not waiting or waiting + len(jobs[sent].request) <= _WINDOW):
                    batch.append(jobs[sent].request)
                    waiting += len(jobs[sent].request)
                    sent += 1
            if batch:
                self._send(b"".join(batch), deadline)
            if not ahead:
                self._fill([self._head], deadline)
            ahead = index + 1 < sent
            self._take(job, ahead, deadline)
            waiting -= len(job.request)

    def _take(self, job: Job, ahead: bool, deadline: float) -> None:
        """Receives what follows a reply's head, and the next head behind it."""
        reply = frames.decode_reply(self._head)
        place = job.wanted.place
        after = [self._head] if ahead else []
        if reply.number != job.number:
            raise CorruptDataError(f"the producer at {self._where} answers something else than was asked")
        if reply.status == Status.ERROR and reply.header_bytes <= frames.MAX_ERROR and reply.payload_bytes == 0:
            raw = bytearray(reply.header_bytes)
            self._fill([memoryview(raw), *after], deadline)
            err = frames.decode_error(raw)
            if not isinstance(err, (AbsentError, SupersededError)):
                raise err
            job.result = err.with_facts(name=job.wanted.name)
            return
        if (reply.status, reply.header_bytes, reply.payload_bytes) != (Status.OBJECT, place.header_bytes, job.nbytes):
            raise CorruptDataError(
                f"the producer at {self._where} sends {reply.payload_bytes} bytes of {job.wanted.name} instead of "
                f"{job.nbytes}",
                name=job.wanted.name,
            )
        header = bytearray(reply.header_bytes)
        memory = self._pool.take(job.nbytes) if job.nbytes else _NOTHING
        self._fill([memoryview(header), memory, *after], deadline)
        job.result = Blob(bytes(header), cut(memory, job.spans))

    # --- bytes --------------------------------------------------------------------------------------------------

    def _send(self, data: bytes, deadline: float) -> None:
        self._peer.settimeout(_left(deadline))
        self._peer.sendall(data)

    def _fill(self, buffers: list[memoryview], deadline: float) -> None:
        """Receives until all buffers are full."""
        buffers = [each for each in buffers if each.nbytes]
        missing = sum([each.nbytes for each in buffers])
        while missing:
            wake = min(missing, _WAKE)
            if wake != self._wake:
                self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)
                self._wake = wake
            self._peer.settimeout(min(_left(deadline), _SILENCE))
            try:
                got = self._peer.recvmsg_into(buffers)[0]
            except TimeoutError:
                _left(deadline)
                self._silent()
                continue
            if not got:
                raise ConnectionResetError("the producer closed the connection")
            missing -= got
            while buffers and got >= buffers[0].nbytes:
                got -= buffers.pop(0).nbytes
            if got:
                buffers[0] = buffers[0][got:]


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connects to the first of a host's addresses where somebody listens."""
    trouble: OSError = ConnectionRefusedError(f"{host} has no address")
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        peer = socket.socket(family, kind, protocol)
        try:
            peer.settimeout(_left(deadline))
            peer.connect(where)
        except OSError as err:
            peer.close()
            trouble = err
        except BaseException:
            peer.close()
            raise
        else:
            return peer
    raise trouble


def _left(deadline: float) -> float:
    """Returns the seconds until a deadline.

    Raises:
        TimeoutError: it has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _refusal(answer: int, where: str) -> RoutingError:
    """Returns why a producer turned this reader away."""
    if answer in (Answer.NEEDS_SECRET, Answer.HAS_NO_SECRET, Answer.WRONG_SECRET, Answer.PROVE):
        why = {
            Answer.HAS_NO_SECRET: "has no secret, but this side has one",
            Answer.WRONG_SECRET: "has another secret than this side",
        }.get(Answer(answer), "wants a secret, and this side has none")
        problem = f"the producer at {where} {why}"
        return ConfigError(problem, hint="set the same option secret on both sides", problems=(problem,))
    if answer == Answer.OTHER_OWNER:
        return StoreUnavailableError(f"another producer than the one that is meant listens at {where}")
    if answer == Answer.BUSY:
        return StoreUnavailableError(f"the producer at {where} has too many readers at the moment")
    return StoreUnavailableError(f"the producer at {where} does not welcome this reader (answer {answer})")
