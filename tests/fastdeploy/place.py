"""What a test of the plugin works with: a store's folder, shared memory of its own, and engines on a stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdeploy_routing_plugins import RoutingSchema, SyncStore, open_store
from tests.writer.helpers import PATIENCE, until, workers

from .drive import routing

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHM = Path("/dev/shm")
ENGINE_ENDS = 120.0  # s; ends what hangs, measures nothing


@dataclass(frozen=True)
class Place:
    """A folder of a test's own.

    Attributes:
        root: The folder.
        site: Where the writer tests' stores are installed.
        family: Which stand-in: ``"a"``, ``"d"`` or ``"e"``.
        started: Processes that were started here, each the first of a group.
    """

    root: Path
    site: Path
    family: str = "e"
    started: list[int] = field(default_factory=list)

    @property
    def port(self) -> str:
        """What the names of this place's shared buffers begin with."""
        return f"fd-test-{zlib.crc32(str(self.root).encode()):08x}"

    @property
    def store_dir(self) -> Path:
        return self.root / "store"

    @property
    def arena_dir(self) -> Path:
        return self.root / "arena"

    def replay(self, store: str = "local", **more: Any) -> dict[str, Any]:
        """Returns a ``--routing-replay-config`` for a store of this place."""
        if store == "local" and "routing_store_config" not in more:
            return {"routing_store_type": store, "local_store_dir": str(self.store_dir), **more}
        options = {"store_dir": str(self.store_dir), **more.pop("routing_store_config", {})}
        return {"routing_store_type": store, "routing_store_config": options, **more}

    def environ(self, replay: dict[str, Any] | None, limits: dict[str, Any], **variables: str) -> dict[str, str]:
        """Returns the environment of an engine's process."""
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("FD_", "PYTHON"))}
        numpy_folder = os.environ.get("FD_ROUTING_TEST_PATH", "")  # for example another NumPy
        path = [numpy_folder, str(self.site), str(HERE / "standin" / self.family), str(HERE), str(ROOT)]
        small = {"arena_bytes": 8 << 20, "arena_dir": str(self.arena_dir), **limits}
        return {
            **keep,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FD_PLUGINS": "something,routing_stores",
            "FD_ROUTING_WRITER_CONFIG": json.dumps(small),
            "STANDIN_FAMILY": self.family,
            "STANDIN_PORT": self.port,
            "STANDIN_REPLAY": json.dumps(self.replay() if replay is None else replay),
            **variables,
        }

    def start(
        self,
        code: str,
        replay: dict[str, Any] | None = None,
        *,
        method: str = "plain",
        limits: dict[str, Any] | None = None,
        **variables: str,
    ) -> subprocess.Popen[str]:
        """Starts an engine's process; its code finds the names of ``drive``."""
        self.arena_dir.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, str(HERE / "drive.py"), method, code],
            env=self.environ(replay, limits or {}, **variables),
            cwd=self.root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process.pid)
        return process

    def run(self, code: str, replay: dict[str, Any] | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        """Runs an engine to its end; a test that expects a failure looks at what is returned."""
        process = self.start(code, replay, **how)
        try:
            out, err = process.communicate(timeout=ENGINE_ENDS)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def must(self, code: str, replay: dict[str, Any] | None = None, **how: Any) -> str:
        """Runs an engine that must succeed; returns what it logged."""
        done = self.run(code, replay, **how)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def refused(self, code: str, replay: dict[str, Any] | None = None, **how: Any) -> str:
        """Runs an engine that must not start; returns the last line that it said."""
        done = self.run(code, replay, **how)
        assert done.returncode not in (0, -9), done.stderr
        return done.stderr.strip().splitlines()[-1]

    def read(self, schema: RoutingSchema | None = None, **options: Any) -> SyncStore:
        """Opens the store as a trainer does."""
        config = {
            "routing_store_type": "local",
            "routing_store_config": {"store_dir": str(self.store_dir), **options},
        }
        return open_store(config, schema=schema)

    def ids(self) -> set[str]:
        """Returns the ids of the rollouts in the store."""
        with self.read() as store:
            return {status.key.rollout_id for status in store.list()}

    def buffers(self) -> list[Path]:
        """Returns FastDeploy's shared buffers that engines of this place left behind."""
        return list(SHM.glob(f"routing_*_buffer.{self.port}*"))

    def end(self) -> None:
        """Ends whatever a test that failed left running."""
        for group in self.started:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def left(self) -> bool:
        """Waits until no store worker runs any more; returns whether the shared memory is gone too."""
        until(lambda: not workers(self.arena_dir))
        return not self.arena_dir.exists() or not os.listdir(self.arena_dir)


def same(store: SyncStore, rollout_id: str, seed: object, tokens: int, *, choice: int = 0, **model: int) -> bool:
    """Whether a trainer gets exactly the routing that follows from a seed."""
    record = store.get(rollout_id, choice=choice, timeout=PATIENCE)
    return equal(record.routing, routing(seed, tokens, **model))


def equal(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Whether shape and every id are equal."""
    return got.shape == expected.shape and np.array_equal(got, expected)
