"""A TCP proxy that does what networks do: delays, stalls, silence, resets, partitions, and a service that moves.

``with Chaos((host, port)) as proxy:`` listens on a free port of 127.0.0.1 (``proxy.address``, ``proxy.port``) and
passes connections on. What happens to them, those that are open and those that come, may be changed at any time::

    proxy.flow()               nothing (the beginning)
    proxy.delay(0.05)          every piece arrives so many seconds later
    proxy.stall()              nothing arrives any more; what was sent arrives after ``flow``
    proxy.stall_after(bytes)   the same, once so many more bytes of answers have passed
    proxy.partition(30)        the same for so many seconds, then ``flow`` by itself
    proxy.half_open()          connections die and neither side knows: what is sent is lost, and nobody hangs up;
                               after ``flow`` new ones live, but these stay dead
    proxy.reset()              open connections are reset; new ones are passed on
    proxy.reset_after(bytes)   the same, once so many more bytes of answers have passed
    proxy.refuse()             nobody listens, and open connections are reset; until ``listen``
    proxy.move((host, port))   new connections go elsewhere
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field

_PIECE = 64 << 10
_QUEUE = 1 << 20  # bytes on their way in one direction; then the sender has to wait, as in a network
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


@dataclass(eq=False)
class _Way:
    """One direction of a connection."""

    source: socket.socket
    target: socket.socket
    answers: bool
    pieces: deque[tuple[float, bytes]] = field(default_factory=deque)
    nbytes: int = 0
    ended: bool = False  # the source sends no more
    closed: bool = False  # and the target knows
    lost: bool = False  # nothing of it arrives any more


class Chaos:
    """The proxy. All methods may be called from any thread.

    Args:
        target: Host and port to pass connections on to.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        accepted: How many connections it took.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._lock = threading.RLock()
        self._pairs: list[tuple[_Way, _Way]] = []
        self._mode = "flow"
        self._seconds = 0.0
        self._heal = 0.0
        self._budget: tuple[str, int] | None = None
        self._stop = False
        self.accepted = 0
        self._listener: socket.socket | None = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._waker, self._wakes = os.pipe()
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._stop = True
            self._wake()
        self._thread.join(10)
        with self._lock:
            self._reset_all()
            if self._listener is not None:
                self._listener.close()
            os.close(self._waker)
            os.close(self._wakes)

    # --- modes --------------------------------------------------------------------------------------------------

    def flow(self) -> None:
        self._become("flow")

    def delay(self, seconds: float) -> None:
        self._become("flow", seconds=seconds)

    def stall(self) -> None:
        self._become("stall")

    def stall_after(self, nbytes: int) -> None:
        self._become("flow", budget=("stall", nbytes))

    def partition(self, seconds: float) -> None:
        self._become("stall", heal=time.monotonic() + seconds)

    def half_open(self) -> None:
        with self._lock:
            for pair in self._pairs:
                for way in pair:
                    way.lost = True
            self._become("lose")

    def reset(self) -> None:
        with self._lock:
            self._reset_all()
            self._become("flow")

    def reset_after(self, nbytes: int) -> None:
        self._become("flow", budget=("reset", nbytes))

    def refuse(self) -> None:
        with self._lock:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            self._reset_all()
            self._wake()

    def listen(self) -> None:
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port))
            self._wake()

    def move(self, target: tuple[str, int]) -> None:
        with self._lock:
            self._target = target

    def _become(
        self, mode: str, *, seconds: float = 0.0, heal: float = 0.0, budget: tuple[str, int] | None = None
    ) -> None:
        with self._lock:
            self._mode, self._seconds, self._heal, self._budget = mode, seconds, heal, budget
            self._wake()

    def _wake(self) -> None:
        os.write(self._wakes, b"x")

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            while True:
                with self._lock:
                    if self._stop:
                        return
                    self._watch(selector)
                    timeout = self._next_event()
                ready = selector.select(timeout)
                with self._lock:
                    for key, events in ready:
                        self._handle(key.data, events)
                    self._deliver()

    def _watch(self, selector: selectors.BaseSelector) -> None:
        """Waits for what could be done now."""
        wanted: dict[object, tuple[int, object]] = {self._waker: (selectors.EVENT_READ, "wake")}
        if self._mode == "stall" and self._heal and time.monotonic() >= self._heal:
            self._mode, self._heal = "flow", 0.0
        if self._mode != "stall" and self._listener is not None:
            wanted[self._listener] = (selectors.EVENT_READ, "accept")
        for pair in self._pairs:
            for way in pair:
                if not way.ended and way.nbytes < _QUEUE and self._mode != "stall":
                    events, _ = wanted.get(way.source, (0, None))
                    wanted[way.source] = (events | selectors.EVENT_READ, pair)
                if self._due(way):
                    events, _ = wanted.get(way.target, (0, None))
                    wanted[way.target] = (events | selectors.EVENT_WRITE, pair)
        for key in list(selector.get_map().values()):
            selector.unregister(key.fileobj)
        for what, (events, data) in wanted.items():
            selector.register(what, events, data)  # type: ignore[arg-type]

    def _due(self, way: _Way) -> bool:
        return bool(way.pieces) and not way.lost and self._mode == "flow" and way.pieces[0][0] <= time.monotonic()

    def _next_event(self) -> float | None:
        ways = [way for pair in self._pairs for way in pair if way.pieces and not way.lost and self._mode == "flow"]
        times = [way.pieces[0][0] for way in ways]
        times += [self._heal] if self._heal else []
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _handle(self, what: object, events: int) -> None:
        if what == "wake":
            os.read(self._waker, 4096)
        elif what == "accept":
            self._accept()
        elif what in self._pairs and events & selectors.EVENT_READ:
            assert isinstance(what, tuple)
            self._take(what)

    def _accept(self) -> None:
        if self._listener is None:
            return
        reader, _ = self._listener.accept()
        self.accepted += 1
        try:
            service = socket.create_connection(self._target, 5)
        except OSError:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            reader.close()
            return
        for each in (reader, service):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lost = self._mode == "lose"
        self._pairs.append((_Way(reader, service, False, lost=lost), _Way(service, reader, True, lost=lost)))

    def _take(self, pair: tuple[_Way, _Way]) -> None:
        for way in pair:
            if way.ended or way.nbytes >= _QUEUE:
                continue
            try:
                data = way.source.recv(_PIECE)
            except BlockingIOError:
                continue
            except OSError:
                self._drop(pair)
                return
            if not data:
                way.ended = True
            elif not way.lost:
                way.pieces.append((time.monotonic() + self._seconds, data))
                way.nbytes += len(data)

    def _deliver(self) -> None:
        for pair in list(self._pairs):
            for way in pair:
                while pair in self._pairs and self._due(way) and self._push(pair, way):
                    pass
                if (
                    pair in self._pairs
                    and self._mode == "flow"
                    and way.ended
                    and not (way.pieces or way.closed or way.lost)
                ):
                    way.closed = True
                    with contextlib.suppress(OSError):
                        way.target.shutdown(socket.SHUT_WR)
            if pair in self._pairs and all(way.closed for way in pair):
                self._drop(pair, reset=False)

    def _push(self, pair: tuple[_Way, _Way], way: _Way) -> bool:
        """Passes one piece on; False if the target takes no more."""
        at, data = way.pieces.popleft()
        way.nbytes -= len(data)
        action, left = self._budget or ("", len(data))
        allowed = data[: max(0, left)] if way.answers else data
        try:
            sent = way.target.send(allowed) if allowed else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(pair)
            return False
        if sent < len(data):
            way.pieces.appendleft((at, data[sent:]))
            way.nbytes += len(data) - sent
        if self._budget is not None and way.answers:
            self._budget = (action, left - sent)
            if left - sent <= 0:
                self._budget = None
                if action == "reset":
                    self._reset_all()
                else:
                    self._mode = action
                return False
        return sent == len(data)

    def _reset_all(self) -> None:
        for pair in list(self._pairs):
            self._drop(pair)

    def _drop(self, pair: tuple[_Way, _Way], *, reset: bool = True) -> None:
        self._pairs.remove(pair)
        for way in pair:
            if reset:
                with contextlib.suppress(OSError):
                    way.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            way.source.close()
