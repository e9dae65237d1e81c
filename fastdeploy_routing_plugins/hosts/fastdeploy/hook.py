"""A post-import hook: calls back right after a watched module was imported, also when that happened before.

It stands first on ``sys.meta_path``, asks the other finders for watched modules only, and lets everything else pass.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_installing = threading.Lock()


def install(names: Collection[str], callback: Callable[[ModuleType], None]) -> None:
    """Watches modules: ``callback`` is called with each whenever it was loaded; a second installation adds nothing.

    What the callback raises fails the module's import, and every further attempt to import it until the callback
    succeeds. For a module that is there already it fails this call, and the imports after it.
    """
    with _installing:  # not around callbacks, which import
        finder = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
        if finder is None:
            finder = _Finder(names, callback)
            sys.meta_path.insert(0, finder)
    finder.look_around()


class _Finder(MetaPathFinder):
    def __init__(self, names: Collection[str], callback: Callable[[ModuleType], None]) -> None:
        self._names = frozenset(names)
        self._waiting = set(names)  # removal is what makes a module a thread's own; no lock that a fork could keep
        self._callback = callback
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        self.look_around()
        if fullname not in self._names or getattr(self._asking, "name", None) == fullname:
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
        for name in tuple(self._waiting):  # other threads import as well
            module = sys.modules.get(name)
            if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            try:
                self._waiting.remove(name)
            except KeyError:  # another thread was faster
                continue
            self._call(name, module)

    def loaded(self, module: ModuleType) -> None:
        """Calls back for a module whose code has just run, be it again."""
        name = module.__name__
        self._waiting.discard(name)
        self._call(name, module)

    def _call(self, name: str, module: ModuleType) -> None:
        try:
            self._callback(module)
        except BaseException:
            self._waiting.add(name)
            raise


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
