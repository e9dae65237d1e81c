"""Engine processes, as the scenarios hold them: started, told what to do, killed, and never left behind."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from settings import Settings
from trees import HERE, Tree

PATIENCE = 180.0  # s; generous: nothing is measured with it, it only ends what hangs


class EngineFault(AssertionError):
    """An engine did something else than it should."""


class Launcher:
    """A process with ``fastdeploy`` imported that makes one engine after the other, each in a child.

    Args:
        tree: The FastDeploy.
        method: ``"fork"`` or ``"spawn"``.
        environ: Its environment.
        folder: Where it runs, and where its output goes.
    """

    def __init__(self, tree: Tree, method: str, environ: dict[str, str], folder: Path) -> None:
        self.log = folder / f"{time.monotonic_ns()}.log"
        mine, theirs = os.pipe()
        command = [sys.executable, str(HERE / "engine.py"), tree.family, method, str(theirs)]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environ,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        os.close(theirs)
        self._answers = mine
        self._rest = b""

    def send(self, order: dict[str, Any]) -> None:
        """Sends an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Returns the next answer.

        Raises:
            EngineFault: There is none.
        """
        end = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise EngineFault(f"the engine did not answer for {PATIENCE:.0f} s\n{self.output()}")
                piece = os.read(self._answers, 1 << 16)
                if not piece:
                    raise EngineFault(f"the engine's launcher ended\n{self.output()}")
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def output(self, since: int = 0) -> str:
        """Returns what was printed, at most the last 4,000 characters."""
        return self.log.read_bytes()[since:].decode(errors="replace")[-4000:]

    def remove(self) -> None:
        """Ends every process that came of it, whatever state it is in."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        os.close(self._answers)


class Engine:
    """One engine.

    Args:
        launcher: What makes it.
        environ: Further variables.
    """

    def __init__(self, launcher: Launcher, environ: dict[str, str]) -> None:
        self._launcher = launcher
        self._since = launcher.log.stat().st_size
        launcher.send({"call": "begin", "environ": environ})
        self.pid: int = launcher.receive()["engine"]
        self.over = False

    def tell(self, call: str, **arguments: Any) -> None:
        """Sends an order without waiting for its end."""
        self._launcher.send({"call": call, **arguments})

    def answer(self) -> dict[str, Any]:
        """Returns the next answer."""
        answer = self._launcher.receive()
        self.over = self.over or "ended" in answer
        return answer

    def ask(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Sends an order and returns its answer; an error is an answer too."""
        self.tell(call, **arguments)
        return self.answer()

    def done(self) -> dict[str, Any]:
        """Returns the next answer.

        Raises:
            EngineFault: It is an error.
        """
        answer = self.answer()
        if "error" in answer or "ended" in answer:
            raise EngineFault(str(answer))
        return answer

    def do(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Sends an order that must succeed, and returns its answer."""
        self.tell(call, **arguments)
        return self.done()

    def start(self, settings: Settings) -> None:
        """Makes the engine in the process."""
        self.do("start", settings=settings.to_dict())

    def finish(self, requests: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Lets requests end."""
        return self.do("finish", requests=requests, **more)

    def end(self) -> None:
        """Lets the engine close and its process end by itself.

        Raises:
            EngineFault: It ended with a failure.
        """
        self.do("close")
        answer = self.ask("exit")
        if answer.get("ended") != 0:
            raise EngineFault(str(answer))

    def answer_to_nothing(self) -> dict[str, Any]:
        """Asks for anything; an engine that is dead answers how it ended."""
        return self.ask("look")

    def launched(self) -> str:
        """Returns the end of what the engine and its launcher printed."""
        return self._launcher.output()

    def output(self) -> str:
        """Returns the end of what the engine printed."""
        return self._launcher.output(self._since)
