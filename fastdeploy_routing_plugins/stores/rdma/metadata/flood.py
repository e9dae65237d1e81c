"""Whether questions come faster than they are answered: what waits to be read makes the process grow."""

from __future__ import annotations

import os


class Flood:
    """Looked at now and then, by one thread.

    Args:
        limit: Bytes that the process may grow by while there always is more to read.

    Attributes:
        rises: Whether it grew by more.
    """

    def __init__(self, limit: int) -> None:
        self.rises = False
        self._limit = limit
        self._behind = False  # whether there always was more to read since the last look
        self._calm = memory()  # of the process, when everything had been read

    def drained(self) -> None:
        """Takes note that everything was read."""
        self._behind = False

    def look(self) -> None:
        """Looks how large the process is."""
        now = memory()
        if not self._behind:
            self._calm = now
        self.rises = now - self._calm > self._limit
        self._behind = True

    def over(self) -> None:
        """Takes note that what waited was thrown away."""
        self.rises = False
        self._calm = memory()


def memory() -> int:
    """Returns the bytes of memory that this process has; 0 if it is not said."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
