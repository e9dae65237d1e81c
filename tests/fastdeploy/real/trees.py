"""A FastDeploy tree on disk: which family it is, which commit, and what engine processes need to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
_CACHE = "fastdeploy/model_executor/layers/moe/routing_indices_cache.py"
_MANAGER = "fastdeploy/cache_manager/routing_cache_manager.py"


@dataclass(frozen=True)
class Tree:
    """A folder that holds a ``fastdeploy`` package.

    Attributes:
        path: The folder.
        family: ``"d"`` or ``"e"``.
        commit: What git says of the folder, or how it is called.
    """

    path: Path
    family: str
    commit: str

    @classmethod
    def at(cls, path: Path) -> Tree:
        """Looks at a folder.

        Raises:
            SystemExit: It holds no FastDeploy of the families D and E.
        """
        path = path.resolve()
        if (path / _MANAGER).is_file():
            family = "e"
        elif (path / _CACHE).is_file() and "StoreWrapper" in (path / _CACHE).read_text(encoding="utf-8"):
            family = "d"
        else:
            raise SystemExit(
                f"{path} holds no FastDeploy of family D or E: neither {_MANAGER} nor a {_CACHE} with StoreWrapper"
            )
        return cls(path, family, _commit(path))

    @property
    def is_real(self) -> bool:
        """Whether this is a whole FastDeploy, not only its routing modules."""
        return (self.path / "fastdeploy/entrypoints/llm.py").is_file()

    def environ(self, place: Path, *, plugin: bool, extra: dict[str, str] | None = None) -> dict[str, str]:
        """Returns the environment of engine processes.

        Args:
            place: A folder for everything they write.
            plugin: Whether FastDeploy is told to load ours.
            extra: Further variables.
        """
        for name in ("logs", "metrics"):
            (place / name).mkdir(parents=True, exist_ok=True)
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("FD_", "PYTHON"))}
        path = [str(place / "site"), str(self.path), str(HERE / "absent"), str(HERE), str(ROOT)]
        environ = {
            **keep,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONWARNINGS": "ignore",  # FastDeploy's own
            "FD_LOG_DIR": str(place / "logs"),
            "PROMETHEUS_MULTIPROC_DIR": str(place / "metrics"),
            "FD_ROUTING_WRITER_CONFIG": json.dumps({"arena_bytes": 32 << 20, "arena_dir": str(place / "shm")}),
            "OMP_NUM_THREADS": "1",
        }
        if plugin:
            environ["FD_PLUGINS"] = "routing_stores"
        return {**environ, **(extra or {})}


def _commit(path: Path) -> str:
    asked = subprocess.run(
        ["git", "-C", str(path), "rev-parse", "HEAD", "--show-toplevel"], capture_output=True, text=True, check=False
    )
    commit, _, top = asked.stdout.strip().partition("\n")
    return f"commit {commit}" if asked.returncode == 0 and Path(top) == path else f"no git tree, {path.name}"


def missing_packages() -> list[str]:
    """Returns which of the packages that FastDeploy imports are missing here and can be installed."""
    import importlib.util

    names = (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line.partition("#")[2].strip() for line in names if "#" in line and not line.startswith("#")]
    return [name for name in wanted if _spec(importlib.util.find_spec, name) is None]


def _spec(find, name: str):
    try:
        return find(name)
    except ModuleNotFoundError:
        return None


PYTHON = sys.executable
