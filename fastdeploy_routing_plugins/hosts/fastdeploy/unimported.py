"""What the hook would say of a FastDeploy, found out from its files: none of its code runs.

Every watched module is rebuilt from its source: its classes, and functions with the same parameters and no body. The
patches themselves then run on what was rebuilt, so the answer is the one that an engine would get. What a file takes
from outside FastDeploy cannot be seen, and counts as fitting.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .families import family_of
from .gate import Unseen, collected
from .patching import WATCHED, patch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "fastdeploy"
# Others are taken to keep the parameters.
_KEPT_DECORATORS: dict[str, Any] = {"staticmethod": staticmethod, "classmethod": classmethod, "property": property}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class Comparison:
    """How a FastDeploy compares with what the hook expects.

    Attributes:
        misfits: By module: what the hook would report. Only modules that do not fit.
        unread: Modules whose source this Python cannot read, and why.
        patched: Modules that were found and that the hook would patch, as far as they matter to it.
        checks_options: Whether the engine would check the keys of ``--routing-replay-config``.
    """

    misfits: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    patched: list[str] = field(default_factory=list)
    checks_options: bool = False


def compare(folder: Path) -> Comparison:
    """Compares the package ``fastdeploy`` in a folder."""
    made, sources = Comparison(), Sources(folder)
    for name in sorted(WATCHED):
        try:
            module = sources.module(name)
        except (OSError, SyntaxError, ValueError, RecursionError) as err:
            made.unread[name] = f"{type(err).__name__}: {err}"
            continue
        if module is None:
            continue
        if name.endswith(".routing_indices_cache"):
            if isinstance(vars(module).get("get_routing_store"), Unseen):
                made.unread[name] = "get_routing_store, which tells its family, comes from elsewhere"
                continue
            if family_of(module) in ("B", "C"):
                continue  # the hook refuses it by its family
        with collected() as problems:
            patch(module)
        if problems:
            made.misfits[name] = "; ".join(dict.fromkeys(problems))
        else:
            made.patched.append(name)
        if name == f"{PACKAGE}.engine.args_utils":
            parts = vars(getattr(module, "EngineArgs", object)).values()
            made.checks_options = any(hasattr(part, "__wrapped__") for part in parts)
    return made


class Sources:
    """The modules below a folder, rebuilt from their source, each name once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bodies: dict[str, list[ast.stmt] | None] = {}
        self._names: dict[tuple[str, str], Any] = {}

    def module(self, name: str) -> ModuleType | None:
        """Returns a module with its own names and those it imports from FastDeploy, or None if it has no file.

        Raises:
            OSError, SyntaxError, ValueError, RecursionError: its source cannot be read.
        """
        body = self._body(name)
        if body is None:
            return None
        module = ModuleType(name)
        for bound in dict.fromkeys(bound for node in body for bound in _names(node)):
            setattr(module, bound, self._named(name, bound))
        return module

    def _body(self, name: str) -> list[ast.stmt] | None:
        if name not in self._bodies:
            package, *parts = name.split(".")
            path = self._folder.joinpath(*parts)
            files = (path.with_suffix(".py"), path / "__init__.py") if parts else (path / "__init__.py",)
            file = next((file for file in files if file.is_file()), None)
            if package != PACKAGE or file is None:
                self._bodies[name] = None
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # strange escapes in another's source
                    self._bodies[name] = list(_statements(ast.parse(file.read_bytes(), str(file)).body))
        return self._bodies[name]

    def _named(self, module: str, name: str) -> Any:
        """Returns what a module's name stands for: a class, a function, None, or something unseen."""
        key = module, name
        if key not in self._names:
            self._names[key] = Unseen()  # while it is looked for, which may lead here again
            try:
                body = self._body(module) or []
            except (OSError, SyntaxError, ValueError, RecursionError):
                body = []
            last = next((node for node in reversed(body) if name in _names(node)), None)
            if isinstance(last, ast.ClassDef):
                self._names[key] = self._built(module, last)
            elif isinstance(last, ast.ImportFrom):
                original = next(alias.name for alias in last.names if (alias.asname or alias.name) == name)
                self._names[key] = self._named(_source_of(module, last), original)
            elif last is not None:
                self._names[key] = _value(last)
        return self._names[key]

    def _built(self, module: str, node: ast.ClassDef) -> type:
        parts: dict[str, Any] = {"__module__": module}
        for inner in _statements(node.body):
            parts.update({name: _value(inner) for name in _names(inner)})
        bases = [self._base(module, base) for base in node.bases]
        try:
            return _Meta(node.name, tuple([base for base in bases if base is not None]), parts)
        except TypeError:  # its bases cannot be combined as they are rebuilt here
            return _Meta(node.name, (_UnseenBase,), parts)

    def _base(self, module: str, base: ast.expr) -> type | None:
        while isinstance(base, ast.Subscript):  # Generic[T]
            base = base.value
        name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
        if name in ("object", "ABC", "Generic", "Protocol"):
            return None
        found = self._named(module, name) if isinstance(base, ast.Name) else None
        return found if isinstance(found, type) else _UnseenBase


