"""What a store worker, or a library in it, prints: ``Words``, kept in memory and passed on to the log."""

from __future__ import annotations

import fcntl
import logging
import os

_log = logging.getLogger("fastdeploy_routing_plugins.writer")
_MAX_BYTES = 1 << 20  # that are kept before older ones go
_MAX_LINES = 20


class Words:
    """The stdout and stderr of one worker after the other. Unlike a pipe, it never makes a worker wait.

    Attributes:
        fd: File descriptor for the worker's streams.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("fd-routing-worker-stderr", os.MFD_CLOEXEC)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)
        self._read = 0
        self._half_line = b""
        self._last: list[str] = []

    def pass_on(self, *, last: bool = False) -> None:
        """Logs what was printed since the last call, by whole lines; ``last``: no more will come."""
        size = os.fstat(self.fd).st_size
        text = os.pread(self.fd, size - self._read, self._read) if size > self._read else b""
        self._read = size
        *lines, self._half_line = (self._half_line + text).split(b"\n")
        if last and self._half_line:
            lines, self._half_line = [*lines, self._half_line], b""
        for line in [line.decode(errors="backslashreplace") for line in lines if line.strip()]:
            _log.warning("store worker: %s", line)
            self._last = [*self._last[1 - _MAX_LINES :], line]
        if size > _MAX_BYTES:
            os.ftruncate(self.fd, 0)
            self._read = 0

    def said(self) -> str:
        """Returns the last lines as the end of a sentence; empty if there are none."""
        return f"; its last words: {' | '.join(self._last[-3:])}" if self._last else ""

    def forget(self) -> None:
        """Another worker begins."""
        self._last = []

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.fd)
