"""From a candidate to its checked ``StoreSpec`` and config class: where a plugin's code is imported and called.

Each failure becomes an error that says whose fault it is; a plugin that ends its process at import does not end ours.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from .. import hookspecs
from ..config import option_names
from ..errors import IncompatibleStoreError, InvalidPluginError, RoutingError
from ..spec import Capability, StoreSpec
from .faults import attempt, import_error, invalid, missing_dependency, packaging_fault, plugin_fault, short, text_of
from .suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..discovery import Candidate
    from ..spec import StoreContext

HOOK = "fd_routing_store"
EXPECTED = f"expected a module with `@hookimpl def {HOOK}() -> StoreSpec`"
CLASS_HINT = "the entry point names a class; name a module or an instance"
T = TypeVar("T")
_TARGET = re.compile(r"(?P<module>\w+(?:\.\w+)*)(?::(?P<attribute>\w+(?:\.\w+)*))?")


def import_plugin(candidate: Candidate) -> Any:
    """Imports the module, or the object in it, that the entry point names.

    Raises:
        StoreLoadError: it is not there, or its import fails.
        MissingDependencyError: it needs a module that is not installed.
    """
    match = _TARGET.fullmatch(candidate.target)
    if match is None:
        raise packaging_fault(candidate, f"its entry point {candidate.target!r} is no module or module:attribute")
    module, err = attempt(lambda: importlib.import_module(match["module"]))
    if err is not None:
        raise import_error(candidate, match["module"], err) from err
    plugin = module
    for name in filter(None, (match["attribute"] or "").split(".")):
        owner = plugin
        plugin, err = attempt(lambda owner=owner, name=name: getattr(owner, name))  # type: ignore[misc]
        if err is not None:
            raise packaging_fault(candidate, f"module {match['module']!r} has no {match['attribute']!r}") from err
    return plugin


def call_hook(candidate: Candidate, plugin: Any) -> StoreSpec:
    """Registers the plugin in a fresh plugin manager and returns the specification that its hook returns.

    Raises:
        InvalidPluginError: there is no such hook, it has other arguments, or it returns something else.
        MissingDependencyError: it needs a module that is not installed.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    _, err = attempt(lambda: _register(manager, plugin, candidate.name))
    if err is not None:
        raise _hook_fault(candidate, plugin, err) from err
    if not manager.hook.fd_routing_store.get_hookimpls():
        raise invalid(candidate, _why_no_hook(plugin))
    results, err = attempt(manager.hook.fd_routing_store)
    if isinstance(err, ModuleNotFoundError):
        raise missing_dependency(candidate, err, "its hook") from err
    if err is not None:
        hint = CLASS_HINT if inspect.isclass(plugin) else "is it for another version?"
        raise invalid(candidate, f"{EXPECTED}; the hook raised {text_of(err)}", hint) from err
    return _only_spec(candidate, results)


def check_spec(candidate: Candidate, spec: StoreSpec) -> None:
    """Checks every field of a specification but the version's value.

    Raises:
        InvalidPluginError: names every field that is wrong.
    """
    wrong = [
        f"{name} must be {what}, got {short(getattr(spec, name))}"
        for name, what, ok in (
            ("name", "a str", isinstance(spec.name, str)),
            ("api_version", "a pair of integers like (1, 0)", _is_version(spec.api_version)),
            ("summary", "a str", isinstance(spec.summary, str)),
            ("load_config", "callable", callable(spec.load_config)),
            ("create", "callable", callable(spec.create)),
            ("capabilities", "a Capability", isinstance(spec.capabilities, Capability)),
            ("preflight", "callable or None", spec.preflight is None or callable(spec.preflight)),
            ("install_hint", "a str", isinstance(spec.install_hint, str)),
            ("host_keys", "a mapping of str to str", _is_text_mapping(spec.host_keys)),
        )
        if not ok
    ]
    if wrong:
        raise invalid(candidate, f"in its StoreSpec {'; '.join(wrong)}")
    if spec.name != candidate.name:
        raise invalid(
            candidate,
            f"its StoreSpec is named {spec.name!r}, its entry point {candidate.name!r}",
            "the two must be equal",
        )


def check_api(candidate: Candidate, spec: StoreSpec, host_api: tuple[int, int]) -> None:
    """Compares the store API that the plugin was written for with the host's.

    Raises:
        IncompatibleStoreError: another major version, or a newer minor one.
    """
    (major, minor), (host_major, host_minor) = spec.api_version, host_api
    if major == host_major and minor <= host_minor:
        return
    upgrade = "fastdeploy-routing-plugins" if (major, minor) > (host_major, host_minor) else candidate.distribution
    raise IncompatibleStoreError(
        f"store {candidate.name!r} of {candidate.distribution} {candidate.version} is written for store API "
        f"{major}.{minor}, the host has {host_major}.{host_minor}",
        hint=f"upgrade {upgrade}",
        plugin_api=(major, minor),
        host_api=(host_major, host_minor),
    )


