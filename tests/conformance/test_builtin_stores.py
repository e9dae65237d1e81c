"""The stores of this package keep their own contract."""

from __future__ import annotations

from pathlib import Path

from fastdeploy_routing_plugins.stores.local.layout import object_of
from fastdeploy_routing_plugins.testing import BackendConformance, PluginConformance


class LocalConfig:
    store = "local"

    def config(self, tmp_path):
        return {"store_dir": str(tmp_path / "store")}


class TestLocalPlugin(LocalConfig, PluginConformance):
    heavy = ("safetensors", "inotify_simple")


class TestLocal(LocalConfig, BackendConformance):
    def directory(self, config):
        return Path(config["store_dir"])

    def raw_names(self, config):
        folder = Path(config["store_dir"])
        files = [path.relative_to(folder) for path in folder.rglob("*.safetensors")]
        return [f"{path.parent.as_posix()}/{object_of(path.name)}" for path in files]


class TestNoopPlugin(PluginConformance):
    store = "noop"


class TestNoop(BackendConformance):
    store = "noop"
