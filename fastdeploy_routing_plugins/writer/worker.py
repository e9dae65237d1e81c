"""The store worker: a process of its own that takes blocks from the arena and stores them.

Started by the supervisor as ``python -m fastdeploy_routing_plugins.writer.worker`` with descriptors of the arena and
of its control socket, the arena's path, and the two numbers of ``Worker``. It imports neither the engine nor its main
module. When the engine is gone it finishes what was published, removes the arena and ends; what it could not store
stays in the arena for the next start or ``fd-routing clean``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from ..arena.file import ArenaFile, start_time
from ..arena.layout import State
from ..arena.view import ArenaView
from ..errors import ArenaError, RoutingError, StoreUnavailableError, WorkerError
from ..resolver import ResolvedStore
from ..store.sync import SyncStore
from . import beginning, operations
from .dispatch import Dispatcher
from .executing import Executor
from .messages import (
    HUNG,
    Channel,
    Done,
    Finish,
    Lingers,
    Message,
    Note,
    NoteHandler,
    Outcome,
    Ready,
    Released,
    Settled,
    Unable,
    failed,
    short,
)
from .operations import Setup
from .relief import Relief
from .tasks import Retry, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..arena.layout import BlockHead

_POLL_FIRST, _POLL_LIMIT = 0.0002, 0.002  # s between looks at the ring: busy, and after a quiet second
_QUIET = 0.05  # s without work before the pauses grow
_BATCH = 32  # outcomes in one packet
_STALL = 1.0  # s after which this process was stopped, and the store's calls with it
_LINGERS = 0.05  # s after which a store that does not let go of this process has something that readers want
_LEFT_ALONE = 600.0  # s that a worker without an engine goes on at most


class Worker:
    """Everything between the arena and the store.

    Args:
        file: The arena, its lock shared with the engine.
        channel: To the engine.
        below: Blocks below this sequence are found by a scan, later ones in the ring.
        settled: Whether an earlier worker of this engine looked after dead runs already.
    """

    def __init__(self, file: ArenaFile, channel: Channel, below: int, settled: bool) -> None:
        self._view = ArenaView(file)
        self._channel = channel
        self._below = below
        self._settled = settled
        self._setup = Setup.decode(file.text)
        self._outbox: list[Outcome] = []
        self._released: list[int] = []
        self._over: set[int] = set()
        self._lock = threading.Lock()
        self._finish = False
        self._orphan_since: float | None = None
        self._held = False
        self._homes: list[SyncStore] = []  # what dead runs had left lives in these
        self._view.sign(os.getpid(), start_time(os.getpid()))

    def run(self) -> int:
        """Works until the engine says so or is gone and everything is done; returns the exit status."""
        try:
            resolved = ResolvedStore.from_json(self._setup.store)
            store = SyncStore(resolved, self._setup.schema())
            store.inherit()
        except RoutingError as err:
            self._say(Unable(err.code, short(err.message), short(err.hint)))
            self._say_the_rest(2.0)
            return 1
        executor = Executor(store, self._view, self._setup, resolved.producer, self._give_back)
        self._dispatcher = Dispatcher(self._setup.lanes, executor.run, self._ended)
        self._relief = Relief(store, self._view)
        self._say(Ready(f"shm -> {resolved.name}"))
        if not self._settled:
            # Once, before the first operation.
            for message in beginning.look_around(
                self._setup, store, self._view.file.path, self._adopting, self._homes
            ):
                self._say(message)
            self._say(Settled())
        left = self._view.scan(self._below, retained=True)
        self._do_suspects([block for block in left if self._view.starts(block)], executor)
        for block in left:
            if self._view.state(block) != State.DONE and block.sequence not in self._over:
                self._add(block)
        code = self._loop()
        if code == 0:
            self._linger((store, *self._homes))
            for each in (store, *self._homes):
                with contextlib.suppress(RoutingError):
                    each.close(5.0)
            self._dispatcher.stop()
            self._leave()
        self._say_the_rest(1.0)
        return code

    def _linger(self, stores: Sequence[SyncStore]) -> None:
        """Goes on as long as readers may want what lies with this process; tells the engine not to wait for that."""

        def body() -> None:
            for each in stores:
                with contextlib.suppress(RoutingError):
                    each.linger()

        lingering = threading.Thread(target=body, daemon=True)
        lingering.start()
        lingering.join(_LINGERS)
        if lingering.is_alive():
            self._say(Lingers())
            self._say_the_rest(1.0)
            lingering.join()

    # --- beginning ----------------------------------------------------------------------------------------------

    def _do_suspects(self, blocks: list[BlockHead], executor: Executor) -> None:
        """Does the blocks over which a worker died, one at a time, so that it is known which one is to blame."""
        # Only blocks that were being done have starts, so none of them waits for another one of its line.
        for block in blocks:
            task = self._task(block)
            if task is not None:
                while isinstance(answer := self._watched(executor, task), Retry):
                    self._view.beat()
                    time.sleep(answer.pause)
                self._end(answer, block)
            self._over.add(block.sequence)
            self._view.beat()
            self._tell()

    def _watched(self, executor: Executor, task: Task) -> Outcome | Retry:
        """Does a task in this thread, while another one looks at the clock."""
        return self._bounded(executor, task, [task])

    def _adopting(self, executor: Executor, task: Task) -> Outcome | Retry:
        """Does a task of a dead run's arena, of which this run's engine knows nothing."""
        return self._bounded(executor, task, [])

    def _bounded(self, executor: Executor, task: Task, mine: list[Task]) -> Outcome | Retry:
        over = threading.Event()

        def watch() -> None:
            if not over.wait(self._setup.call_timeout):
                self._give_up(mine)

        threading.Thread(target=watch, daemon=True).start()
        self._view.beat()
        try:
            return executor.run(task)
        finally:
            over.set()

    def _task(self, block: BlockHead) -> Task | None:
        try:
            again = self._view.state(block) == State.RETAINED
            return Task(block, operations.decode(block.meta), again)
        except ArenaError as err:
            self._end(failed(block.sequence, err), block)
            return None

    def _add(self, block: BlockHead) -> None:
        task = self._task(block)
        if task is not None:
            self._dispatcher.add(task)

    # --- working ------------------------------------------------------------------------------------------------

    def _loop(self) -> int:
        last = seen = awake = time.monotonic()
        pause = _POLL_FIRST
        while True:
            blocks = self._view.published()
            for block in blocks:
                self._add(block)
            while self._view.damaged:
                err = ArenaError("its place in shared memory was overwritten before the store worker came to it")
                self._end(failed(self._view.damaged.pop(), err))
            self._view.beat()
            if self._orphan_since is None:
                self._relief.look()
            told = self._tell()
            for message in self._channel.receive():
                self._finish = self._finish or isinstance(message, Finish)
            now = time.monotonic()
            if now - seen > _STALL:
                awake = now
            seen = now
            if not self._channel.open and self._orphan_since is None:
                self._orphan_since = now
                _silence()
                continue  # what it published last may have come after the look above
            if self._is_over(now, bool(blocks)):
                return 0
            limit = now - self._setup.call_timeout
            if awake < limit and (hung := [task for task, since in self._dispatcher.running() if since < limit]):
                self._give_up(hung)
            if blocks or told:
                last, pause = now, _POLL_FIRST
            elif now - last > _QUIET:
                pause = min(pause * 1.02, _POLL_LIMIT)
            time.sleep(pause)

    def _is_over(self, now: float, busy: bool) -> bool:
        if self._held:
            return not self._dispatcher.running()
        if busy or self._dispatcher.pending:
            return self._orphan_since is not None and now - self._orphan_since > _LEFT_ALONE
        return self._orphan_since is not None or (self._finish and self._channel.idle and not self._outbox)

    def _ended(self, task: Task, outcome: Outcome) -> None:
        """Called before anything that waits for the task begins."""
        if self._orphan_since is not None and outcome.code == StoreUnavailableError.code:
            # Nobody would hear of it, and what comes later must not pass it: the next start goes on from here.
            self._held = True
            self._dispatcher.stop()
        else:
            self._end(outcome, task.block)

    def _end(self, outcome: Outcome, block: BlockHead | None = None) -> None:
        if outcome.code and block is not None:
            self._view.fail(block, outcome.code)  # done again it would come after what came after it
        with self._lock:
            self._outbox.append(outcome)

    def _give_back(self, sequence: int) -> None:
        with self._lock:
            self._released.append(sequence)

    def _tell(self) -> bool:
        """Sends the engine what has ended since the last time."""
        with self._lock:
            outcomes, self._outbox = self._outbox, []
            released, self._released = self._released, []
        if not self._channel.open:
            return False
        messages: list[Message] = [Done(outcomes[at : at + _BATCH]) for at in range(0, len(outcomes), _BATCH)]
        if released:
            messages.append(Released(released))
        self._channel.send(*messages)
        return bool(messages)

    def _give_up(self, hung: list[Task]) -> None:
        """Reports calls that do not return, and ends the process: nothing else ends such a call for certain."""
        if not hung:
            text = f"the store did not return within {self._setup.call_timeout} s for what a dead run had left"
            self._say(Note(logging.WARNING, text))
        for task in hung:
            if self._orphan_since is None:
                # The engine learns of it by the mark, once this process is gone and looks at the block no more.
                self._view.fail(task.block, StoreUnavailableError.code)
        self._tell()
        self._say_the_rest(1.0)
        os._exit(HUNG)

    # --- ending -------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Removes the arena, unless something in it is still to be done; its engine may die before it does so."""
        if not self._view.scan(failed=True):
            self._view.file.remove()

    def _say(self, message: Message) -> None:
        self._channel.send(message)

    def _say_the_rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._channel.idle and time.monotonic() < end:
            self._channel.send()
            time.sleep(0.001)


def _silence() -> None:
    """Sends what libraries print nowhere: the engine's log is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine; what it handed over is still stored
    arena_fd, control_fd, path = int(arguments[0]), int(arguments[1]), arguments[2]
    below, settled = int(arguments[3]), arguments[4] == "1"
    channel = Channel(socket.socket(fileno=control_fd))
    logging.getLogger().addHandler(NoteHandler(channel))
    try:
        worker = Worker(ArenaFile(path, arena_fd), channel, below, settled)
    except RoutingError as err:
        channel.send(Unable(WorkerError.code, short(str(err)), ""))
        return 1
    return worker.run()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # threads that a store left behind must not keep the process
