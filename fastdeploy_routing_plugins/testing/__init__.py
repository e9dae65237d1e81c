"""The conformance kit: proves that a store keeps the contract. Needs ``fastdeploy-routing-plugins[testing]``.

A store's author writes two classes and runs pytest; there is no plugin, no marker and no fixture::

    from fastdeploy_routing_plugins.testing import BackendConformance, PluginConformance

    class TestSqlitePlugin(PluginConformance):
        store = "sqlite"
        heavy = {"sqlite3"}  # what the plugin's module must not import

    class TestSqlite(BackendConformance):
        store = "sqlite"  # found through its real entry point

        def config(self, tmp_path):
            return {"path": str(tmp_path / "routing.db")}
"""

from __future__ import annotations

try:
    import pytest
except ImportError as err:
    raise ImportError(
        "the conformance kit runs under pytest: pip install 'fastdeploy-routing-plugins[testing]'"
    ) from err

_MODULES = ("concurrency", "harness", "honesty", "lifecycle", "listing", "objects", "peer", "plugins", "rollouts")
# Failures then show the compared values, as in an author's own tests.
pytest.register_assert_rewrite(*[f"{__name__}.{module}" for module in (*_MODULES, "stateful", "waiting")])

from .plugins import PluginConformance  # noqa: E402 - after pytest knows what to rewrite
from .suite import BackendConformance  # noqa: E402

__all__ = ["BackendConformance", "PluginConformance"]
