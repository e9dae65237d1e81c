"""FastDeploy's way of handing routing over, in miniature: what runs for each put there, and nothing else.

As in its ``routing_indices_cache.py`` (branches ``2.4`` to ``develop``): a task with the array goes through
``multiprocessing.Manager().Queue()`` to a store process. That process takes tasks in its main thread; one of five
threads passes each on to the one event loop, whose coroutine calls ``paddle.save`` and holds the loop up meanwhile. A
callback reports ``task_done`` to the queue. Left out, in its favour: the conversion of a device tensor, padding to the
longest possible sequence, logging, and clearing the store at the start.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
from _peer import SPAWN, Array, routing

_THREADS = 5
_ROOM = 1000 * 45 * 64  # tasks; FastDeploy's bound for 64 sequences and 45 layers
_POLL = 0.0005  # s between a reader's looks for a file
_PATIENCE = 60.0  # s
_NOT_YET = (OSError, EOFError, ValueError, RuntimeError, UnpicklingError)  # what paddle.load says to half a file


def load_paddle() -> Any:
    """Imports Paddle for the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle
    paddle.set_device("cpu")
    return paddle


def file_of(folder: Path, key: str) -> Path:
    """Returns where a rollout lies."""
    return folder / key / f"{key}.pdtensor"


class Miniature:
    """The engine's end.

    Args:
        folder: The store's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._manager = SPAWN.Manager()
        self._queue = self._manager.Queue(maxsize=_ROOM)
        self._process = SPAWN.Process(target=_store_process, args=(self._queue, folder), daemon=True)
        self._process.start()
        self._queue.join()

    def put(self, key: str, array: Array) -> None:
        """Hands a rollout over."""
        self._queue.put_nowait({"task_type": "put", "key": key, "data": array})

    def drained(self) -> None:
        """Waits until all tasks were passed on."""
        self._queue.join()

    def close(self) -> None:
        """Ends both processes."""
        self._queue.put_nowait(None)
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._manager.shutdown()


def _store_process(queue: Any, folder: Path) -> None:
    paddle = load_paddle()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def save(key: str, array: Array) -> None:
        paddle.save(array, str(file_of(folder, key)))

    def process(task: dict[str, Any]) -> None:
        asyncio.run_coroutine_threadsafe(save(task["key"], task["data"]), loop)

    with ThreadPoolExecutor(max_workers=_THREADS) as executor:
        while (task := queue.get()) is not None:
            executor.submit(process, task).add_done_callback(lambda future: queue.task_done())
    loop.call_soon_threadsafe(loop.stop)


class PaddleReader:
    """The trainer's end: looks for a file until it can load it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paddle = load_paddle()

    def wait(self, key: str, tokens: int, variant: int) -> tuple[int, bool]:
        """Waits for a rollout; returns when it was loaded (``CLOCK_MONOTONIC``), and whether it is the original."""
        path = file_of(self._folder, key)
        tensor = self._load(path)
        over = time.monotonic_ns()
        return over, bool(np.array_equal(tensor.numpy(), routing(tokens, variant)))

    def remove(self, key: str) -> bool:
        """Deletes a rollout that was waited for."""
        path = file_of(self._folder, key)
        path.unlink()
        path.parent.rmdir()
        return True

    def _load(self, path: Path) -> Any:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if os.path.exists(path):
                try:
                    return self._paddle.load(str(path))
                except _NOT_YET:
                    continue
            time.sleep(_POLL)
        raise SystemExit(f"{path} was not written within {_PATIENCE:.0f} s")
