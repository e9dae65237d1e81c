"""The compatibility gate: a module is patched only if every name in question looks as expected."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

STRICT_VARIABLE = "FD_ROUTING_STRICT"
_DISTRIBUTIONS = ("fastdeploy-gpu", "fastdeploy", "fastdeploy-cpu", "fastdeploy-xpu", "fastdeploy-metax-gpu")
_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a function or method must look like.

    Attributes:
        path: Where it is, below the module: ``Class.method`` or ``function``.
        parameters: Its first parameters, in order; further ones must have defaults.
    """

    path: str
    parameters: tuple[str, ...]


def misfits(module: ModuleType, shapes: Sequence[Shape]) -> list[str]:
    """Returns what does not look as expected, for people; nothing if all does."""
    return [problem for shape in shapes if (problem := _misfit(module, shape))]


def has(module: ModuleType, path: str) -> bool:
    """Whether a module has ``Class.method`` or ``name``."""
    return _find(module, path) is not None


def parameters_of(module: ModuleType, path: str) -> tuple[str, ...]:
    """Returns the names of a function's parameters; nothing if there is no such function."""
    found = _find(module, path)
    try:
        return tuple(inspect.signature(found).parameters) if callable(found) else ()
    except (TypeError, ValueError):
        return ()


def is_coroutine(module: ModuleType, path: str) -> bool:
    """Whether a function is declared with ``async def``."""
    return inspect.iscoroutinefunction(_find(module, path))


def fits(module: ModuleType, shapes: Sequence[Shape]) -> bool:
    """Checks a module; what does not fit is reported once, and stops the import with ``FD_ROUTING_STRICT=1``.

    Raises:
        UnsupportedError: it does not fit, and the variable is set.
    """
    problems = misfits(module, shapes)
    if problems:
        report(f"{module.__name__} is not as expected: {'; '.join(problems)}")
    return not problems


def report(problem: str) -> None:
    """Says that this FastDeploy is left as it is, and why.

    Raises:
        UnsupportedError: ``FD_ROUTING_STRICT=1`` is set.
    """
    text = f"this FastDeploy ({fastdeploy_version()}) is unknown to the routing stores: {problem}"
    if os.environ.get(STRICT_VARIABLE, "") not in ("", "0"):
        raise UnsupportedError(text, hint=f"{STRICT_VARIABLE} is set; upgrade fastdeploy-routing-plugins, or unset it")
    _warn_once(text)


@functools.lru_cache(maxsize=64)
def _warn_once(text: str) -> None:
    _log.warning("%s; it is left untouched, so its own stores are in use", text)


def fastdeploy_version() -> str:
    """Returns FastDeploy's version as far as it can be found out."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    # Its own __getattr__ prints, so only what is really there is looked at.
    return str(vars(sys.modules["fastdeploy"]).get("__version__", "unknown") if "fastdeploy" in sys.modules else "")


def _find(module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = vars(found).get(name) if found is module else getattr(found, name, None)
        if found is None:
            return None
    return found


def _misfit(module: ModuleType, shape: Shape) -> str:
    found = _find(module, shape.path)
    if not callable(found):
        return f"{shape.path} is missing"
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return f"{shape.path} has no signature"
    names = tuple(parameter.name for parameter in parameters)
    further = parameters[len(shape.parameters) :]
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if names[: len(shape.parameters)] != shape.parameters or any(
        parameter.default is parameter.empty and parameter.kind not in optional for parameter in further
    ):
        return f"{shape.path} takes ({', '.join(names)}), not ({', '.join(shape.parameters)})"
    return ""
