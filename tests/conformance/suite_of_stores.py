"""One class of the kit for each sound and each broken store; ``test_broken_stores`` runs it."""

from __future__ import annotations

from pathlib import Path

from broken import BROKEN, SOUND

from fastdeploy_routing_plugins.testing import BackendConformance


class InFolder(BackendConformance):
    def config(self, tmp_path):
        return {"folder": str(tmp_path / "store")}

    def directory(self, config):
        return Path(config["folder"])

    def raw_names(self, config):
        folder = Path(config["folder"])
        files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        return [name for name in files if not name.startswith(".tmp")]


for name in (*SOUND, *BROKEN):
    globals()[f"Test_{name}"] = type(f"Test_{name}", (InFolder,), {"store": name, "__module__": __name__})
