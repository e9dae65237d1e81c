"""One class of the kit for the sound and each broken plugin; ``test_broken_plugins`` runs it."""

from __future__ import annotations

from broken_plugins import BROKEN

from fastdeploy_routing_plugins.testing import PluginConformance


class InFolder(PluginConformance):
    heavy = ("fake_sdk",)

    def config(self, tmp_path):
        return {"folder": str(tmp_path / "store")}


for name in ("sound", *BROKEN):
    globals()[f"Test_{name}"] = type(f"Test_{name}", (InFolder,), {"store": name, "__module__": __name__})
