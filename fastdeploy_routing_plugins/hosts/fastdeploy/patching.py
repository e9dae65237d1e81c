"""Which of FastDeploy's modules are patched, and by what. The patches' own modules load only when they are needed.

A module is patched as a whole or not at all.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...errors import RoutingError, UnsupportedError

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
_MISSING = object()
_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


def patch(module: ModuleType) -> None:
    """Patches one of the watched modules.

    A patch that fails is undone, and logged: whatever our patches do wrong, FastDeploy must still import.

    Raises:
        UnsupportedError: the module is unknown, or its patch failed, and ``FD_ROUTING_STRICT`` is set; or a patch that
            failed could not be undone.
    """
    before = _Snapshot(module)
    try:
        room, _, function = _PATCHES[module.__name__].partition(":")
        getattr(import_module(f".{room}", __package__), function)(module)
    except RoutingError:
        before.restore()
        raise
    except Exception as err:  # noqa: BLE001 - see above
        before.restore()
        _failed(module, err)
    except BaseException:
        before.restore()
        raise


def _failed(module: ModuleType, err: Exception) -> None:
    from .gate import STRICT_VARIABLE, collecting, report, strict  # noqa: PLC0415 - needed now only

    if collecting():
        report(f"{module.__name__} cannot be patched: {type(err).__name__}: {err}")
        return
    if strict():
        raise UnsupportedError(
            f"the routing stores cannot patch {module.__name__}: {type(err).__name__}: {err}",
            hint=f"{STRICT_VARIABLE} is set; please report this, or unset it",
        ) from err
    _log.error(
        "routing stores: patching %s failed, please report this; it is left untouched", module.__name__, exc_info=err
    )


class _Snapshot:
    """What a module and its classes hold before they are patched."""

    def __init__(self, module: ModuleType) -> None:
        self._name = module.__name__
        # The type is asked, not the object: FastDeploy has lazy ones, which isinstance would wake.
        classes = [value for value in vars(module).values() if issubclass(type(value), type)]
        self._held: list[tuple[Any, dict[str, Any]]] = [(owner, dict(vars(owner))) for owner in (module, *classes)]

    def restore(self) -> None:
        """Puts everything back.

        Raises:
            UnsupportedError: something refuses.
        """
        try:
            for owner, before in self._held:
                _restore(owner, before)
        except Exception as err:
            raise UnsupportedError(
                f"the routing stores' patch of {self._name} failed halfway and cannot be undone: {err}",
                hint="please report this; without routing_stores in FD_PLUGINS this FastDeploy runs as it is",
            ) from err


def _restore(owner: Any, before: dict[str, Any]) -> None:
    now = dict(vars(owner))
    for name in now.keys() - before.keys():
        delattr(owner, name)
    for name, value in before.items():
        if now.get(name, _MISSING) is not value:
            setattr(owner, name, value)
