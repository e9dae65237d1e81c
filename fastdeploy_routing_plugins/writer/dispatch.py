"""Which operation goes next: ``Dispatcher``. Trajectories side by side, each in order; barriers alone."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from .tasks import Retry, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from .messages import Outcome

_BARRIER = object()


class Dispatcher:
    """Runs tasks in a few threads.

    Tasks of one line run one after the other, in the order in which they were added; a task without a line runs when
    everything before it has ended, and nothing after it begins before. A task that is to be tried again keeps its
    place; meanwhile its thread does something else.

    Args:
        lanes: Number of threads.
        run: Does a task.
        ended: Called with a task and its outcome, from the thread that did it.
    """

    def __init__(
        self, lanes: int, run: Callable[[Task], Outcome | Retry], ended: Callable[[Task, Outcome], None]
    ) -> None:
        self._run = run
        self._ended = ended
        self._changed = threading.Condition()
        self._lines: dict[object, deque[Task]] = {}
        self._ready: deque[object] = deque()
        self._delayed: list[tuple[float, int, object]] = []
        self._backlog: deque[Task] = deque()  # behind a barrier
        self._number = itertools.count()
        self._running: dict[int, tuple[Task, float]] = {}
        self._stopped = False
        self.pending = 0
        for lane in range(lanes):
            threading.Thread(target=self._work, args=(lane,), name=f"fd-routing-lane-{lane}", daemon=True).start()

    def add(self, task: Task) -> None:
        """Takes a task."""
        with self._changed:
            self.pending += 1
            if self._backlog or _BARRIER in self._lines:
                self._backlog.append(task)
            else:
                self._admit(task)

    def _admit(self, task: Task) -> None:
        """Lines a task up, or puts it into the backlog if it is a barrier that has to wait."""
        line: object = task.operation.line
        if line is None:
            if self._lines:
                self._backlog.append(task)
                return
            line = _BARRIER
        queue = self._lines.get(line)
        if queue is not None:
            queue.append(task)
            return
        self._lines[line] = deque([task])
        self._ready.append(line)
        self._changed.notify()

    def _advance(self) -> None:
        """Admits what waited behind a barrier, up to the next one."""
        while self._backlog and _BARRIER not in self._lines:
            if self._backlog[0].operation.line is None and self._lines:
                return
            self._admit(self._backlog.popleft())

    def running(self) -> list[tuple[Task, float]]:
        """Returns the tasks that are being done, and when each was begun (``time.monotonic()``)."""
        with self._changed:
            return list(self._running.values())

    def stop(self) -> None:
        """Lets the threads end after what they are doing."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _next(self) -> object | None:
        """Waits for a line that has something to do; None when stopped. Called with the lock held."""
        while not self._stopped:
            now = time.monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                self._ready.append(heapq.heappop(self._delayed)[2])
            if self._ready:
                return self._ready.popleft()
            self._changed.wait(self._delayed[0][0] - now if self._delayed else None)
        return None

    def _work(self, lane: int) -> None:
        while True:
            with self._changed:
                line = self._next()
                if line is None:
                    return
                task = self._lines[line][0]
                self._running[lane] = task, time.monotonic()
            answer = self._run(task)
            with self._changed:
                del self._running[lane]
                if isinstance(answer, Retry):
                    heapq.heappush(self._delayed, (time.monotonic() + answer.pause, next(self._number), line))
                    self._changed.notify()
                    continue
            self._ended(task, answer)
            with self._changed:
                self.pending -= 1
                queue = self._lines[line]
                queue.popleft()
                if queue:
                    self._ready.append(line)
                    self._changed.notify()
                else:
                    del self._lines[line]
                    self._advance()
