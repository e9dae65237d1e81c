"""What engine and worker say to each other over their socket, and the socket: one message a packet, never blocking."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import RoutingError, WorkerError

if TYPE_CHECKING:
    import socket

MAX_PACKET: Final = 1 << 17
HUNG: Final = 75  # exit status of a worker after a call of the store that did not return
_MAX_TEXT = 2000  # bytes


class Outcome(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How an operation ended.

    Attributes:
        sequence: Of its block.
        code: Empty, or the code of the error that it failed with.
        message: The error's message.
        hint: The error's hint.
        duplicate: Whether the same part was stored already.
        retained: Whether the backend keeps the payload in place; ``Released`` follows.
        count: How many rollouts a delete deleted.
        seconds: How long the store took.
    """

    sequence: int
    code: str = ""
    message: str = ""
    hint: str = ""
    duplicate: bool = False
    retained: bool = False
    count: int = 0
    seconds: float = 0.0


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """Operations that ended."""

    outcomes: list[Outcome]


class Released(msgspec.Struct, frozen=True, array_like=True, tag="released"):
    """Payloads that the backend keeps no longer."""

    sequences: list[int]


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The store is open and the worker works. ``transport``: how the payload travels, as the backend tells."""

    transport: str


class Unable(msgspec.Struct, frozen=True, array_like=True, tag="unable"):
    """The store does not open."""

    code: str
    message: str
    hint: str


class Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    """Something for the log. ``level`` is a level of ``logging``."""

    level: int
    text: str


class Adopted(msgspec.Struct, frozen=True, array_like=True, tag="adopted"):
    """What became of an arena whose engine and worker had both died."""

    stored: int
    failed: list[tuple[str, str]]


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="settled"):
    """Dead runs' arenas have been looked after; a later worker need not do it again."""


class Lingers(msgspec.Struct, frozen=True, array_like=True, tag="lingers"):
    """Everything is done, but readers may still want what lies with this worker: it goes on serving them alone."""


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """Nothing follows: close the store and end."""


Message = Done | Released | Ready | Unable | Note | Adopted | Settled | Lingers | Finish

_encode = msgspec.msgpack.encode
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def short(text: str) -> str:
    """Returns a text that fits into a packet with others."""
    raw = text.encode("utf-8", "backslashreplace")
    return raw.decode() if len(raw) <= _MAX_TEXT else raw[:_MAX_TEXT].decode(errors="ignore") + " …"


def failed(sequence: int, err: RoutingError, seconds: float = 0.0, *, retained: bool = False) -> Outcome:
    """Returns the outcome of an operation that failed with a typed error."""
    message, hint = short(err.message), short(err.hint)
    return Outcome(sequence=sequence, code=err.code, message=message, hint=hint, seconds=seconds, retained=retained)


def rebuilt(code: str, message: str, hint: str) -> RoutingError:
    """Returns the typed error that a code stands for."""
    pending: list[type[RoutingError]] = [RoutingError]
    while pending:
        cls = pending.pop()
        if cls.code == code:
            return cls(message, hint=hint)
        pending += cls.__subclasses__()
    return WorkerError(f"{code}: {message}", hint=hint)


class Channel:
    """One end of the socket. Sending never blocks: what the other end does not take yet is kept, in order.

    Args:
        sock: A connected SOCK_SEQPACKET socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.setblocking(False)
        self._unsent: deque[bytes] = deque()
        self._sending = threading.Lock()
        self.open = True

    def send(self, *messages: Message) -> None:
        """Sends what can be sent now; call it again, also without messages, to send the rest."""
        with self._sending:
            self._unsent += [_encode(message) for message in messages]
            while self._unsent and self.open:
                try:
                    self.socket.send(self._unsent[0])
                except BlockingIOError:
                    return
                except OSError:  # the other process is gone
                    self.open = False
                else:
                    self._unsent.popleft()

    def receive(self) -> list[Message]:
        """Returns the messages that are there. Afterwards ``open`` tells whether the other process lives."""
        found: list[Message] = []
        while self.open:
            try:
                packet = self.socket.recv(MAX_PACKET)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                self.open = False
                break
            try:
                found.append(_decoder.decode(packet))
            except (msgspec.DecodeError, ValueError) as err:
                raise WorkerError(f"the store worker speaks another language: {err}") from err
        return found

    @property
    def idle(self) -> bool:
        """Whether everything was sent, or nobody is there to take it."""
        return not self._unsent or not self.open

    def close(self) -> None:
        """Closes this end."""
        self.open = False
        self.socket.close()


class NoteHandler(logging.Handler):
    """Sends warnings and errors of the worker's loggers to the engine's log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(logging.WARNING)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one record."""
        try:
            self._channel.send(Note(record.levelno, short(f"{record.name}: {self.format(record)}")))
        except Exception:  # noqa: BLE001 - logging must not hurt what is logged
            self.handleError(record)
