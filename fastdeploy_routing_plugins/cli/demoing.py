"""What the demo needs of a store beside a configuration: a place for its shared memory, and a transport."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.arena.room import SHM
from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.resolver import resolve
from fastdeploy_routing_plugins.resolving.sources import OPTIONS_KEY, STORE_KEY
from fastdeploy_routing_plugins.spec import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins.resolver import ResolvedStore
    from fastdeploy_routing_plugins.store.sync import SyncStore

TRANSPORTS = ("auto", "shm", "tcp", "rdma")
_SHELF = 8 << 20  # bytes, many times what a demo needs


def retains(store: ResolvedStore) -> bool:
    """Whether what was put lives in the process that put it."""
    return Capability.RETAIN in store.spec.capabilities


@contextmanager
def prepared(store: ResolvedStore, transport: str | None, *, keep: bool) -> Iterator[ResolvedStore]:
    """Returns the store as the demo uses it: with its shared memory in a folder that is removed at the end.

    Args:
        store: As the command line has it.
        transport: ``--transport``.
        keep: Whether records are to be left in the store.

    Raises:
        UsageProblem: the options do not go with the store.
        ResolveError: the transport cannot be used here.
    """
    if keep and retains(store):
        text = f"{store.name} keeps records in the memory of the demo's processes, which end with it"
        raise UsageProblem(text, "--keep goes with a store that outlives them, local for example")
    if store.name != "rdma" or not hasattr(store.config, "transport") or getattr(store.config, "redis", False):
        if transport is not None:
            raise UsageProblem(f"{store.name} has no transports", "--transport goes with --store rdma")
        yield store
        return
    stated = store.config.transport
    if transport not in (None, stated) and stated != "auto":
        raise UsageProblem(f"--transport {transport} contradicts transport {stated!r} of the configuration")
    defaults = type(store.config)()
    options: dict[str, Any] = {**store.options, "transport": transport or stated}
    options |= {"namespace": store.namespace, "producer": store.producer}
    folder = ""
    if store.config.arena_dir == defaults.arena_dir:
        folder = tempfile.mkdtemp(prefix="fd-routing-demo-", dir=SHM if os.access(SHM, os.W_OK) else None)
        options["arena_dir"] = folder
    if store.config.capacity == defaults.capacity:
        options["capacity"] = _SHELF
    try:
        yield resolve({STORE_KEY: f"{store.name}@{store.distribution}", OPTIONS_KEY: options}, environ={})
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def emptier(store: SyncStore | None) -> Callable[[], None]:
    """Returns what makes the processes that hold records let go of them, so that they need not be ended."""

    def empty() -> None:
        if store is not None and retains(store.resolved):
            with suppress(RoutingError):  # it is emptied again at the end, which says why it cannot be
                store.clear(everything=True)

    return empty
