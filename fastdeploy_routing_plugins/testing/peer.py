"""Another process that uses the same store: ``Peer``."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .samples import content

if TYPE_CHECKING:
    from types import TracebackType

    from ..resolver import ResolvedStore
    from .samples import Sample

_RUN = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
_CHILD = Path(__file__).with_name("child.py")
PATIENCE = 30.0  # s that one command may take


def clean_environ() -> dict[str, str]:
    """Returns this process's environment without what would change the store's configuration."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("FD_ROUTING_STORE_CONFIG", "FD_ROUTING_NAMESPACE")
    }


def script_command(script: Path) -> list[str]:
    """Returns the command line of a fresh interpreter that runs a file without putting its folder on the path."""
    return [sys.executable, "-c", _RUN, str(script)]


def fields(item: Sample) -> dict[str, Any]:
    """Returns an object's fields as a command carries them: for a payload that follows from the name, its size."""
    derived = item.payload == content(item.name, len(item.payload))
    return {
        "name": item.name,
        "header": base64.b64encode(item.header).decode(),
        "payload": len(item.payload) if derived else base64.b64encode(item.payload).decode(),
        "shape": list(item.shape),
        "dtype": item.dtype,
    }


class Peer:
    """A child process with the store open, for ``async with``.

    Args:
        resolved: The store, handed over as JSON as an engine does.
        cwd: Its working directory, or None for ours.
    """

    def __init__(self, resolved: ResolvedStore, *, cwd: Path | None = None) -> None:
        self._resolved = resolved
        self._cwd = cwd
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[str] | None = None

    async def __aenter__(self) -> Peer:
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see __aexit__
        self._process = subprocess.Popen(  # noqa: S603 - our own file, by our own interpreter
            script_command(_CHILD),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=self._cwd,
            env=clean_environ(),
        )
        try:
            await self._answer(self._resolved.to_json() + "\n")  # by a pipe: secrets are in it
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, stderr = self._process, self._stderr
        self._process = self._stderr = None
        if process is None or stderr is None or process.stdin is None or process.stdout is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            await asyncio.to_thread(process.wait, 0.0 if kind else 10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        stderr.close()

    async def ask(self, do: str, **command: Any) -> dict[str, Any]:
        """Sends a command and returns the answer: ``result`` and ``time``, or ``error`` and ``header``."""
        return await self._answer(json.dumps({"do": do, **command}) + "\n")

    async def result(self, do: str, **command: Any) -> Any:
        """Returns a command's result; fails the test if the store raised an error."""
        answer = await self.ask(do, **command)
        assert "error" not in answer, f"in another process, {do!r} failed with error {answer['error']!r}"
        return answer["result"]

    async def put(self, item: Sample, *, at: float = 0.0) -> dict[str, Any]:
        """Puts an object, at a moment of ``time.monotonic()`` if one is given."""
        answer = await self.ask("put", **fields(item), at=at)
        if answer.get("header") is not None:
            answer["header"] = base64.b64decode(answer["header"])
        return answer

    async def get(self, name: str) -> tuple[bytes, ...]:
        """Returns an object's header and payload."""
        return tuple(base64.b64decode(text) for text in await self.result("get", name=name))

    async def kill(self) -> None:
        """Kills the process as a crash or an operator would."""
        assert self._process is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait, PATIENCE)

    def start(self, do: str, **command: Any) -> None:
        """Sends a command whose answer nobody waits for."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **command}) + "\n")
        self._process.stdin.flush()

    async def _answer(self, line: str) -> dict[str, Any]:
        try:
            text = await asyncio.wait_for(asyncio.to_thread(self._exchange, line), PATIENCE)
        except asyncio.TimeoutError:
            await self.kill()  # also ends the thread that reads
            raise AssertionError(f"another process did not answer within {PATIENCE} s{self._said()}") from None
        assert text, f"another process that uses the store ended{self._said()}"
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _exchange(self, line: str) -> str:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; what it said is shown by the caller
            process.stdin.write(line)
            process.stdin.flush()
        return process.stdout.readline()

    def _said(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(0)
        said = self._stderr.read().strip()
        return f"; it said:\n{said[-4000:]}" if said else ""
