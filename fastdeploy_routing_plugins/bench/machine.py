"""On what was measured: the machine and the versions of everything that has a part in it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_DISTRIBUTIONS = (
    "fastdeploy-routing-plugins",
    "numpy",
    "pyzmq",
    "xxhash",
    "paddlepaddle",
    "paddlepaddle-gpu",
    "p2pstore",
    "redis",
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
)


def describe(folder: Path) -> dict[str, str]:
    """Returns facts about the machine.

    Args:
        folder: Where files are written.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        "processor": f"{_processor()}, {cores} cores",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load before": f"{load} (1, 5, 15 minutes)",
        "files": f"{_file_system(folder)}",
    }


def versions() -> dict[str, str]:
    """Returns the versions of what is installed."""
    found = {"Python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    if server := shutil.which("redis-server"):
        with suppress(OSError, subprocess.SubprocessError, IndexError):
            said = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
            found["redis-server"] = said.stdout.split("v=", 1)[1].split()[0]
    return found


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """Returns the type of the file system that a folder is in."""
    best, kind = "", "unknown"
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, name, *_ = line.split()
            inside = os.path.commonpath([point, os.path.realpath(folder)]) == point
            if inside and len(point) >= len(best):
                best, kind = point, name
    return kind
