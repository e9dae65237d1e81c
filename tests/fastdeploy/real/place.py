"""What one scenario works with: engines, a store's folder, and shared memory of its own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engines
import numpy as np
from engines import Engine, Launcher
from settings import Settings, request_id
from trees import ROOT, Tree

from fastdeploy_routing_plugins import RoutingSchema, SyncStore, open_store

_ports = itertools.count(20_000 + os.getpid() % 20_000)
_SQLITE = ROOT / "examples/fd-routing-sqlite/src"


class Pool:
    """Launchers that are used again, for one tree and start method.

    Args:
        tree: The FastDeploy.
        method: ``"fork"`` or ``"spawn"``.
        bare: Whether FastDeploy is never told to load our package, to see what it does by itself.
    """

    def __init__(self, tree: Tree, method: str, *, bare: bool = False) -> None:
        self.tree = tree
        self.method = method
        self._bare = bare
        self.folder = Path(tempfile.mkdtemp(prefix="fd-run-against-"))
        install_stores(self.folder / "site")
        self._free: dict[bool, list[Launcher]] = {True: [], False: []}
        self._all: list[Launcher] = []

    def take(self, *, plugin: bool) -> Launcher:
        """Returns a launcher that nobody uses."""
        plugin = plugin and not self._bare
        if not self._free[plugin]:
            environ = self.tree.environ(self.folder, plugin=plugin)
            launcher = Launcher(self.tree, self.method, environ, self.folder)
            self._all.append(launcher)
            return launcher
        return self._free[plugin].pop()

    def give_back(self, launcher: Launcher, *, plugin: bool) -> None:
        """Takes a launcher back whose engine is over."""
        self._free[plugin and not self._bare].append(launcher)

    def remove(self) -> None:
        """Ends everything."""
        for launcher in self._all:
            launcher.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


def install_stores(site: Path) -> None:
    """Makes third-party distributions in a folder: the example ``sqlite``, and the writer tests' slow stores."""
    from tests.writer.stores import install

    install(site)
    info = site / "fd_routing_sqlite-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fd-routing-sqlite\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fastdeploy.routing_store_plugins]\nsqlite = fd_routing_sqlite.plugin\n")
    shutil.copytree(_SQLITE / "fd_routing_sqlite", site / "fd_routing_sqlite")
    if str(site) not in sys.path:
        sys.path.append(str(site))


@dataclass
class Place:
    """One scenario's surroundings.

    Attributes:
        pool: Where engines come from.
        folder: A folder of the scenario's own.
        engines: Engines in use, and their launchers.
        ports: Ports in use.
    """

    pool: Pool
    folder: Path
    engines: list[tuple[Engine, Launcher, bool]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    @property
    def family(self) -> str:
        """The tree's family."""
        return self.pool.tree.family

    @property
    def store_dir(self) -> Path:
        """The folder of the scenario's local store."""
        return self.folder / "store"

    @property
    def shm(self) -> Path:
        """The folder of the scenario's arenas."""
        return self.folder / "shm"

    def settings(self, store: str = "local", /, *, replay: dict[str, Any] | None = None, **more: Any) -> Settings:
        """Returns settings for a store, fused unless stated otherwise."""
        own = {"local_store_dir": str(self.store_dir)} if store == "local" else {}
        whole = {"routing_store_type": store, "use_fused_put": True, **own, **(replay or {})}
        self.ports.append(next(_ports))
        return Settings(replay=whole, port=self.ports[-1], **more)

    def engine(self, *, plugin: bool = True, environ: dict[str, str] | None = None) -> Engine:
        """Returns an engine's process; the engine itself is still to be started."""
        self.shm.mkdir(exist_ok=True)
        limits = json.dumps({"arena_bytes": 32 << 20, "arena_dir": str(self.shm)})
        launcher = self.pool.take(plugin=plugin)
        engine = Engine(launcher, {"FD_ROUTING_WRITER_CONFIG": limits, **(environ or {})})
        self.engines.append((engine, launcher, plugin))
        return engine

    def started(self, settings: Settings, **more: Any) -> Engine:
        """Returns an engine that was started."""
        engine = self.engine(**more)
        engine.start(settings)
        return engine

    def leave(self) -> None:
        """Ends what is left of the scenario's engines."""
        for engine, launcher, plugin in self.engines:
            if not engine.over:
                os.kill(engine.pid, signal.SIGKILL)
                while "ended" not in engine.ask("look"):
                    pass
            self.pool.give_back(launcher, plugin=plugin)
        end = time.monotonic() + 10.0
        while (alone := workers_with(self.shm)) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in alone:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for port in self.ports:  # what a killed engine leaves is for the next one with its port
            (Path("/dev/shm") / f"routing_host_buffer.{port}").unlink(missing_ok=True)

    @contextmanager
    def store(self, config: dict[str, Any] | None = None) -> Iterator[SyncStore]:
        """Opens the store as a trainer does."""
        local = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(self.store_dir)}}
        with open_store(config or local) as store:
            yield store


def schema_of(settings: Settings) -> RoutingSchema:
    """Returns the schema that the trainer expects of the engine's model."""
    layers = range(settings.dense, settings.dense + settings.layers)
    return RoutingSchema(num_experts=settings.experts, top_k=settings.top_k, layer_ids=layers)


def require(store: SyncStore, settings: Settings, rollout_id: str, seed: int, tokens: int, *, choice: int = 0) -> None:
    """Reads a rollout and compares every id, the shape, the dtype and the schema."""
    record = store.get(rollout_id, choice=choice, timeout=engines.PATIENCE)
    expected = settings.routing(seed, tokens).transpose(1, 0, 2)
    assert record.schema == schema_of(settings), f"{rollout_id}: schema {record.schema}"
    assert record.routing.shape == expected.shape, f"{rollout_id}: {record.routing.shape}, not {expected.shape}"
    assert record.routing.dtype == np.dtype(schema_of(settings).dtype), f"{rollout_id}: {record.routing.dtype}"
    assert np.array_equal(record.routing, expected), f"{rollout_id}: other ids than were handed over"


def request(user: str, seed: int, tokens: int, choice: int = 0, **more: Any) -> dict[str, Any]:
    """Returns a request as the server names it."""
    return {"id": request_id(user, choice), "seed": seed, "tokens": tokens, **more}


def workers_of(pid: int) -> list[int]:
    """Returns the store workers below a process."""
    return [worker for worker in _workers() if _parent(worker) == pid]


def workers_with(folder: Path) -> list[int]:
    """Returns the store workers, orphans too, that work on shared memory in a folder."""
    found = []
    for pid in _workers():
        with suppress(OSError):
            if f" {folder}/" in Path(f"/proc/{pid}/maps").read_text():
                found.append(pid)
    return found


def _workers() -> list[int]:
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if "fastdeploy_routing_plugins.writer.worker" in line.read_text(errors="replace"):
                found.append(int(line.parent.name))
    return found


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def wait_for(condition: Any, what: str) -> None:
    """Waits until something is so.

    Raises:
        AssertionError: It never was.
    """
    end = time.monotonic() + engines.PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {engines.PATIENCE:.0f} s"
        time.sleep(0.02)
