"""The stores that readers are tested on: each opens stores and readers over the same objects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastdeploy_routing_plugins import RankLayout, RoutingReader, RoutingSchema, SyncStore, resolve
from fastdeploy_routing_plugins.spec import Capability, StoreContext

from ..store.memory import FULL, AsyncMemory, BlockingMemory, Shelf, resolved

ROOT = Path(__file__).parents[2]
SQLITE = ROOT / "examples" / "fd-routing-sqlite" / "src"
NAMES = ("local", "sqlite", "blocking memory", "async memory")
RDMA = ("rdma, shm", "rdma, tcp")
SCHEMA = RoutingSchema(200, 2, range(3, 11))  # 8 MoE layers, dense ones before


@dataclass(frozen=True)
class Place:
    """A store that any number of handles open.

    Attributes:
        resolved: What to open.
        shelf: What is stored, if the store is in memory; counts the bytes moved.
    """

    resolved: Any
    shelf: Shelf | None = None

    def store(self, schema: RoutingSchema | None = SCHEMA) -> SyncStore:
        return SyncStore(self.resolved, schema)

    def reader(
        self, layout: RankLayout | None = None, schema: RoutingSchema = SCHEMA, **options: Any
    ) -> RoutingReader:
        return RoutingReader(self.resolved, schema, layout, **options).open()


def place(name: str, folder: Path) -> Place:
    """Returns one of the stores, which keeps its files, if any, in a folder."""
    if name == "local":
        return Place(resolve(config(folder), environ={}))
    if name in RDMA:
        return Place(resolve(rdma(folder, name.partition(", ")[2]), environ={}))
    if name == "sqlite":
        spec = _sqlite()
        options = spec.load_config()(path=str(folder / "routing.db"))
        make = lambda: spec.create(StoreContext("sqlite", options, "default", "me"))  # noqa: E731
        return Place(resolved(make, has=spec.capabilities))
    return memory(BlockingMemory if name == "blocking memory" else AsyncMemory)


def memory(form: Callable[[Shelf], Any], has: Capability = FULL) -> Place:
    """Returns a store in memory over a form of backend."""
    shelf = Shelf()
    return Place(resolved(lambda: form(shelf), has=has), shelf)


def _sqlite() -> Any:
    sys.path.insert(0, str(SQLITE))
    try:
        from fd_routing_sqlite.plugin import fd_routing_store
    finally:
        sys.path.remove(str(SQLITE))
    return fd_routing_store()


def config(folder: Path) -> dict[str, Any]:
    """Returns the configuration of a store ``local``."""
    return {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder / "store")}}


def rdma(folder: Path, transport: str) -> dict[str, Any]:
    """Returns the configuration of a store ``rdma``, whose service one of its processes embeds."""
    own = {"transport": transport, "namespace": f"reader-{os.getpid()}-{transport}", "capacity": 16 << 20}
    return {"routing_store_type": "rdma", "routing_store_config": {**own, "arena_dir": str(folder)}}


def routing(tokens: int = 10, seed: int = 0, schema: RoutingSchema = SCHEMA) -> np.ndarray:
    """Returns ``[layers, tokens, top_k]``, different in every layer and token of a seed."""
    first = np.random.default_rng(seed).integers(0, schema.num_experts, (schema.num_layers, tokens, 1))
    return ((first + np.arange(schema.top_k)) % schema.num_experts).astype(schema.dtype)


def run(folder: Path, code: str) -> Any:
    """Runs code in a fresh interpreter, ``CONFIG`` being a store in the folder; returns the JSON it printed last."""
    head = f"import json\nCONFIG = json.loads({json.dumps(config(folder))!r})\n"
    script = folder / "script.py"
    script.write_text(head + code)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
