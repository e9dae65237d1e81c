"""A post-import hook: calls back right after a watched module was imported, also when that happened before.

It stands first on ``sys.meta_path``, asks the other finders for watched modules only, and lets everything else pass.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Any

from ...errors import RoutingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


def install(names: Collection[str], callback: Callable[[ModuleType], None]) -> None:
    """Watches modules: ``callback`` is called once for each, with the module; a second installation does nothing.

    A ``RoutingError`` of the callback fails the module's import; any other error is logged, and the import succeeds.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        finder = _Finder(names, callback)
        sys.meta_path.insert(0, finder)
        finder.look_around()


class _Finder(MetaPathFinder):
    def __init__(self, names: Collection[str], callback: Callable[[ModuleType], None]) -> None:
        self._waiting = set(names)
        self._callback = callback
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        self.look_around()
        if fullname not in self._waiting or getattr(self._asking, "name", None) == fullname:
            return None
        self._asking.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.name = None
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self.loaded)
        return spec

    def look_around(self) -> None:
        """Calls back for watched modules that are imported already; one whose import still runs has its turn later."""
        for name in [name for name in tuple(self._waiting) if name in sys.modules]:  # other threads import as well
            module = sys.modules[name]
            if not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self.loaded(module)

    def loaded(self, module: ModuleType) -> None:
        """Calls back for a module, at most once."""
        name = module.__name__
        if name not in self._waiting:
            return
        self._waiting.discard(name)
        try:
            self._callback(module)
        except RoutingError:
            raise
        except Exception:  # noqa: BLE001 - whatever our patches do wrong, FastDeploy must still import
            _log.exception("routing stores: patching %s failed, please report this", name)


class _Loader(Loader):
    """The module's own loader, with a callback after it."""

    def __init__(self, loader: Loader, loaded: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # what looks at the module later finds what it expects
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._loaded(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
