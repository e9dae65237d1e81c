"""A server that forks children; see ``helpers.Children``."""

from __future__ import annotations

import importlib
import os
import sys
import traceback


def serve(module_name: str) -> None:
    """Answers ``start FUNCTION ARGS…`` with a process id and ``wait PID`` with an exit code, until the input ends."""
    module = importlib.import_module(module_name)
    for line in sys.stdin:
        verb, *args = line.split()
        if verb == "start":
            pid = os.fork()
            if pid == 0:
                run_and_exit(getattr(module, args[0]), args[1:])
            print(pid, flush=True)
        else:
            _, status = os.waitpid(int(args[0]), 0)
            print(os.waitstatus_to_exitcode(status), flush=True)


def run_and_exit(function: object, args: list[str]) -> None:
    """Runs a child's function and ends the process with 0, or with 1 and a traceback."""
    code = 1
    try:
        os.close(0)
        assert callable(function)
        function(*args)
        code = 0
    except BaseException:  # noqa: BLE001 - a child ends here, whatever happened
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
