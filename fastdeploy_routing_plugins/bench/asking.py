"""The two processes as the command sees them: each is asked, and has to answer in time."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO

import msgspec

from fastdeploy_routing_plugins.bench.job import Answer, Ask, Job
from fastdeploy_routing_plugins.errors import StoreUnavailableError

_FAREWELL = 10.0  # s to close everything
# One thread each for libraries that would start one for each core: two processes share what may be two cores.
_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Asked:
    """A process of the benchmark.

    Args:
        job: What it is told.
        timeout: Seconds within which it has to answer.
    """

    def __init__(self, job: Job, timeout: float) -> None:
        self._name = "writing" if job.writing else "reading"
        self._timeout = timeout
        self._pending = b""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "fastdeploy_routing_plugins.bench.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **_THREADS},
        )
        self._send(msgspec.json.encode(job))

    def ask(self, verb: str, candidate: str = "", turn: int = 0, way: int = 0) -> Answer:
        """Has it do something.

        Raises:
            StoreUnavailableError: it died, or does not answer.
        """
        self._send(msgspec.json.encode(Ask(verb, candidate, turn, way)))
        until = time.monotonic() + self._timeout
        stdout = self._popen.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = until - time.monotonic()
                if left <= 0:
                    raise self._gone(f"did not answer within {self._timeout:g} s", f"{verb} of {candidate}")
                if selector.select(left):
                    chunk = os.read(stdout.fileno(), 1 << 16)
                    if not chunk:
                        raise self._gone("died", f"{verb} of {candidate}")
                    self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        return msgspec.json.decode(line, type=Answer)

    def _send(self, line: bytes) -> None:
        stdin = self._popen.stdin
        assert stdin is not None
        try:
            stdin.write(line + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._gone("died", "its start") from None

    def _gone(self, how: str, when: str) -> StoreUnavailableError:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        return StoreUnavailableError(f"the {self._name} process {how} in {when}{said}", hint="")

    def stop(self) -> None:
        """Ends the process and reaps it."""
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            self._popen.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._stderr.close()
