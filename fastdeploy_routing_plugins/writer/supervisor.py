"""The worker process from the engine's side: started, listened to, replaced when it dies or stands still."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

from ..errors import RoutingError, StoreClosedError, WorkerError
from ..threads import begin
from .messages import (
    HUNG,
    Adopted,
    Channel,
    Done,
    Finish,
    Lingers,
    Message,
    Note,
    Ready,
    Released,
    Settled,
    Unable,
    rebuilt,
)
from .spawning import ended, spawn
from .words import Words

if TYPE_CHECKING:
    import subprocess

    from ..arena.arena import Arena
    from .ledger import Ledger
    from .limits import WriterLimits

_log = logging.getLogger("fastdeploy_routing_plugins.writer")
_LOOK = 0.05  # s between looks at the process when nothing is said
_PAUSES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)  # s before a worker is replaced, the more often in a row the longer
_STEADY = 10.0  # s after which a worker counts as sound again
_STILL = 60.0  # s beyond a call's limit without a sign of the worker's main loop


class Supervisor:
    """Keeps one store worker running over an arena.

    Args:
        arena: The engine's arena.
        ledger: Where the worker's outcomes go.
        limits: The writer's limits.
        cwd: What relative paths in the store's options start from, wherever the engine goes later.
    """

    def __init__(self, arena: Arena, ledger: Ledger, limits: WriterLimits, cwd: str) -> None:
        self._arena = arena
        self._ledger = ledger
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._words = Words()
        self._ready = threading.Event()
        self._refusal: RoutingError | None = None
        self._cwd = cwd
        self._settled = False
        self._works = False  # whether this worker ever opened the store
        self._gone_since = 0.0  # when the last one that did died
        self._failures_in_a_row = 0
        self._stopping = threading.Event()
        self.lingers = threading.Event()
        self._spawning = threading.Lock()
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._guard, name="fd-routing-supervisor", daemon=True)
        self.restarts = 0
        self.transport = ""
        self.adopted = 0

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Starts the worker and waits until its store is open.

        Raises:
            WorkerError: it cannot be started, or not in time.
            RoutingError: the store does not open.
        """
        try:
            self._spawn()
            begin(self._thread)
            self._ready.wait(self._limits.start_timeout)
        except BaseException:
            self.stop(0.0)
            raise
        if self._refusal is None and self.transport:
            return
        refusal = self._refusal or WorkerError(
            f"the store worker did not open the store within {self._limits.start_timeout} s{self._words.said()}",
            hint="start_timeout of the writer says how long it may take",
        )
        self.stop(0.0)
        raise refusal

    def _spawn(self) -> None:
        below = self._arena.restart_ring()
        arguments = [self._arena.file.path, str(below), "1" if self._settled else "0"]
        self._process, self._channel = spawn(self._arena.file.fd, arguments, self._words.fd, self._cwd)

    # --- watching -----------------------------------------------------------------------------------------------

    def _guard(self) -> None:
        """Watches; a fault of this package in here must not leave anybody waiting for ever."""
        self._ledger.listener = threading.get_ident()
        try:
            self._watch()
        except BaseException as err:  # noqa: BLE001 - a thread's last resort
            self._refusal = WorkerError(f"the writer's own thread failed: {type(err).__name__}: {err}")
            self._ready.set()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._ledger.fail_older(-1.0, self._refusal)
            self._ledger.abandon(self._refusal.message, code=WorkerError.code)
            with contextlib.suppress(Exception):
                _log.error("nothing is stored any more", exc_info=err)

    def _watch(self) -> None:
        began = time.monotonic()
        beats, beat_at = -1, began
        while True:
            channel, process = self._channel, self._process
            if channel is None or process is None:
                return
            self._listen(channel)
            self._words.pass_on()
            now = time.monotonic()
            if (count := self._arena.beats()) != beats:
                beats, beat_at = count, now
            still = now - beat_at > self._limits.call_timeout + _STILL and self._ready.is_set()
            if still:
                _log.error("the store worker (pid %d) stands still; it is replaced", process.pid)
                process.kill()
                beat_at = now
            if process.poll() is not None:
                self._listen(channel)  # its last words
                self._words.pass_on(last=True)
                channel.close()
                if self._stopping.is_set() or not self._replace(process, now - began):
                    return
                began = beat_at = time.monotonic()

    def _listen(self, channel: Channel) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed by ``leave``
            if channel.open:
                poller = select.poll()  # not select: an engine may have more than 1,024 descriptors
                poller.register(channel.socket.fileno(), select.POLLIN)
                poller.register(self._wake, select.POLLIN)
                poller.poll(_LOOK * 1000)
            else:
                time.sleep(_LOOK / 10)
        channel.send()
        try:
            for message in channel.receive():
                self._hear(message)
        except WorkerError as err:
            _log.error("%s", err)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Done):
            self._failures_in_a_row = 0
            self._ledger.settle(message.outcomes)
        elif isinstance(message, Released):
            self._ledger.give_back(message.sequences)
        elif isinstance(message, Ready):
            self.transport = message.transport
            self._works = True
            self._ready.set()
        elif isinstance(message, Unable):
            self._refusal = rebuilt(message.code, message.message, message.hint)
            if not self._ready.is_set():
                self._stopping.set()
                self._ready.set()
        elif isinstance(message, Lingers):
            self.lingers.set()
        elif isinstance(message, Settled):
            self._settled = True
        elif isinstance(message, Note):
            _log.log(message.level, "%s", message.text)
        elif isinstance(message, Adopted):
            self.adopted += message.stored
            if message.stored:
                _log.warning("stored %d operations that a dead run had left in its arena", message.stored)
            for what, why in message.failed:
                _log.error("left by a dead run and lost: %s: %s", what, why)

    def _replace(self, process: subprocess.Popen[bytes], lived: float) -> bool:
        """Starts another worker in the place of a dead one; False if the writer is closing."""
        if lived > _STEADY:
            self._failures_in_a_row = 0
        pause = _PAUSES[min(self._failures_in_a_row, len(_PAUSES) - 1)]
        self._failures_in_a_row += 1
        why = self._refusal or f"{ended(process.returncode)}{self._words.said()}"
        if not self._ready.is_set():
            self._refusal = WorkerError(f"the store worker did not start: {why}")
            self._ready.set()
            return False
        _log.error("the store worker (pid %d) ended: %s; it is replaced", process.pid, why)
        failed = "it failed; the store worker died before it could say more"
        if process.returncode == HUNG:
            failed = f"the store did not return within {self._limits.call_timeout} s; its worker was replaced"
        self._ledger.reconcile(self._arena.state, self._arena.code, failed)
        if self._works:
            self._works, self._gone_since = False, time.monotonic()
        while True:
            if time.monotonic() - self._gone_since > self._limits.retry_for + self._limits.call_timeout:
                # Worker after worker cannot even open the store. None of them looks at the blocks now.
                self._ledger.fail_older(0.0, self._refusal or WorkerError(f"there is no store worker: {why}"))
            if self._stopping.wait(pause):
                return False
            self._words.forget()
            try:
                with self._spawning:
                    if self._stopping.is_set():
                        return False
                    self._spawn()
            except WorkerError as err:
                _log.error("%s", err)
                pause = _PAUSES[-1]
                continue
            self.restarts += 1
            self._refusal = None
            return True

    # --- ending -------------------------------------------------------------------------------------------------

    def stop(self, timeout: float) -> bool:
        """Ends the worker: politely for ``timeout`` seconds, then not. Returns when it is gone, or serves alone.

        Returns:
            Whether it is gone.
        """
        with self._spawning:
            self._stopping.set()
        process, channel = self._process, self._channel
        if process is not None and channel is not None:
            channel.send(Finish())
            end = time.monotonic() + timeout
            while process.poll() is None and time.monotonic() < end:
                if self.lingers.wait(_LOOK / 10):
                    _log.info("the store worker (pid %d) serves readers alone", process.pid)
                    self.leave()
                    return False
            if process.returncode is None:
                process.kill()
                process.wait()
        self._close()
        return True

    def leave(self) -> None:
        """Lets the worker go on alone; it ends when everything is done."""
        with self._spawning:
            self._stopping.set()
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.socket.shutdown(socket.SHUT_RDWR)
        if process is not None:
            # Somebody has to take note of its end, or it stays in the process table.
            threading.Thread(target=process.wait, name="fd-routing-farewell", daemon=True).start()
        self._close()
        if channel is not None:
            channel.close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._woken, b"x")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2.0)
        if self._channel is not None:
            self._channel.close()
        if not self._thread.is_alive():
            self._words.close()
            os.close(self._wake)
            os.close(self._woken)

    def forget(self) -> None:
        """Closes the descriptors in a forked child: the worker must notice when the engine itself is gone."""
        if self._channel is not None:
            self._channel.close()

    def check(self) -> None:
        """Raises StoreClosedError once the worker is stopped."""
        if self._stopping.is_set():
            raise StoreClosedError("the writer is closed")
