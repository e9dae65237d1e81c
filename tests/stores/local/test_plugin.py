"""The plugin module is light, and declares what the backend does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fastdeploy_routing_plugins.spec import Capability, StoreContext
from fastdeploy_routing_plugins.stores.local.backend import LocalBackend
from fastdeploy_routing_plugins.stores.local.config import LocalConfig
from fastdeploy_routing_plugins.stores.local.plugin import fd_routing_store
from fastdeploy_routing_plugins.stores.noop.plugin import fd_routing_store as noop_store

_LOADED = """
import sys, pluggy
before = set(sys.modules)
import fastdeploy_routing_plugins.stores.{store}.plugin
print(*sorted(set(sys.modules) - before))
"""


def fresh(store: str) -> set[str]:
    """What the plugin's import loads beyond pluggy."""
    code = _LOADED.format(store=store)
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("store", ["local", "noop"])
def test_the_plugin_loads_a_handful_of_modules(store: str) -> None:
    assert len(fresh(store)) <= 12  # some ms; benchmarks/start_up.py measures it


@pytest.mark.parametrize("store", ["local", "noop"])
def test_the_plugin_loads_no_backend_and_nothing_heavy(store: str) -> None:
    own = f"fastdeploy_routing_plugins.stores.{store}."
    heavy = {own + "backend", own + "config", "numpy", "msgspec", "xxhash", "asyncio", "inotify_simple", "paddle"}
    assert not heavy & fresh(store)


def test_the_factory_makes_the_backend_of_its_config() -> None:
    spec = fd_routing_store()
    backend = spec.create(StoreContext("local", spec.load_config()(store_dir="/x/y"), "ns", "me"))
    assert (type(backend), backend.path) == (LocalBackend, "/x/y")


def test_the_hosts_key_names_the_folder() -> None:
    assert fd_routing_store().host_keys == {"local_store_dir": "store_dir"}


@pytest.mark.parametrize("make", [fd_routing_store, noop_store])
def test_the_declared_api_version_is_the_first(make: object) -> None:
    assert callable(make)
    assert make().api_version == (1, 0)


def test_local_does_everything_but_retain() -> None:
    assert fd_routing_store().capabilities == ~Capability.RETAIN & ~Capability.NONE


def test_the_default_folder_is_documented() -> None:
    assert LocalConfig() == LocalConfig(store_dir="./fd_routing_store", fsync=False)
