"""What the writer's tests share: one small model, routing for it, and processes to look at and to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdeploy_routing_plugins import RoutingSchema, RoutingWriter, SyncStore, WriterLimits, open_writer
from fastdeploy_routing_plugins.arena.file import find, take

from . import stores

SCHEMA = RoutingSchema(num_experts=16, top_k=4, layer_ids=range(1, 7))
"""Six MoE layers; a row of one layer has four bytes."""
BIG = RoutingSchema(num_experts=256, top_k=8, layer_ids=range(1, 17))
"""Sixteen layers of 8-byte rows: 8,192 tokens are one MiB."""
PATIENCE = 30.0
"""Seconds that a test waits for what must happen; far more than it takes."""
MIB = 1 << 20


def routing(
    tokens: int = 10, *, seed: object = 0, schema: RoutingSchema = SCHEMA, layers: int | None = None
) -> npt.NDArray[Any]:
    """Returns distinct ids per row, ``[layers, tokens, top_k]`` in the schema's dtype, that follow from ``seed``."""
    shape = (schema.num_layers if layers is None else layers, tokens, 1)
    first = np.random.default_rng(int.from_bytes(str(seed).encode(), "little")).integers(
        schema.num_experts, size=shape
    )
    step = schema.num_experts // schema.top_k
    ids = (first + step * np.arange(schema.top_k)) % schema.num_experts
    return ids.astype(schema.dtype)


def until(what: Callable[[], Any], *, within: float = PATIENCE) -> Any:
    """Waits until something is true and returns it; fails the test if it does not become so."""
    end = time.monotonic() + within
    while not (found := what()):
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent's notice does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def workers(arena_dir: Path | str) -> list[int]:
    """Returns the store workers whose arenas lie in a folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if any(os.path.dirname(word) == os.fsencode(arena_dir) for word in words) and alive(int(pid)):
                found.append(int(pid))
    return found


def clear(arena_dir: Path | str) -> None:
    """Removes the arenas of dead processes from a folder, with what is in them."""
    for found in find(str(arena_dir)):
        file = take(found.path)
        assert file is not None, f"{found.path} is in use"
        file.remove()
        file.close()


def end(engine: subprocess.Popen[str]) -> None:
    """Ends an engine and its children, if they run; not its store worker."""
    with suppress(ProcessLookupError):
        os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()


@dataclass(frozen=True)
class Place:
    """A folder with the test stores on the path, shared memory and a store of its own."""

    root: Path
    site: Path

    @property
    def arena_dir(self) -> Path:
        return self.root / "arena"

    @property
    def store_dir(self) -> Path:
        return self.root / "store"

    @property
    def flag(self) -> Path:
        return self.root / "flag"

    @property
    def log(self) -> Path:
        return self.root / "log"

    def config(self, store: str = "local", *, namespace: str = "default", **options: Any) -> dict[str, Any]:
        """Returns a store's configuration; test stores get the flag's and the diary's paths."""
        own = {} if store == "local" else {"flag": str(self.flag), "log": str(self.log)}
        return stores.config(store, self.store_dir, namespace=namespace, **own, **options)

    def limits(self, **changes: Any) -> dict[str, Any]:
        """Returns the limits of a small writer."""
        return {"arena_bytes": 8 * MIB, "arena_dir": str(self.arena_dir), **changes}

    def writer(
        self,
        store: str = "local",
        *,
        schema: RoutingSchema = SCHEMA,
        limits: dict[str, Any] | None = None,
        on_failure: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> RoutingWriter:
        """Opens a writer with a small arena."""
        chosen = WriterLimits(**self.limits(**(limits or {})))
        return open_writer(self.config(store, **options), schema=schema, limits=chosen, on_failure=on_failure)

    def read(self, *, namespace: str = "default") -> SyncStore:
        """Opens the store for reading."""
        return stores.read(self.store_dir, namespace=namespace)

    def ids(self, *, namespace: str = "default") -> list[str]:
        """Returns the ids that the store holds."""
        with self.read(namespace=namespace) as store:
            return [status.key.rollout_id for status in store.list()]

    def diary(self) -> list[str]:
        """Returns what a test store wrote down: ``begin NAME`` and ``end NAME``."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def engine(self, code: str, **kwargs: Any) -> subprocess.Popen[str]:
        """Starts an engine in a process group of its own; its code finds ``place`` and this module's names."""
        setup = (
            "import sys; sys.path.append(sys.argv[1])\n"
            "from pathlib import Path\n"
            "from tests.writer.helpers import *\n"
            "place = Place(Path(sys.argv[2]), Path(sys.argv[3]))\n"
        )
        repository = Path(__file__).parents[2]
        return subprocess.Popen(
            [sys.executable, "-c", setup + code, str(repository), str(self.root), str(self.site)],
            env=stores.environment(self.site),
            text=True,
            start_new_session=True,
            **kwargs,
        )

    @contextmanager
    def running(self, code: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Runs an engine for a ``with`` block, from the first line that it prints on; yields it and the line."""
        with self.engine(code, stdout=subprocess.PIPE) as engine:
            try:
                assert engine.stdout is not None
                yield engine, engine.stdout.readline().strip()
            finally:
                end(engine)

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Runs an engine to its end; returns what it and its children printed."""
        with self.engine(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as engine:
            try:
                out, err = engine.communicate(timeout=PATIENCE)
            finally:
                end(engine)
        return subprocess.CompletedProcess(engine.args, engine.returncode, out, err)

    def make(self) -> Place:
        """Makes the folder for shared memory; returns this place."""
        self.arena_dir.mkdir()
        return self

    def is_left_clean(self) -> bool:
        """Waits until no worker runs over this place's arenas; returns whether no arena is left."""
        until(lambda: not workers(self.arena_dir))
        return not os.listdir(self.arena_dir)


def same(store: SyncStore, key: Any, expected: npt.ArrayLike, **how: Any) -> bool:
    """Whether a store returns exactly this routing."""
    return bool(np.array_equal(store.get(key, timeout=PATIENCE, **how).routing, np.asarray(expected)))


def codes(failures: Iterable[Any]) -> set[tuple[str, str]]:
    """Returns the id and the cause of each failure."""
    return {(failure.key.rollout_id, failure.error.code) for failure in failures}
