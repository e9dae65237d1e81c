"""Processes that tests tell what to do; see ``agent``."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from typing import TYPE_CHECKING, Any

from .stage import PATIENCE

if TYPE_CHECKING:
    from .stage import Stage


class Remote:
    """An agent in another process; its verbs are called by name."""

    def __init__(self, stage: Stage, **environ: str) -> None:
        self._stage = stage
        self._connection, theirs = multiprocessing.Pipe()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        self.pid = stage.start(theirs.fileno(), self._words.fileno(), environ)
        self._code: int | None = None
        theirs.close()

    def __call__(self, verb: str, *args: Any, **options: Any) -> Any:
        self.tell(verb, *args, **options)
        return self.answer()

    def tell(self, verb: str, *args: Any, **options: Any) -> None:
        """Asks for something without waiting for it."""
        self._connection.send((verb, args, options))

    def answer(self) -> Any:
        """Waits for what was asked for."""
        assert self._connection.poll(PATIENCE), "the other process does not answer"
        worked, value = self._connection.recv()
        if not worked:
            raise value
        return value

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def words(self) -> str:
        """Returns what it has written to its error stream."""
        self._words.seek(0)
        return self._words.read().decode()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Returns its exit code."""
        if self._code is None:
            self._code = self._stage.wait(self.pid)
        return self._code

    def dismiss(self) -> None:
        """Has the process end."""
        self._connection.close()
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)

    def close(self) -> int:
        """Returns the exit code of a process that was dismissed."""
        try:
            return self.wait()
        finally:
            self._words.close()
