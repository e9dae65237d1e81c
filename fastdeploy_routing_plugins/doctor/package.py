"""Python, this package, and what it needs."""

from __future__ import annotations

import importlib
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.doctor.case import OURS
from fastdeploy_routing_plugins.doctor.lines import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.doctor.case import Case

_OLDEST = (3, 10)
# Where a distribution's module has another name.
_MODULES = {"pyzmq": "zmq", "importlib-metadata": "importlib_metadata", "inotify-simple": "inotify_simple"}
_NEED = re.compile(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?")


def check_python(case: Case) -> Iterator[Line]:
    """Looks at the interpreter."""
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()}, {sys.executable}"
    if sys.version_info < _OLDEST:
        yield Line("python", "bad", text, "use Python 3.10 or later")
    elif sys.platform != "linux":
        yield Line("python", "warn", text, "this package is made for Linux")
    else:
        yield Line("python", "good", text)


def check_package(case: Case) -> Iterator[Line]:
    """Looks at this package, and at what it needs."""
    try:
        found = distribution(OURS)
    except PackageNotFoundError:
        cure = "pip install fastdeploy-routing-plugins, or pip install -e . in its source"
        yield Line("package", "bad", f"{OURS} is not installed, so no store can be found", cure)
        return
    where = importlib.import_module("fastdeploy_routing_plugins").__path__[0]
    yield Line("package", "good", f"{OURS} {found.version}, {where}")
    there = []
    for need in found.requires or []:
        match = _NEED.match(need)
        if match is None or "extra ==" in need:
            continue
        line = _look_for(match[1], match[2] or "")
        if isinstance(line, Line):
            yield line
        else:
            there.append(line)
    yield Line("dependencies", "good", ", ".join(there))


def _look_for(name: str, at_least: str) -> str | Line:
    """Returns name and version of a dependency, or what is wrong with it."""
    cure = f"pip install '{name}>={at_least}'" if at_least else f"pip install {name}"
    try:
        module = importlib.import_module(_MODULES.get(name.lower(), name.replace("-", "_")))
        version = distribution(name).version
    except PackageNotFoundError:
        return f"{name} (of unknown version)"
    except ImportError as err:
        return Line("dependencies", "bad", f"{name} cannot be imported: {err}", cure)
    if at_least and _numbers(version) < _numbers(at_least):
        return Line("dependencies", "bad", f"{name} {version} is too old, {at_least} is needed", cure)
    if name == "pyzmq":
        curve = "with CURVE" if module.has("curve") else "without CURVE"
        return f"{name} {version} (libzmq {module.zmq_version()}, {curve})"
    return f"{name} {version}"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]
