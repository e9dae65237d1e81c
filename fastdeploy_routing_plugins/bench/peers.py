"""Other ways for an array from one process to another, each measured if it is installed.

A way of your own is a class like ``Peer``, a ``PeerKind`` of it, and its name: ``bench --peers yourmodule:KIND``.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fastdeploy_routing_plugins.bench.arrays import Array


@dataclass(frozen=True, slots=True)
class Site:
    """Where a benchmark runs.

    Attributes:
        folder: A new folder, for files.
        redis_port: A redis-server's on loopback; 0: there is none.
        writing: Whether this is the process that puts. It is opened first.
        nbytes: The most that is put before it is deleted again.
    """

    folder: Path
    redis_port: int
    writing: bool
    nbytes: int


class Peer(Protocol):
    """One end of a way, in one of the two processes."""

    def prepare(self, arrays: Sequence[Array]) -> None:
        """Does what an engine would have done before it puts these, outside the clock."""

    def put(self, key: str, array: Array) -> object:
        """Puts an array; when this returns, the other process can get it."""

    def put_many(self, items: Sequence[tuple[str, Array]]) -> object:
        """Puts several as FastDeploy does it with the layers of a rollout."""

    def get(self, key: str) -> Any:
        """Gets what was put: an array, a tensor or bytes."""

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes; called in the process that put."""

    def close(self) -> None:
        """Closes."""


@dataclass(frozen=True, slots=True)
class PeerKind:
    """A way that can be measured.

    Attributes:
        name: What users call it.
        put_name: What a put is called in tables.
        get_name: What a get is called.
        open: Opens one end.
        modules: What has to be importable.
        redis: Whether it needs a redis-server.
        exposed: Whether it listens on every interface, whatever it is told.
        fastdeploy: Whether FastDeploy's own stores move routing by it.
    """

    name: str
    put_name: str
    get_name: str
    open: Callable[[Site], Peer]
    modules: tuple[str, ...] = ()
    redis: bool = False
    exposed: bool = False
    fastdeploy: bool = False

    def missing(self) -> str:
        """Returns what is not installed, in words; empty: everything is."""
        wanted = [f"the Python package {module!r}" for module in self.modules if find_spec(module) is None]
        if self.redis and shutil.which("redis-server") is None:
            wanted.append("redis-server")
        return f"needs {' and '.join(wanted)}" if wanted else ""


def find(name: str) -> PeerKind | None:
    """Returns a built-in way by its name, or any other by ``module:attribute``; None: there is none."""
    module, _, attribute = name.partition(":")
    if attribute:
        try:
            kind = getattr(import_module(module), attribute, None)
        except ImportError:
            return None
        return kind if isinstance(kind, PeerKind) else None
    from fastdeploy_routing_plugins.bench.builtin import KINDS  # noqa: PLC0415 - it imports this module

    return KINDS.get(name)
