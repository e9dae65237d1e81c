"""Which of FastDeploy's modules are patched, and by what. The patches' own modules load only when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_PATCHES = {
    "fastdeploy.config": "settings:patch_config",
    "fastdeploy.engine.args_utils": "settings:patch_args",
    "fastdeploy.cache_manager.routing_cache_manager": "family_e:patch_manager",
    "fastdeploy.cache_manager.routing_store": "family_e:patch_store",
    "fastdeploy.output.token_processor": "family_e:patch_token_processor",
    "fastdeploy.engine.expert_service": "family_e:patch_expert_service",
    "fastdeploy.model_executor.layers.moe.routing_indices_cache": "families:patch_worker",
    "fastdeploy.worker.gpu_model_runner": "families:patch_runner",
    "fastdeploy.worker.metax_model_runner": "families:patch_runner",
}
WATCHED = frozenset(_PATCHES)


def patch(module: ModuleType) -> None:
    """Patches one of the watched modules.

    Raises:
        UnsupportedError: it is unknown, and ``FD_ROUTING_STRICT`` is set.
    """
    room, _, function = _PATCHES[module.__name__].partition(":")
    getattr(import_module(f".{room}", __package__), function)(module)