class _Meta(type):
    """Classes that are rebuilt; below an unseen base every public name may be there."""

    def __getattr__(cls, name: str) -> Any:
        if _UnseenBase in cls.__mro__ and not name.startswith("__"):
            return Unseen()
        raise AttributeError(name)


class _UnseenBase(metaclass=_Meta):
    """Stands for a base class whose source is not there."""

    __init__: Any = Unseen()


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields what a module or class executes; of alternatives the likelier one last, so that it wins."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements(node.orelse)
            if "TYPE_CHECKING" not in ast.dump(node.test):
                yield from _statements(node.body)
        elif isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)
            yield from _statements([*node.body, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.With):
            yield from _statements(node.body)
        else:
            yield node


def _names(node: ast.stmt) -> list[str]:
    """Returns the names that a statement binds in a module or class."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("__")]


def _value(node: ast.stmt) -> Any:
    """Returns what a statement binds: a function, None, or something unseen."""
    if isinstance(node, _FUNCTIONS):
        return _function(node)
    value = getattr(node, "value", None)
    return None if isinstance(value, ast.Constant) and value.value is None else Unseen()


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
    """Returns a function that shows the parameters of another and does nothing."""

    def plain(*args: Any, **kwargs: Any) -> None: ...

    async def coroutine(*args: Any, **kwargs: Any) -> None: ...

    made: Any = coroutine if isinstance(node, ast.AsyncFunctionDef) else plain
    made.__name__ = node.name
    made.__signature__ = inspect.Signature(_parameters(node.args))
    for decorator in reversed(node.decorator_list):
        if isinstance(decorator, ast.Name) and decorator.id in _KEPT_DECORATORS:
            made = _KEPT_DECORATORS[decorator.id](made)
    return made


def _parameters(arguments: ast.arguments) -> list[inspect.Parameter]:
    """Returns parameters without annotations; every default is None."""
    kinds = inspect.Parameter
    listed: list[tuple[str, Any]] = [(each.arg, kinds.POSITIONAL_ONLY) for each in arguments.posonlyargs]
    listed += [(each.arg, kinds.POSITIONAL_OR_KEYWORD) for each in arguments.args]
    first_default = len(listed) - len(arguments.defaults)
    found = [
        inspect.Parameter(name, kind, default=None if index >= first_default else kinds.empty)
        for index, (name, kind) in enumerate(listed)
    ]
    if arguments.vararg is not None:
        found.append(inspect.Parameter(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        value = kinds.empty if default is None else None
        found.append(inspect.Parameter(each.arg, kinds.KEYWORD_ONLY, default=value))
    if arguments.kwarg is not None:
        found.append(inspect.Parameter(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return found


def _source_of(module: str, node: ast.ImportFrom) -> str:
    """Returns the full name of the module that a ``from`` names."""
    if not node.level:
        return node.module or ""
    parents = module.split(".")[: -node.level]
    return ".".join([*parents, *filter(None, [node.module])])
