"""The demo's two processes: starting, following and ending them. Nothing hangs, nobody else is signalled."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any

import msgspec

from fastdeploy_routing_plugins.demo.job import DemoJob, Event

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[str, int, int], None]

_POLL = 0.05
_GRACE = 1.0


class Process:
    """One process of the demo, its events and its end."""

    def __init__(self, name: str, job: DemoJob) -> None:
        self.name = name
        self.result: dict[str, Any] | None = None
        self.reached = "0 requests"
        self._error = ""
        self._pending = b""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        # One BLAS thread each: the matrices are small, and two processes share what may be two cores.
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with tempfile.TemporaryFile() as stdin:
            stdin.write(msgspec.json.encode(job))
            stdin.seek(0)
            self._popen = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", f"fastdeploy_routing_plugins.demo.{name}"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                pass_fds=(job.channel,),
                env={**os.environ, **threads},
            )
        assert self._popen.stdout is not None
        self.stdout = self._popen.stdout
        os.set_blocking(self.stdout.fileno(), False)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._popen.poll() is not None

    def read(self, progress: Progress) -> bool:
        """Handles the events that have arrived; returns whether more may come."""
        while True:
            try:
                chunk = os.read(self.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            for line in lines:
                self._handle(msgspec.json.decode(line, type=Event), progress)

    def _handle(self, event: Event, progress: Progress) -> None:
        if event.kind == "progress":
            self.reached = f"{event.done} of {event.total} requests"
            progress(self.name, event.done, event.total)
        elif event.kind == "error":
            self._error = event.message
        else:
            self.result = event.result

    def failure(self) -> str | None:
        """Returns why the process ended without a result, None if it has one."""
        code = self._popen.returncode
        if code == 0 and self.result is not None:
            return None
        how = (
            f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        )
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        why = self._error or (lines[-1] if lines else "it said nothing")
        return f"the {self.name} process {how} after {self.reached}: {why}"

    def stop(self) -> None:
        """Ends the process if it still runs, reaps it and closes its files."""
        if not self.ended:
            self._popen.terminate()
            try:
                self._popen.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        self._popen.wait()
        self.stdout.close()
        self._stderr.close()


def watch(processes: list[Process], deadline: float, progress: Progress) -> list[str]:
    """Follows the processes until both have ended, one has failed or time is up; returns what went wrong."""
    start = time.monotonic()
    running = list(processes)
    failures: list[str] = []
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.stdout, selectors.EVENT_READ, process)
        while running:
            if time.monotonic() >= deadline:
                reached = ", ".join(f"{process.name} did {process.reached}" for process in processes)
                return failures or [f"not finished after {deadline - start:.1f} s: {reached}"]
            for key, _ in selector.select(_POLL):
                if not key.data.read(progress):
                    selector.unregister(key.fileobj)
            for process in [each for each in running if each.ended]:
                running.remove(process)
                process.read(progress)
                failure = process.failure()
                if failure is not None:
                    failures.append(failure)
                    # The other one notices and says what it has, or is stopped by the caller.
                    deadline = min(deadline, time.monotonic() + _GRACE)
    return failures
