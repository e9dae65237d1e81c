"""A client's way to the service: one socket for each thread that calls."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import zmq

from ....errors import ConfigError, StoreClosedError, StoreUnavailableError, UnsupportedError
from . import messages as m
from .framing import Flag, Head, VersionError, decode_answer, encode_question
from .lines import UnixLine, ZmqLine
from .security import prove

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lines import Line
    from .whereabouts import Spot, Whereabouts

T = TypeVar("T")

_AGAIN: Final = 0.5  # s
_SLOWEST: Final = 4.0  # s between the same question's repetitions
_ANEW: Final = 2  # times without an answer after which the connection is made anew: it may lead nowhere
_AFTER: Final = 0.25  # s that an answer may come after the time that the service was given for it
_LOOK: Final = 0.05  # s between looks where a service went


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
        self._useless = ""  # name of a unix socket that does not work
        self._silences = 0  # times in a row that no answer came
        self._busy = threading.Lock()
        self._closing = False
        self._pid = os.getpid()
        self._connect(spot)

    def _connect(self, spot: Spot) -> None:
        """Makes the connection, by ZeroMQ; the welcome may lead to a better one."""
        self._spot = spot
        self._greeted = False
        self._silences = 0
        self._line: Line = ZmqLine(self._context, spot)

    def __del__(self) -> None:
        line = getattr(self, "_line", None)
        if line is not None and self._pid == os.getpid():
            line.close()

    def close(self) -> None:
        """Closes the connection; if another thread uses it, that thread will, at once."""
        self._closing = True
        self._line.wake()
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._busy.acquire(blocking=False):
            self._line.close()
            self._busy.release()

    def leave_behind(self) -> None:
        """In a forked child: lets go of what is its parent's, without touching it."""
        self._line.leave_behind()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._line.closed

    def greet(self, deadline: float) -> None:
        """Says hello unless that was done. Raises as ``ask``."""
        if not self._greeted:
            self._alone(self._hello, deadline)

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
        head, answer = self._alone(self._greeted_exchange, body, number, deadline, patient, until)
        if type(answer) is m.Refused:
            if answer.code == m.Refusal.GREET:
                self._greeted = False
                raise EarlierError
            if answer.code in (m.Refusal.SECRET, m.Refusal.NAMESPACE, m.Refusal.MALFORMED, m.Refusal.VERSION):
                raise UnsupportedError(f"the metadata service at {self._spot.coord} refuses: {answer.message}")
        return head, answer

    def _alone(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function while others keep from closing the line; says what went wrong with that."""
        try:
            with self._busy:  # a lock of C: an exception of a signal's handler cannot leave it locked
                return function(*args)
        except zmq.ZMQError as err:
            if err.errno not in (zmq.ETERM, zmq.ENOTSOCK, zmq.ENOTSUP):
                raise
            self._closing = True
            raise StoreClosedError("the store was closed") from None
        finally:
            if self._closing:
                self._close_if_idle()

    def _greeted_exchange(
        self, body: Any, number: int, deadline: float, patient: bool, until: float | None
    ) -> tuple[Head, Any]:
        if not self._greeted:
            self._hello(deadline)
        return self._exchange(body, number, deadline, patient, until)

    def _hello(self, deadline: float) -> None:
        welcome = self._introduce(deadline)
        if welcome.unix and welcome.unix != self._useless and isinstance(self._line, ZmqLine):
            self._upgrade(welcome.unix, deadline)
        self._greeted = True

    def _upgrade(self, name: str, deadline: float) -> None:
        """Goes on by the service's unix socket, if it is on this host."""
        self._useless = name
        try:
            line = UnixLine(name)
        except OSError:
            return
        before, self._line = self._line, line
        before.close()
        if self._closing:
            line.wake()
        self._introduce(deadline)
        self._useless = ""

    def _introduce(self, deadline: float) -> m.Welcome:
        """Says hello, and who this is."""
        proof = b""
        for _ in range(5):
            hello = m.Hello(self._namespace, self._token, proof, _who())
            head, answer = self._exchange(hello, self.new_number(), deadline, False, None)
            if type(answer) is m.Welcome:
                self._welcomed(head.rest, answer)
                return answer
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
            raise self._anew(self._where.silent())
        wants = "another secret than this side's" if self._spot.secret else "a secret, and this side has none"
        problem = f"the metadata service at {self._spot.coord} wants {wants}"
        raise ConfigError(problem, hint="set option secret as the service's --secret", problems=(problem,))

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
            frame = encode_question(body, number, int(patience * 1000), flags)
            again = now + pause if until is None else max(until, now) + _AFTER
            try:
                if not self._line.send(frame, deadline):
                    raise self._silent()
                found = self._receive(number, min(again, deadline))
            except OSError:
                if self._closing:
                    raise StoreClosedError("the store was closed") from None
                raise self._anew(self._where.silent()) from None
            if found is not None:
                return found
            pause = min(2 * pause, _SLOWEST)
            self._silences += 1
            spot = self._where.silent()
            if spot != self._spot or self._silences >= _ANEW:
                raise self._anew(spot)

    def _anew(self, spot: Spot) -> EarlierError:
        """Connects anew; returns what to raise."""
        self._line.close()
        self._connect(spot)
        return EarlierError()

    def _receive(self, number: int, end: float) -> tuple[Head, Any] | None:
        """Returns the answer to a question; None if it does not come in time. Raises OSError if the line broke."""
        while True:
            raw = self._line.receive(end)
            if raw is None:
                return None
            self._silences = 0
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
        self._alone(self._hear, end)

    def _hear(self, end: float) -> None:
        try:
            self._receive(-1, end)
        except OSError:
            if not self._closing:
                self._anew(self._where.silent())

    def _silent(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the metadata service at {self._spot.coord} does not answer", hint=self._spot.hint
        )


def _who() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"[:200]
