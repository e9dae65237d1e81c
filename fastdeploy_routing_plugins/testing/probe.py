"""A fresh process that looks at a plugin, and says what it saw as JSON. Run by path, never imported.

The request is a JSON object on stdin: ``do``, ``store``, and what the look needs.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

from fastdeploy_routing_plugins import spec as spec_module
from fastdeploy_routing_plugins.discovery import discover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")


def snapshot() -> dict[str, Any]:
    """The state of the process that an import has no business to change."""
    return {
        "signal handlers": {int(number): repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "handlers of the root logger": [repr(handler) for handler in logging.getLogger().handlers],
        "level of the root logger": logging.getLogger().level,
        "sys.path": list(sys.path),
        "sys.meta_path": [repr(finder) for finder in sys.meta_path],
        "sys.excepthook": repr(sys.excepthook),
        "warning filters": [repr(entry) for entry in warnings.filters],
        "working directory": os.getcwd(),
        "environment": dict(os.environ),
        "umask": _umask(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "time zone": time.tzname,
    }


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


@contextmanager
def captured() -> Iterator[IO[bytes]]:
    """Catches what is written to stdout and stderr, by whatever means."""
    with tempfile.TemporaryFile() as file:
        saved = [(fd, os.dup(fd)) for fd in (1, 2)]
        for fd, _ in saved:
            os.dup2(file.fileno(), fd)
        try:
            yield file
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            for fd, copy in saved:
                os.dup2(copy, fd)
                os.close(copy)


def load(store: str) -> Any:
    """Imports the plugin and calls its hook, without what the resolver checks on the way."""
    target = next(candidate.target for candidate in discover() if candidate.name == store)
    module, _, attribute = target.partition(":")
    plugin = import_module(module)
    for name in filter(None, attribute.split(".")):
        plugin = getattr(plugin, name)
    return plugin.fd_routing_store()


def look(store: str) -> dict[str, Any]:
    """Returns what loading the plugin imports, prints and changes."""
    before, modules = snapshot(), set(sys.modules)
    with captured() as output:
        spec = load(store)
        output.flush()
        output.seek(0)
        said = output.read().decode(errors="replace")
    after = snapshot()
    return {
        "name": spec.name,
        "modules": sorted(set(sys.modules) - modules),
        "said": said,
        "changed": sorted(what for what in before if before[what] != after[what]),
    }


def api_version(store: str, version: list[int]) -> dict[str, Any]:
    """Returns the API version that the plugin states where another one is installed."""
    spec_module.API_VERSION = (version[0], version[1])
    return {"api_version": list(load(store).api_version)}


def io(store: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """Returns the writes and connections of resolving the store and making its backend."""
    from fastdeploy_routing_plugins.resolver import resolve  # noqa: PLC0415 - the other looks need less

    sys.dont_write_bytecode = True
    seen: list[str] = []
    watching = True

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if watching and _is_io(event, args):
            seen.append(f"{event} {args[0] if args else ''}"[:200])

    sys.addaudithook(audit)
    resolve(configuration).create_backend()
    watching = False
    return {"io": seen}


def _is_io(event: str, args: tuple[Any, ...]) -> bool:
    if event == "open":
        path, _, flags = args
        return isinstance(flags, int) and bool(flags & _WRITES) and path != os.devnull
    return event in _CHANGES or event.startswith(("socket.connect", "socket.bind", "socket.getaddrinfo"))


def unpickle(store: str, pickled: str) -> dict[str, Any]:
    """Returns what a pickled store has become in this process."""
    resolved = pickle.loads(base64.b64decode(pickled))  # noqa: S301 - how engines hand a store to their children
    return {"name": resolved.name, "json": resolved.to_json(), "backend": type(resolved.create_backend()).__name__}


LOOKS: dict[str, Callable[..., dict[str, Any]]] = {
    "look": look,
    "api_version": api_version,
    "io": io,
    "unpickle": unpickle,
}

if __name__ == "__main__":
    request = json.loads(sys.stdin.read())
    channel = os.dup(1)
    os.dup2(2, 1)
    answer = LOOKS[request.pop("do")](**request)
    with os.fdopen(channel, "w", encoding="utf-8") as out:
        json.dump(answer, out)
