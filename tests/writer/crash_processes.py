"""Engines that a case starts, their workers, and how both are killed, stopped and waited for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from .crash_engine import Plan, run

WORKER = b"fastdeploy_routing_plugins.writer.worker"
_DROP_FROM_BOUNDING_SET, _OVERRIDE_MODES = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE


def roomy() -> str | None:
    """Returns a folder in memory with room for a store and an arena; None, the usual place, where there is none."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return "/dev/shm" if room.f_bavail * room.f_frsize > 1 << 30 else None


def start(plan: Plan) -> int:
    """Forks an engine; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        words = os.open(plan.diary.with_suffix(".stderr"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(words, 2)
        os.setsid()
        if os.geteuid() == 0:  # the worker is to be stopped by modes, as other users are
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.prctl(_DROP_FROM_BOUNDING_SET, _OVERRIDE_MODES, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "a capability cannot be dropped")
        run(plan)
        code = 0
    except BaseException:  # noqa: BLE001 - a child ends here, whatever happened
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def workers(folder: Path) -> list[int]:
    """Returns the living workers of the arenas in a folder, and stopped ones too."""
    found = []
    mark = os.fsencode(folder)
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                command = Path("/proc", name, "cmdline").read_bytes()
                if WORKER in command and mark in command:
                    found.append(int(name))
    return found


def send(pids: list[int], number: int) -> None:
    """Sends a signal to processes that may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait(pid: int, seconds: float) -> int | None:
    """Returns how a child ended, or None after killing it because it did not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits for something; returns whether it came about."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.003)
    return True
