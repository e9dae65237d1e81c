"""The light module that the entry point names: says what the store is, imports nothing heavy."""

from __future__ import annotations

from fastdeploy_routing_plugins.hookspecs import hookimpl
from fastdeploy_routing_plugins.spec import Capability, StoreContext, StoreSpec


def load_config():
    from .config import SqliteConfig

    return SqliteConfig


def create(context: StoreContext):
    from .backend import SqliteBackend

    return SqliteBackend(context.config.path, context.config.busy_timeout)


@hookimpl
def fd_routing_store() -> StoreSpec:
    return StoreSpec(
        name="sqlite",
        api_version=(1, 0),  # what this plugin was written for: a literal, never the package's own constant
        summary="one SQLite file, shared by the processes of one host",
        load_config=load_config,
        create=create,
        capabilities=Capability.READ | Capability.LIST | Capability.RANGE,
    )