def load_config_class(candidate: Candidate, spec: StoreSpec) -> type[Any]:
    """Returns the store's config class, checked together with the host keys that map onto it.

    Raises:
        InvalidPluginError: it is no dataclass of options, or a host key stands for an option that it has not.
        MissingDependencyError: it needs a module that is not installed.
        StoreLoadError: its import fails otherwise.
    """
    config_class = _call(candidate, spec, "load_config", spec.load_config)
    if config_class is None:
        raise invalid(candidate, "load_config returned None, expected a dataclass")
    try:
        names = option_names(config_class)
    except InvalidPluginError as problem:
        raise invalid(candidate, problem.message, problem.hint) from problem
    for key, option in spec.host_keys.items():
        if option not in names:
            raise invalid(candidate, f"host key {key!r} stands for {option!r}, which is no option of it")
    return config_class


def preflight(candidate: Candidate, spec: StoreSpec, config: Any) -> None:
    """Lets the store say whether everything that it needs is installed.

    Raises:
        MissingDependencyError: something is not.
        RoutingError: whatever else the store's own check raises.
        StoreLoadError: the check itself is broken.
    """
    if spec.preflight is not None:
        _call(candidate, spec, "preflight", partial(spec.preflight, config))


def create(candidate: Candidate, spec: StoreSpec, context: StoreContext) -> object:
    """Returns whatever the plugin makes of its configuration.

    Raises:
        MissingDependencyError: something that it needs is not installed.
        RoutingError: whatever else the plugin raises on purpose.
        StoreLoadError: it fails otherwise.
    """
    return _call(candidate, spec, "create", partial(spec.create, context))


def _call(candidate: Candidate, spec: StoreSpec, what: str, action: Callable[[], T]) -> T | None:
    result, err = attempt(action)
    if isinstance(err, ImportError):
        raise missing_dependency(candidate, err, what, spec.install_hint) from err
    if isinstance(err, RoutingError):
        raise err
    if err is not None:
        raise plugin_fault(candidate, what, err) from err
    return result


def _register(manager: pluggy.PluginManager, plugin: Any, name: str) -> None:
    manager.register(plugin, name)
    manager.check_pending()


def _hook_fault(candidate: Candidate, plugin: Any, err: BaseException) -> InvalidPluginError:
    """Explains what pluggy refused, with the author's own signature."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip() and not line.startswith("Plugin ")]
    unknown = re.match(r"unknown hook '(\w+)'", lines[0]) if lines else None
    if unknown is not None:
        mine = f"it implements {unknown[1]}{_signature(plugin, unknown[1])}"
        return invalid(candidate, f"{EXPECTED}, {mine}", did_you_mean(unknown[1], [HOOK]))
    hint = CLASS_HINT if inspect.isclass(plugin) else ""
    return invalid(candidate, f"{EXPECTED}; {'; '.join(lines) or text_of(err)}", hint)


def _why_no_hook(plugin: Any) -> str:
    if callable(getattr(plugin, HOOK, None)):
        return f"{EXPECTED}; its {HOOK}{_signature(plugin, HOOK)} lacks our @hookimpl"
    if callable(plugin) and getattr(plugin, "__name__", "") == HOOK:
        return f"{EXPECTED}; the entry point names the function, name its module instead"
    near = [name for name in dir(plugin) if not name.startswith("__") and did_you_mean(name, [HOOK])]
    return f"{EXPECTED}; it has no hook" + (f", only {near[0]!r}" if near else "")


def _only_spec(candidate: Candidate, found: Any) -> StoreSpec:
    results = found if isinstance(found, list) else [] if found is None else [found]  # a wrapper may return anything
    for result in results:
        if inspect.iscoroutine(result):
            result.close()
            raise invalid(candidate, f"{EXPECTED}; the hook is `async def`")
    if not results:
        raise invalid(candidate, f"{EXPECTED}; the hook returned None")
    if len(results) > 1:
        raise invalid(candidate, f"expected one StoreSpec, got {len(results)}: {', '.join(map(short, results))}")
    if not isinstance(results[0], StoreSpec):
        raise invalid(candidate, f"expected a StoreSpec, got {short(results[0])}")
    return results[0]


def _signature(plugin: Any, name: str) -> str:
    try:
        return str(inspect.signature(getattr(plugin, name)))
    except (TypeError, ValueError, AttributeError):
        return "(...)"


def _is_version(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(type(part) is int and part >= 0 for part in value)


def _is_text_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for item in value.items() for text in item)
