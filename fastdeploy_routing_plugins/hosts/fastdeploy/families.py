"""Which generation of FastDeploy's worker this is, by the shape of its names, and what is done about it."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import UnsupportedError
from . import family_a, family_d
from .gate import fastdeploy_version, has, is_coroutine, parameters_of, report
from .requests import note_arrival

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


def family_of(module: ModuleType) -> str:
    """Returns the family, ``"A"`` to ``"E"``, of ``routing_indices_cache``; empty if it is none of them."""
    makes_from = parameters_of(module, "get_routing_store")
    if has(module, "RoutedExpertsCapturer") and not makes_from:
        return "E"
    if makes_from[:1] == ("routing_replay_config",) and has(module, "StoreWrapper") and has(module, "StoreProcess"):
        return "D"
    if makes_from[:1] != ("fd_config",) or not has(module, "RoutingReplayManager"):
        return ""
    if has(module, "RoutingStoreBase.fused_put"):
        return "C"
    newer = has(module, "RoutingStoreBase.clear_prefix_batch") or has(module, "RoutingReplayManager.clear_request")
    return "B" if newer or is_coroutine(module, "RoutingStoreBase.put") else "A"


def family_at(folder: Path) -> str:
    """Returns the family of the package ``fastdeploy`` in a folder, from its files alone; empty if it is none."""
    if (folder / "cache_manager/routing_cache_manager.py").is_file():
        return "E"
    try:
        text = (folder / "model_executor/layers/moe/routing_indices_cache.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    if "StoreWrapper" in text and "StoreProcess" in text:
        return "D"
    if "def get_routing_store(fd_config" not in text:
        return ""
    if "def fused_put" in text:
        return "C"
    newer = "def clear_prefix_batch" in text or "def clear_request" in text or "async def put" in text
    return "B" if newer else "A"


def patch_worker(module: ModuleType) -> None:
    """Patches ``fastdeploy.model_executor.layers.moe.routing_indices_cache``."""
    family = family_of(module)
    if family == "A":
        family_a.patch(module)
    elif family == "D":
        family_d.patch(module)
    elif family in ("B", "C"):
        _refuse(module, family)
    elif family == "":
        report(f"{module.__name__} is of none of the known families")
    elif not has(module, "RoutingHostBufferView"):  # where the patched half of family E begins
        report(f"{module.__name__} is of family E, but has no RoutingHostBufferView")


def _refuse(module: ModuleType, family: str) -> None:
    """Stops an engine that wants routing replay from a FastDeploy between the supported ones."""

    def get_routing_store(*_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(
            f"routing stores do not support this development version of FastDeploy ({fastdeploy_version()}, "
            f"family {family})",
            hint="use a FastDeploy 2.4, 2.5 or 2.6 release, or leave routing_stores out of FD_PLUGINS",
        )

    module.get_routing_store = get_routing_store  # type: ignore[attr-defined]
    _log.warning("routing stores: this FastDeploy is of family %s; routing replay will refuse to start", family)


def patch_runner(module: ModuleType) -> None:
    """Patches the model runner of families A and D, which sees requests with their arrival times."""
    if not has(module, "RoutingReplayManager.register_request"):
        return  # another generation
    owners, methods = ("GPUModelRunner", "MetaxModelRunner"), ("insert_tasks_v1", "insert_prefill_inputs")
    found = [(name, method) for name in owners for method in methods if has(module, f"{name}.{method}")]
    for path in (f"{name}.{method}" for name, method in found):
        if parameters_of(module, path)[:2] != ("self", "req_dicts") or is_coroutine(module, path):
            report(f"{module.__name__}.{path} does not take (self, req_dicts, ...)")
            return
    for name, method in found:  # what else they take is passed on as it comes
        owner = getattr(module, name)
        setattr(owner, method, _noting_arrivals(getattr(owner, method)))


def _noting_arrivals(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def insert(self: Any, req_dicts: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fd_config.routing_replay_config.enable_routing_replay:
            for request in req_dicts:
                note_arrival(request, request.request_id)
        return original(self, req_dicts, *args, **kwargs)

    return insert
