"""The compatibility gate: a module is patched only if every name in question looks as expected."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

STRICT_VARIABLE = "FD_ROUTING_STRICT"
_DISTRIBUTIONS = ("fastdeploy-gpu", "fastdeploy", "fastdeploy-cpu", "fastdeploy-xpu", "fastdeploy-metax-gpu")
_WORDS = {"": False, "0": False, "false": False, "no": False, "off": False} | dict.fromkeys(
    ("1", "true", "yes", "on"), True
)
_collecting: ContextVar[list[str] | None] = ContextVar("collecting", default=None)
_log = logging.getLogger("fastdeploy_routing_plugins.fastdeploy")


class Unseen:
    """Stands for what cannot be looked at, and so is taken to fit."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Makes it callable, as far as anybody asks."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a function or method must look like.

    Attributes:
        path: Where it is, below the module: ``Class.method`` or ``function``.
        parameters: Its first parameters, in order; further ones must have defaults, and ``Arguments`` copes with them.
    """

    path: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What a call of a patched function passes.

    Attributes:
        known: The values of the parameters that were asked for.
        further: What else was given, by name, as far as it is not the default anyway.
    """

    known: tuple[Any, ...]
    further: dict[str, Any]


class Arguments:
    """Finds the arguments that a patch knows in whatever way a newer FastDeploy passes them.

    Args:
        function: FastDeploy's own function.
        known: The names of all its parameters that the patch knows.
    """

    def __init__(self, function: Callable[..., Any], known: Sequence[str]) -> None:
        self._signature = inspect.signature(function)
        self._name = getattr(function, "__qualname__", "a function")
        self._known = tuple(known)

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Returns what a call passes.

        Raises:
            TypeError: FastDeploy's function could not be called like this either.
        """
        bound = self._signature.bind(*args, **kwargs)
        further = {
            name: value
            for name, value in bound.arguments.items()
            if name not in self._known and not _same(value, self._signature.parameters[name].default)
        }
        bound.apply_defaults()
        return Call(tuple(bound.arguments[name] for name in self._known), further)

    def known_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments that the patch knows; others are ignored, with one warning.

        Raises:
            TypeError: as ``of``.
        """
        call = self.of(args, kwargs)
        if call.further:
            _warn_of_further(self._name, tuple(call.further))
        return call.known


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    return type(value) is type(default) and isinstance(value, (int, float, str)) and value == default


@functools.lru_cache(maxsize=64)
def _warn_of_further(function: str, names: tuple[str, ...]) -> None:
    _log.warning("routing stores: %s was given %s, which they do not know and ignore", function, ", ".join(names))


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


def strict(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a FastDeploy that cannot be patched must not start: whether ``FD_ROUTING_STRICT`` is on.

    Raises:
        ConfigError: its value is none of those that it may have.
    """
    value = (os.environ if environ is None else environ).get(STRICT_VARIABLE, "")
    try:
        return _WORDS[value.strip().lower()]
    except KeyError:
        raise ConfigError(
            f"{STRICT_VARIABLE} must be 1, true, yes or on, or 0, false, no or off, got {value!r:.80}"
        ) from None


def collecting() -> bool:
    """Whether this is a rehearsal (``collected``): FastDeploy is not there, and must not be imported."""
    return _collecting.get() is not None


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collects in a list what would be reported in the block, which then neither warns nor raises."""
    problems: list[str] = []
    token = _collecting.set(problems)
    try:
        yield problems
    finally:
        _collecting.reset(token)


def report(problem: str) -> None:
    """Says that this FastDeploy is left as it is, and why.

    Raises:
        UnsupportedError: ``FD_ROUTING_STRICT`` is on.
        ConfigError: it is neither on nor off.
    """
    if (problems := _collecting.get()) is not None:
        problems.append(problem)
        return
    text = f"this FastDeploy ({fastdeploy_version()}) is unknown to the routing stores: {problem}"
    if strict():
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
        if found is None or isinstance(found, Unseen):
            break
    return found


def _misfit(module: ModuleType, shape: Shape) -> str:
    found = _find(module, shape.path)
    if isinstance(found, Unseen):
        return ""
    if not callable(found):
        return f"{shape.path} is missing"
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        return f"{shape.path} is a coroutine"
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return f"{shape.path} has no signature"
    names = tuple(parameter.name for parameter in parameters)
    known, further = parameters[: len(shape.parameters)], parameters[len(shape.parameters) :]
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if names[: len(shape.parameters)] != shape.parameters or any(
        parameter.default is parameter.empty and parameter.kind not in optional for parameter in further
    ):
        return f"{shape.path} takes ({', '.join(names)}), not ({', '.join(shape.parameters)})"
    if any(parameter.kind is not parameter.POSITIONAL_OR_KEYWORD for parameter in known):
        return f"{shape.path} takes parameters by position alone, or by name alone"
    return ""
