"""A client's way to the service: one socket for each thread that calls."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import zmq

from ....errors import StoreClosedError, StoreUnavailableError, UnsupportedError
from . import messages as m
from .curve import arm_client
from .framing import MAX_MESSAGE, Flag, Head, VersionError, decode_answer, encode_question
from .security import prove

if TYPE_CHECKING:
    from collections.abc import Callable

    from .whereabouts import Spot, Whereabouts

_AGAIN: Final = 0.5  # s
_SLOWEST: Final = 4.0  # s between the same question's repetitions
_ANEW: Final = 2  # times without an answer after which the connection is made anew: it may lead nowhere
_AFTER: Final = 0.25  # s that an answer may come after the time that the service was given for it
_GRAIN: Final = 50  # ms of timeouts: setting one costs more than asking
_LOOK: Final = 0.05  # s between looks where a service went
_RECONNECT, _RECONNECT_MAX = 50, 200  # ms between tries to connect


class EarlierError(Exception):
    """The service does not know the connection (any more); the question must be asked again."""


class Channel:
    """One connection. Not for several threads at once, but for one after the other.

    Args:
        context: Where the socket belongs.
        where: Knows where the service is when it does not answer.
        spot: Where it is.
        namespace: The encoded namespace.
        welcomed: Called with the epoch and the welcome whenever a service greeted.

    Attributes:
        unasked: Called with what the service says unasked; None: that is passed over.
        pause: Seconds of silence after which a question is asked again; twice as long each further time.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        where: Whereabouts,
        spot: Spot,
        namespace: str,
        welcomed: Callable[[int, m.Welcome], None],
    ) -> None:
        self.unasked: Callable[[Any], None] | None = None
        self.pause = _AGAIN
        self._context = context
        self._where = where
        self._namespace = namespace
        self._welcomed = welcomed
        self._token = os.urandom(16)
        self._number = 0
        self._greeted = False
        self._limit = 0  # the socket's timeout in ms
        self._silences = 0  # times in a row that no answer came
        self._busy = threading.Lock()
        self._closing = False
        self._pid = os.getpid()
        self._connect(spot)

    def _connect(self, spot: Spot) -> None:
        """Makes the socket, and begins to connect it."""
        self._spot = spot
        self._greeted = False
        self._limit = 0
        self._silences = 0
        sock: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        try:
            sock.linger = 0
            sock.setsockopt(zmq.RECONNECT_IVL, _RECONNECT)
            sock.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX)
            sock.setsockopt(zmq.CONNECT_TIMEOUT, 2000)
            sock.setsockopt(zmq.RCVHWM, 0)  # and no heartbeats: see listening.py
            sock.setsockopt(zmq.MAXMSGSIZE, 4 * MAX_MESSAGE)
            if "[" in spot.coord:
                sock.setsockopt(zmq.IPV6, 1)
            arm_client(sock, spot.keys)
            sock.connect(spot.coord)
        except BaseException:
            sock.close(0)
            raise
        self._socket = sock

    def __del__(self) -> None:
        sock = getattr(self, "_socket", None)
        if sock is not None and self._pid == os.getpid():
            sock.close(0)

    def close(self) -> None:
        """Closes the socket; if another thread uses it, that thread will."""
        self._closing = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._busy.acquire(blocking=False):
            self._socket.close(0)
            self._busy.release()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return bool(self._socket.closed)

    def greet(self, deadline: float) -> None:
        """Says hello unless that was done. Raises as ``ask``."""
        if not self._greeted:
            with _Using(self):
                self._hello(deadline)

    def new_number(self) -> int:
        """Returns the id of a new question. A question that is asked again keeps its own."""
        self._number += 1
        return self._number

    def ask(
        self, body: Any, number: int, deadline: float, *, patient: bool = False, until: float | None = None
    ) -> tuple[Head, Any]:
        """Asks a question and returns the answer.

        Args:
            body: The question.
            number: Its id, of ``new_number``.
            deadline: When to give up, in ``time.monotonic()``.
            patient: See ``Flag.PATIENT``.
            until: Until when the service may take its time, if it may; then it answers in any case.

        Raises:
            StoreUnavailableError: no answer came.
            StoreClosedError: the client was closed.
            UnsupportedError: the service refuses this client, or speaks another version.
            ConfigError: the keys cannot be used.
            EarlierError: the service was started again, or does not know this connection any more; the caller may ask
                again, with the same number.
        """
        with _Using(self):
            if not self._greeted:
                self._hello(deadline)
            head, answer = self._exchange(body, number, deadline, patient, until)
        if type(answer) is m.Refused:
            if answer.code == m.Refusal.GREET:
                self._greeted = False
                raise EarlierError
            if answer.code in (m.Refusal.SECRET, m.Refusal.NAMESPACE, m.Refusal.MALFORMED, m.Refusal.VERSION):
                raise UnsupportedError(f"the metadata service at {self._spot.coord} refuses: {answer.message}")
        return head, answer

    def _hello(self, deadline: float) -> None:
        proof = b""
        for _ in range(5):
            hello = m.Hello(self._namespace, self._token, proof, _who())
            head, answer = self._exchange(hello, self.new_number(), deadline, False, None)
            if type(answer) is m.Welcome:
                self._greeted = True
                self._welcomed(head.rest, answer)
                return
            if type(answer) is m.Prove:
                if not self._spot.secret:
                    break
                proof = prove(self._spot.secret, answer.nonce, self._namespace)
            elif type(answer) is m.Refused:
                if answer.code == m.Refusal.SECRET:
                    break
                raise UnsupportedError(f"the metadata service at {self._spot.coord} refuses: {answer.message}")
        if self._where.wanders and time.monotonic() < deadline:
            # The one that was here is gone, and somebody else's has its port: where is it now?
            time.sleep(_LOOK)
            self._socket.close(0)
            self._connect(self._where.silent())
            raise EarlierError
        raise UnsupportedError(
            f"the metadata service at {self._spot.coord} wants another secret",
            hint="set option secret as the service's",
        )

    # --- frames -------------------------------------------------------------------------------------------------

    def _exchange(
        self, body: Any, number: int, deadline: float, patient: bool, until: float | None
    ) -> tuple[Head, Any]:
        """Sends a question until its answer comes."""
        flags, pause = int(Flag.PATIENT) if patient else 0, self.pause
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise self._silent()
            patience = max(0.0, (until if until is not None else deadline) - now)
            try:
                self._socket.send(encode_question(body, number, int(patience * 1000), flags), zmq.NOBLOCK)
            except zmq.Again:
                raise self._silent() from None
            again = now + pause if until is None else max(until, now) + _AFTER
            found = self._receive(number, min(again, deadline))
            if found is not None:
                return found
            pause = min(2 * pause, _SLOWEST)
            self._silences += 1
            spot = self._where.silent()
            if spot != self._spot or self._silences >= _ANEW:
                self._socket.close(0)
                self._connect(spot)
                raise EarlierError

    def _receive(self, number: int, end: float) -> tuple[Head, Any] | None:
        """Returns the answer to a question; None if it does not come in time."""
        while True:
            left = int((end - time.monotonic()) * 1000) + 1
            if left <= 0:
                return None
            left = left if left < _GRAIN else -(-left // _GRAIN) * _GRAIN
            if left != self._limit:
                self._limit = left
                self._socket.setsockopt(zmq.RCVTIMEO, left)
            try:
                raw = self._socket.recv()
            except zmq.Again:
                return None
            self._silences = 0
            extra = 0
            while self._socket.getsockopt(zmq.RCVMORE):
                self._socket.recv()
                extra += 1
            if extra:
                continue
            try:
                head, answer = decode_answer(raw)
            except VersionError as err:
                raise UnsupportedError(
                    f"the metadata service at {self._spot.coord} speaks version {err.version} of the protocol",
                    hint="install the same version of fastdeploy-routing-plugins on both sides",
                ) from None
            if head.id == number:
                return head, answer
            if head.id == 0 and self.unasked is not None:
                self.unasked(answer)
                if number < 0:
                    return None

    def listen(self, end: float) -> None:
        """Takes in what comes unasked first, if anything does until then."""
        with _Using(self):
            self._receive(-1, end)

    def _silent(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the metadata service at {self._spot.coord} does not answer", hint=self._spot.hint
        )


class _Using:
    """Keeps others from closing a channel's socket; says what went wrong with it."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        self._channel._busy.acquire()

    def __exit__(self, kind: object, err: BaseException | None, trace: object) -> None:
        channel = self._channel
        try:
            if isinstance(err, zmq.ZMQError) and err.errno in (zmq.ETERM, zmq.ENOTSOCK, zmq.ENOTSUP):
                channel._socket.close(0)
                raise StoreClosedError("the store was closed") from None
        finally:
            channel._busy.release()
        if channel._closing:
            channel._close_if_idle()


def _who() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"[:200]
