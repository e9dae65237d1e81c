"""One Mooncake engine, and the work of submitting to it and looking how far it is.

What the engine does by itself is not used: its blocking reads spin on a whole core, and give up while bytes still
arrive. Here every transfer is a batch of its own, since a batch's state is that of its first item; it is looked at in
a loop that sleeps, and its memory stays held until it has ended, however long its reader has been gone.

At any time one thread does all of that work, for itself and for everybody else who waits: to hand each read to another
thread and back would cost more than a small read takes. Whoever has what it waited for hands the work on. What nobody
waits for any more is a thread's that lives for as long as there is such.

A first contact is another thread's business, see ``rdma_contact``: it holds the engine's only lock, and as long as it
does nothing new is submitted.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from ....trylock import TryLock
from . import rdma_env
from .rdma_work import Work

if TYPE_CHECKING:
    from .rdma_call import Call
    from .rdma_pool import Piece

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")

_SPIN: Final = 150e-6  # s for which is looked without sleeping after something happened
_COPIED: Final = 256 << 10  # bytes; over TCP, the engine has work with more, for which it needs the processor
PAUSE: Final = 40e-6  # s between looks after that
_LATE: Final = 1 / 16  # of the time that a transfer has taken; looking more often costs more than it brings
_LONG_PAUSE: Final = 400e-6  # s; the longest
_KEEPER_PAUSE: Final = 2e-3  # s between looks when nobody waits
_JOIN: Final = 2.0  # s
STUCK: Final = 1.0  # s; a first contact takes 1 to 40 ms


class Engine:
    """A Mooncake engine of this process. Methods may be called from several threads; not for forked children.

    Args:
        host: Address under which other hosts reach this one.
        protocol: ``rdma_env.RDMA`` or ``rdma_env.TCP``.
        device: RDMA devices to use, by name, parted by commas; empty: all.

    Raises:
        ImportError: see ``rdma_env.load``.
        OSError: it does not start.

    Attributes:
        name: What other engines call it, ``host:port``.
        protocol: See above.
    """

    def __init__(self, host: str, protocol: str, device: str) -> None:
        self._engine: Any = rdma_env.start(host, protocol, device)
        self.protocol = protocol
        shown = f"[{host}]" if ":" in host else host
        self.name = f"{shown}:{self._engine.get_rpc_port()}"
        self._gate = TryLock()  # held by whoever submits, or meets a producer
        self._gate_since = 0.0  # when a producer began to be met; 0: none is
        self._working = TryLock()  # held by whoever does the work
        self._work = Work(self._engine, self._gate, self._over)
        self._wanted: set[Call] = set()  # somebody waits for these
        self._lock = threading.Lock()
        self._keeper: threading.Thread | None = None
        self._closed = False
        self._left_alone = False
        _log.info(
            "Mooncake's engine %s (%s) listens on every interface of this host, and asks nobody who they are: its "
            "ports are for the job's own hosts only",
            self.name,
            protocol,
        )

    # --- memory ---------------------------------------------------------------------------------------------------

    def register(self, address: int, nbytes: int) -> None:
        """Lets the engine read and write memory of this process, for peers too.

        Raises:
            OSError: it refuses.
        """
        engine = self._engine
        if engine is None:
            raise OSError("Mooncake's engine has ended")
        result = engine.batch_register_memory([address], [nbytes])  # unlike register_memory, frees the GIL
        if result != 0:
            raise OSError(f"Mooncake's engine cannot register {nbytes} bytes of memory ({result})")

    def unregister(self, address: int) -> None:
        """Ends that."""
        engine = self._engine
        if engine is not None:
            engine.batch_unregister_memory([address])

    # --- reading --------------------------------------------------------------------------------------------------

    def start(self, call: Call) -> bool:
        """Takes a call to read; returns False if this engine takes nothing any more. ``finish`` must follow."""
        with self._lock:
            if self._closed:
                return False
            for transfer in call.transfers:
                transfer.call = call
                transfer.piece.hold()
            self._wanted.add(call)
            self._work.add(call)
        return True

    def finish(self, call: Call, until: float) -> bool:
        """Returns whether a call is over, as soon as it is, or at a time of ``time.monotonic()``."""
        try:
            while not call.over and (left := until - time.monotonic()) > 0:
                if not self._working.run(lambda: self._do(call, until)):
                    call.wait(left)
        finally:
            self._hand_on()
        return call.over

    def give_up(self, call: Call) -> None:
        """Says that nobody waits for a call any more. What is under way keeps its memory until it has ended."""
        call.given_up = True
        self._wanted.discard(call)
        if call.left:
            self._keep()

    @property
    def quarantined(self) -> int:
        """How many transfers nobody waits for any more are still under way."""
        return sum(len(call.flying) for call in self._unwanted())

    @property
    def quarantined_bytes(self) -> int:
        """How much receive memory those hold."""
        pieces = {transfer.piece for call in self._unwanted() for transfer in list(call.flying)}
        return sum(piece.nbytes for piece in pieces)

    def _unwanted(self) -> list[Call]:
        return [call for call in self._work.flying() if call not in self._wanted]

    def _over(self, call: Call) -> None:
        """Takes note that nothing more of a call is waited for."""
        self._wanted.discard(call)
        if call.left:
            self._keep()

    def _hand_on(self) -> None:
        """Wakes somebody who waits, to go on with the work."""
        for call in list(self._wanted):
            if not call.over:
                call.wake()
                return

    # --- the work -------------------------------------------------------------------------------------------------

    def _do(self, call: Call, until: float) -> None:
        """Does everybody's work until a call is over, or a time has come."""
        busy = time.perf_counter()
        spin = 0.0 if self.protocol == rdma_env.TCP and call.nbytes > _COPIED else _SPIN
        while True:
            moved = self._work.round()
            if call.over or time.monotonic() >= until:
                return
            now = time.perf_counter()
            if moved:
                busy = now
            elif now - busy > spin:
                time.sleep(min(max(PAUSE, (now - busy) * _LATE), _LONG_PAUSE))

    # --- what nobody waits for --------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Has somebody see to what nobody waits for."""
        with self._lock:
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._see_to_it, name="fd-routing-rdma", daemon=True)
                self._keeper.start()

    def _see_to_it(self) -> None:
        while not self._left_alone:
            self._working.run(self._work.round)
            self._hand_on()
            with self._lock:
                if not self._work.left:
                    self._keeper = None
                    if self._closed:
                        self._work.end()
                        self._engine = None  # takes half a second, and the interpreter with it
                    return
            time.sleep(_KEEPER_PAUSE)

    def retire(self) -> None:
        """Takes nothing new; the engine ends when nothing is under way any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._keep()

    def close(self, *, final: bool = False) -> None:
        """Lets down who waits, and ends as soon as nothing is under way; waits for that for two seconds at most.

        Args:
            final: Whether the interpreter ends: then the engine is left alone after that time, since a thread that is
                in it when the interpreter goes takes the process down.
        """
        self.retire()
        for call in list(self._wanted):
            call.given_up = True
            self._wanted.discard(call)
            call.end(failed=True)
        self._keep()
        keeper = self._keeper
        if keeper is not None:
            keeper.join(_JOIN)
        if final and self._engine is not None:
            self._left_alone = True
            self.leak()

    def leak(self) -> None:
        """Keeps the engine for ever: in a forked child, where none of its threads is, ending it would never return."""
        if self._engine is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))

    # --- the first contact, by a thread of its own ------------------------------------------------------------------

    @property
    def stuck(self) -> bool:
        """Whether a first contact has held up all others for longer than a healthy producer can."""
        since = self._gate_since
        return since > 0 and time.monotonic() - since > STUCK

    def meet(self, segment: str, piece: Piece, remote: int, nbytes: int) -> bool:
        """Reads from a producer that this engine does not know yet; returns whether that worked.

        Args:
            segment: The producer.
            piece: Where the bytes go.
            remote: Where they are.
            nbytes: How many.
        """
        engine = self._engine
        if engine is None:
            return False
        piece.hold()
        try:
            batches: list[int] = []

            def submit() -> None:
                self._gate_since = time.monotonic()
                try:
                    batches.append(engine.batch_transfer_async_read(segment, [piece.address], [remote], [nbytes]))
                finally:
                    self._gate_since = 0.0

            while not self._gate.run(submit):
                time.sleep(PAUSE)  # whoever submits is soon done
            batch = batches[0]
            if not batch:
                return False
            while not self._left_alone and (state := engine.transfer_check_status(batch)) not in (1, -1):
                time.sleep(_KEEPER_PAUSE)
            return not self._left_alone and bool(state == 1)
        finally:
            piece.drop()
