"""Makes a distribution with test stores that any process can open: the writer's worker too.

``with on_path(install(folder)):`` lets this process, and every worker it starts, find the stores of ``backends``.
``environment(folder)`` does so for an engine in a process of its own. Whatever store wrote, ``read(store_dir)`` reads.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdeploy_routing_plugins import RoutingSchema, SyncStore, open_store

from .backends import STORES

MODULE = "fdx_writer_backends"
_PLUGIN = """
from fastdeploy_routing_plugins.hookspecs import hookimpl
from {module} import spec

@hookimpl
def fd_routing_store():
    return spec({name!r})
"""


def install(folder: Path) -> Path:
    """Makes the distribution in a folder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    info = folder / "fd_routing_writer_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fd-routing-writer-tests\nVersion: 1.0\n")
    (folder / f"{MODULE}.py").write_text(Path(__file__).with_name("backends.py").read_text())
    lines = ["[fastdeploy.routing_store_plugins]"]
    for name in STORES:
        (folder / f"fdx_plugin_of_{name}.py").write_text(_PLUGIN.format(module=MODULE, name=name))
        lines.append(f"{name} = fdx_plugin_of_{name}")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@contextlib.contextmanager
def on_path(folder: Path) -> Iterator[Path]:
    """Puts a folder on this process's path for a ``with`` block, and forgets its modules afterwards."""
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name == MODULE or name.startswith("fdx_plugin_of_")]:
            del sys.modules[name]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Returns the environment of a process that finds the stores."""
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1", **variables}


def config(store: str, store_dir: Path | str, *, namespace: str = "default", **options: Any) -> dict[str, Any]:
    """Returns the configuration of a test store, or of ``local``."""
    return {
        "routing_store_type": store,
        "routing_store_config": {"store_dir": str(store_dir), "namespace": namespace, **options},
    }


def read(store_dir: Path | str, *, namespace: str = "default", schema: RoutingSchema | None = None) -> SyncStore:
    """Opens what any of the stores wrote to a folder."""
    return open_store(config("local", store_dir, namespace=namespace), schema=schema)
