"""Fabricated distributions on a path of their own, and fresh processes that resolve stores there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "fastdeploy.routing_store_plugins"
PLUGIN = """
from dataclasses import dataclass, field
from fastdeploy_routing_plugins.backend import Backend
from fastdeploy_routing_plugins.hookspecs import hookimpl
from fastdeploy_routing_plugins.spec import StoreSpec

@dataclass(frozen=True, slots=True)
class Config:
    path: str = "/nowhere"
    size: int = 1
    password: str = field(default="", metadata={"secret": True})

class DemoBackend(Backend):
    async def _put(self, name, header, payload): ...
    async def _delete(self, names): return 0

def spec(**changes):
    given = dict(name="demo", api_version=(1, 0), summary="a demonstration", load_config=lambda: Config,
                 create=lambda context: DemoBackend(), host_keys={"local_store_dir": "path"})
    return StoreSpec(**{**given, **changes})
"""
HOOK = """
@hookimpl
def fd_routing_store():
    return spec()
"""
GOOD = PLUGIN + HOOK
_PROBE = """
import json, logging, sys
wanted = json.loads(sys.argv[1])
logged = []
class Keep(logging.Handler):
    def emit(self, record):
        logged.append([record.levelname, record.getMessage()])
logging.getLogger("fastdeploy_routing_plugins").addHandler(Keep())
logging.getLogger("fastdeploy_routing_plugins").setLevel("DEBUG")
from fastdeploy_routing_plugins import resolver
found = {}
try:
    options = {key: wanted[key] for key in ("store",) if key in wanted}
    if "host_api" in wanted:
        options["host_api"] = tuple(wanted["host_api"])
    store = resolver.resolve(wanted["config"], **options)
    found.update(store=store.name, distribution=store.distribution, version=store.version, options=store.options,
                 common=[store.namespace, store.producer, store.only_last_turn, store.use_fused_put], repr=repr(store),
                 target=store.candidate.target, json=store.to_json())
    if wanted.get("create"):
        found["backend"] = type(store.create_backend()).__name__
except BaseException as err:
    found.update(error=type(err).__name__, text=str(err), cause=type(err.__cause__).__name__,
                 facts={key: value for key, value in getattr(err, "facts", {}).items()})
found.update(logged=logged, modules=sorted(sys.modules))
print()
print(json.dumps(found))
"""
_CHECK = """
import json, sys
wanted = json.loads(sys.argv[1])
from fastdeploy_routing_plugins.resolver import check
steps = check(wanted["name"], wanted["config"])
print()
print(json.dumps([[s.name, s.state, s.detail, s.error and type(s.error).__name__] for s in steps]))
"""


@dataclass
class Site:
    """Folders that stand first on the path of fresh processes."""

    root: Path
    folders: list[Path] = field(default_factory=list)

    def folder(self, name: str = "site") -> Path:
        """Returns a folder; each new one comes after the others on the path."""
        path = self.root / name
        if path not in self.folders:
            path.mkdir()
            self.folders.append(path)
        return path

    def distribution(
        self,
        name: str = "fd-routing-demo",
        version: str = "1.0",
        *,
        entries: dict[str, str] | str | None = None,
        modules: dict[str, str] | None = None,
        folder: str = "site",
        metadata: bytes | None = None,
    ) -> Path:
        """Fabricates a distribution: one store ``demo`` in module ``fdx_demo`` unless stated; returns its metadata."""
        place = self.folder(folder)
        info = place / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: in the description\n"
        (info / "METADATA").write_bytes(text.encode() if metadata is None else metadata)
        if entries is None:
            entries = {"demo": "fdx_demo"}
        if isinstance(entries, dict):
            lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
            entries = f"[console_scripts]\nnothing = nowhere:main\n\n[{GROUP}]\n{lines}"
        (info / "entry_points.txt").write_text(entries)
        for module, source in ({"fdx_demo": GOOD} if modules is None else modules).items():
            file = place.joinpath(*module.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        return info

    def run(self, code: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs code in a fresh process."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("FD_", "PYTHON"))}
        environ["PYTHONPATH"] = os.pathsep.join(map(str, self.folders))
        environ["PYTHONDONTWRITEBYTECODE"] = "1"
        return subprocess.run(
            [sys.executable, "-c", code, *args], env=environ | variables, capture_output=True, text=True, timeout=60
        )

    def resolve(self, config: Any, *, variables: dict[str, str] | None = None, **wanted: Any) -> Result:
        """Resolves a configuration (a text without braces is a store's name) in a fresh process."""
        if isinstance(config, str) and not config.startswith(("{", "@")):
            config = {"routing_store_type": config}
        done = self.run(_PROBE, json.dumps({"config": config, **wanted}), **(variables or {}))
        assert done.returncode == 0, done.stderr
        return Result(json.loads(done.stdout.splitlines()[-1]))

    def check(self, name: str, config: Any = None, **variables: str) -> dict[str, tuple[str, str, str | None]]:
        """Checks a store in a fresh process; returns state, detail and error of each step."""
        done = self.run(_CHECK, json.dumps({"name": name, "config": config}), **variables)
        assert done.returncode == 0, done.stderr
        return {
            step: (state, detail, error) for step, state, detail, error in json.loads(done.stdout.splitlines()[-1])
        }


@dataclass
class Result:
    """What a fresh process reported."""

    found: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.found[name]

    @property
    def error(self) -> str | None:
        """The error's class, or None if a store was resolved."""
        return self.found.get("error")

    @property
    def plugins(self) -> list[str]:
        """The fabricated modules that were imported."""
        return [name for name in self.found["modules"] if name.startswith("fdx_")]
