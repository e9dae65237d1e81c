"""Whom an engine has met.

The first transfer from a producer makes the engine ask it what it has, and while it waits for the answer, for up to a
minute, no other transfer of this process begins. So nobody is met who gave no sign of life lately, nor who does not
answer a probe, which holds up nobody; and only then, in a thread of its own, comes the first transfer. It reads the
first page of the producer's shelf, by which it is known for certain.

The probe is the engine's own, but sent from here: the engine's function waits for a minute and cannot be ended.

An engine never forgets what it was told of a name, and names can come back: ports are few, processes many. A name that
comes back with another owner needs a new engine.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Final

from ....arena.layout import FILE_HEAD, FILE_MAGIC, PAGE
from ....errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..place import OwnerInfo
    from .rdma_engine import Engine
    from .rdma_pool import ReceivePool

_PROBE: Final = 2.0  # s; a healthy producer answers within milliseconds
_REQUEST: Final = (
    struct.pack("<QB", 4, 3) + b"{}\n"
)  # length of what follows, kind "probe", JSON: Mooncake's handshake
_PATIENCE: Final = 10.0  # s for receive memory
_STEP: Final = 0.25  # s between looks whether the engine is stuck


class NewEngineError(Exception):
    """This engine is of no use any more for what was asked; another one is."""


class _Contact:
    """A first contact under way.

    Attributes:
        over: Set at its end.
        trouble: Why it failed; empty if it did not.
        talking: Whether it holds up others.
    """

    __slots__ = ("over", "talking", "trouble")

    def __init__(self) -> None:
        self.over = threading.Event()
        self.trouble = ""
        self.talking = False


class Contacts:
    """The producers that an engine knows. Methods may be called from several threads.

    Args:
        engine: The engine.
        pool: Where its reads arrive.
    """

    def __init__(self, engine: Engine, pool: ReceivePool) -> None:
        self._engine = engine
        self._pool = pool
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}  # whose each name was when this engine first heard of it
        self._met: set[str] = set()
        self._under_way: dict[str, _Contact] = {}

    def meet(self, segment: str, info: OwnerInfo, fresh: Callable[[], bool], deadline: float) -> None:
        """Returns when a producer can be read from.

        Args:
            segment: Its name in Mooncake.
            info: What it says about itself.
            fresh: Whether it gave a sign of life lately.
            deadline: When to give up, in ``time.monotonic()``.

        Raises:
            StoreUnavailableError: it does not answer, or somebody else answers in its place.
            NewEngineError: this engine cannot meet it.
        """
        if segment in self._met and self._names.get(segment) == info.owner:
            return
        with self._lock:
            if self._names.setdefault(segment, info.owner) != info.owner:
                raise NewEngineError
            contact = self._under_way.get(segment)
        if contact is None:
            contact = self._begin(segment, info, fresh)
        while not contact.over.wait(min(_STEP, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise StoreUnavailableError(f"{described(info)} does not answer", hint=_HINT)
            if self._engine.stuck and not contact.talking:
                raise NewEngineError
        if contact.trouble:
            raise StoreUnavailableError(f"{described(info)} {contact.trouble}", hint=_HINT)

    def _begin(self, segment: str, info: OwnerInfo, fresh: Callable[[], bool]) -> _Contact:
        if not fresh():
            raise StoreUnavailableError(f"{described(info)} gave no sign of life lately", hint=_HINT)
        with self._lock:
            contact = self._under_way.get(segment)
            if contact is not None:
                return contact
            contact = self._under_way[segment] = _Contact()
        thread = threading.Thread(
            target=self._make, args=(contact, segment, info), name="fd-routing-rdma-contact", daemon=True
        )
        thread.start()
        return contact

    def _make(self, contact: _Contact, segment: str, info: OwnerInfo) -> None:
        """Makes a first contact; in its own thread, for as long as it takes."""
        try:
            contact.trouble = "cannot be reached"
            contact.trouble = self._talk(contact, segment, info)
        finally:
            with self._lock:
                self._under_way.pop(segment, None)
                if not contact.trouble:
                    self._met.add(segment)
            contact.over.set()

    def _talk(self, contact: _Contact, segment: str, info: OwnerInfo) -> str:
        """Returns why a producer cannot be read from, if so."""
        try:
            answers(segment)
        except (OSError, ValueError, OverflowError) as err:  # the last two: the name is none
            return f"does not answer at {segment}: {err}"
        piece = self._pool.wait(PAGE, time.monotonic() + _PATIENCE)
        if piece is None:
            return "cannot be read from: no receive memory is free"
        try:
            contact.talking = True
            shelf = info.arenas[0]
            if not self._engine.meet(segment, piece, shelf.address, FILE_HEAD.size):
                return f"cannot be read from at {segment}"
            magic, _, _, key, *_ = FILE_HEAD.unpack_from(piece.data)
            if (magic, key) != (FILE_MAGIC, shelf.key):
                return f"is not who answers at {segment}"
            return ""
        finally:
            contact.talking = False
            piece.drop()

    def lost(self, segment: str) -> None:
        """Takes note that reading from a producer failed: it is asked again whether it lives before the next try."""
        with self._lock:
            self._met.discard(segment)


def answers(segment: str) -> None:
    """Returns if whoever listens under a segment's name answers a probe.

    Raises:
        OSError: it does not.
        ValueError: that is no name.
        OverflowError: that is no name.
    """
    host, _, port = segment.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _PROBE) as peer:
        peer.sendall(_REQUEST)
        if not peer.recv(1):
            raise ConnectionError("it hung up")


_HINT: Final = "a retry may succeed; the metadata service knows whether it is gone for good"


def described(info: OwnerInfo) -> str:
    """Returns a producer for messages."""
    return f"producer {info.producer or info.owner:.200} (process {info.pid} on {info.node:.200})"
