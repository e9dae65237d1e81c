"""The proof that the store keeps the contract: the package's conformance kit."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from fastdeploy_routing_plugins.testing import BackendConformance, PluginConformance


class Sqlite:
    store = "sqlite"  # found through the installed entry point, as an engine finds it

    def config(self, tmp_path):
        return {"path": str(tmp_path / "routing.sqlite3")}


class TestSqlitePlugin(Sqlite, PluginConformance):
    heavy = frozenset({"sqlite3"})  # must not be loaded before the store is chosen


class TestSqlite(Sqlite, BackendConformance):
    def raw_names(self, config):
        """What is really there, seen without the store's own code."""
        with closing(sqlite3.connect(config["path"])) as db:
            return [name for (name,) in db.execute("SELECT name FROM routing_objects ORDER BY name")]
