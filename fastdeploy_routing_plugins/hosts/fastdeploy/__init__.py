"""Plugs into FastDeploy: with ``FD_PLUGINS=routing_stores`` its routing goes through this package's writer and stores.

FastDeploy calls ``register`` in every process that imports it. That only installs a hook, which patches a handful of
FastDeploy's modules right after they are imported; a process that never imports them pays nothing.
"""

from __future__ import annotations

PLUGIN_NAME = "routing_stores"
"""Name of the entry points; what ``FD_PLUGINS`` has to list."""


def register() -> None:
    """Entry point of ``fastdeploy.reasoning_parser_plugins`` and ``fastdeploy.model_register_plugins``; idempotent."""
    from .hook import install  # noqa: PLC0415 - the entry point costs nothing until it is called
    from .logs import attach  # noqa: PLC0415
    from .patching import WATCHED, patch  # noqa: PLC0415

    attach()
    install(WATCHED, patch)
