"""A benchmark from its order to its report: what is there to be measured, where it runs, what it needs."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.arena.room import SHM
from fastdeploy_routing_plugins.bench import candidates as found
from fastdeploy_routing_plugins.bench import machine
from fastdeploy_routing_plugins.bench.job import Job
from fastdeploy_routing_plugins.bench.network import own_network
from fastdeploy_routing_plugins.bench.report import Report
from fastdeploy_routing_plugins.bench.run import run
from fastdeploy_routing_plugins.bench.servers import metadata_service, redis_server
from fastdeploy_routing_plugins.bench.sides import room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fastdeploy_routing_plugins.bench.candidates import Gets
    from fastdeploy_routing_plugins.bench.job import Candidate
    from fastdeploy_routing_plugins.bench.peers import PeerKind
    from fastdeploy_routing_plugins.bench.presets import Work
    from fastdeploy_routing_plugins.resolver import ResolvedStore

_PREFIX = "fd-routing-bench-"
_EXPOSED = "it listens on every interface, and {}; --insecure measures it all the same"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured.

    Attributes:
        work: What is moved.
        stores: Names of stores.
        options: Of stores, by name.
        peers: Names of peers.
        transports: Of the store ``rdma``.
        gets: Which ways to get.
        rounds: How many.
        warm_up: Rounds before that do not count.
        timeout: Seconds that a step may take.
        folder: Where files are written, in a folder of their own; nothing: where temporary files are.
        insecure: Whether something may listen on every interface.
    """

    work: Work
    stores: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    transports: tuple[str, ...] = ("shm", "tcp")
    gets: Gets = "both"
    rounds: int = 5
    warm_up: int = 2
    timeout: float = 120.0
    folder: str | None = None
    insecure: bool = False


class Bench:
    """An order that was looked at: its stores and peers exist, and their options are right.

    Args:
        order: What is to be measured.

    Raises:
        ResolveError: there is no such store or peer, or an option is wrong.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.left_out: dict[str, str] = {}
        namespace = f"{_PREFIX}{uuid.uuid4().hex[:12]}"
        self._stores: list[ResolvedStore] = [
            found.store_of(name, order.options.get(name, {}), namespace) for name in order.stores
        ]
        self._peers: list[tuple[str, PeerKind]] = []
        for name in order.peers:
            kind = found.peer_of(name)
            if why := kind.missing():
                self.left_out[name] = why
            else:
                self._peers.append((name, kind))
        ways = [len(self._stores), len(self._peers), 1]
        self.steps = sum(ways) * (order.rounds + order.warm_up)

    def run(self, progress: Callable[[int], None]) -> Report:
        """Measures; see ``run.run``."""
        order = self._order
        with ExitStack() as stack:
            folder = stack.enter_context(_folder(order.folder))
            shm = stack.enter_context(_folder(SHM if os.access(SHM, os.W_OK) else None))
            self._apart(stack)
            facts = machine.describe(folder)
            redis = 0
            if any(kind.redis for _, kind in self._peers):
                redis = stack.enter_context(redis_server(folder))
            job = Job(True, order.work, (), str(folder), str(shm), redis)
            chosen = self._candidates(stack, job)
            job = Job(True, order.work, tuple(chosen), str(folder), str(shm), redis)
            outcome = run(job, order.rounds, order.warm_up, order.timeout, progress)
        return Report(
            order.work,
            order.rounds,
            order.warm_up,
            outcome.files,
            outcome.rollouts,
            self.left_out,
            outcome.failed,
            facts,
            machine.versions(),
        )

    def _apart(self, stack: ExitStack) -> None:
        """Goes where nobody can reach what listens on every interface, or leaves that out."""
        order = self._order
        exposed = {name for name, kind in self._peers if kind.exposed}
        exposed |= {store.name for store in self._stores if found.exposes(store, order.transports)}
        if not exposed or order.insecure:
            return
        elsewhere = [store.name for store in self._stores if getattr(store.config, "server", "")]
        if elsewhere:
            why = f"the server of {elsewhere[0]} would be out of reach in a network of its own"
        else:
            why = stack.enter_context(own_network())
        if why:
            self.left_out |= dict.fromkeys(sorted(exposed), _EXPOSED.format(why))
            self._peers = [(name, kind) for name, kind in self._peers if name not in exposed]
            self._stores = [store for store in self._stores if store.name not in exposed]

    def _candidates(self, stack: ExitStack, job: Job) -> list[Candidate]:
        order, service = self._order, ""
        chosen = []
        for store in self._stores:
            defaults: dict[str, Any] = {}
            if store.name == "local":
                defaults = {"store_dir": str(Path(job.folder) / "store")}
            elif store.name == found.RDMA and not found.by_redis(store):
                service = service or ("" if "server" in store.options else stack.enter_context(metadata_service()))
                defaults = {"server": service, "arena_dir": job.shm, "capacity": room(job)}
            chosen += found.of_store(store, order.work, order.transports, order.gets, defaults)
        chosen += [found.of_peer(kind, order.work, name) for name, kind in self._peers]
        return [*chosen, found.bounds(order.gets)]


@contextmanager
def _folder(inside: str | None) -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=inside)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
