"""The one hook of a store plugin.

A plugin is a light module named by an entry point in the group ``fastdeploy.routing_store_plugins``::

    from fastdeploy_routing_plugins.hookspecs import hookimpl
    from fastdeploy_routing_plugins.spec import StoreSpec

    @hookimpl
    def fd_routing_store() -> StoreSpec: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .spec import StoreSpec

PROJECT = "fastdeploy_routing"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def fd_routing_store() -> StoreSpec:
    """Returns the store's declaration. Called once, with no arguments; must not import the backend or do I/O."""
    raise AssertionError("a hook specification is never called")
