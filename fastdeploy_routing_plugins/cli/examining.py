"""What an engine would do with a ``--routing-replay-config`` in this environment, found out without starting one."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.errors import ConfigError, RoutingError
from fastdeploy_routing_plugins.hosts.fastdeploy import PLUGIN_NAME
from fastdeploy_routing_plugins.hosts.fastdeploy.families import family_at
from fastdeploy_routing_plugins.hosts.fastdeploy.gate import STRICT_VARIABLE, strict
from fastdeploy_routing_plugins.hosts.fastdeploy.settings import (
    DEFAULTS,
    KNOWN_KEYS,
    RESPONSE,
    resolve_store,
    store_options,
    unknown_keys,
    wrong_types,
)
from fastdeploy_routing_plugins.hosts.fastdeploy.unimported import Comparison, compare
from fastdeploy_routing_plugins.resolving.sources import STORE_KEY
from fastdeploy_routing_plugins.writer.limits import WriterLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "FD_PLUGINS"
SUPPORTED = ("A", "D", "E")
REFUSED = ("B", "C")
GROUP = "fastdeploy.reasoning_parser_plugins"
OFF = "records no routing: enable_routing_replay is not true"
_ENABLE = "enable_routing_replay"
_STORE_MODULE = "fastdeploy.cache_manager.routing_store"
_CARRIERS = (
    "fastdeploy.cache_manager.routing_cache_manager",
    "fastdeploy.model_executor.layers.moe.routing_indices_cache",
)


@dataclass(slots=True)
class Findings:
    """What was found.

    Attributes:
        plugin: Whether FastDeploy would call this package.
        strict: Whether a FastDeploy that is not as expected must not start; None if the variable says nothing usable.
        fastdeploy: Where FastDeploy is installed, and its family; None if it is not installed here.
        engine: What the engine would do, in words.
        problems: What would stop it, or keep routing from arriving.
        warnings: What could not be looked at.
        store: The store that would be used, or None.
        hints: What to do, one for each problem that has one.
    """

    plugin: bool
    strict: bool | None = False
    fastdeploy: dict[str, str] | None = None
    engine: str = ""
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    store: dict[str, Any] | None = None
    hints: list[str] = field(default_factory=list)

    def refuse(self, err: RoutingError) -> None:
        """Adds an error to the problems, with its hint."""
        self.problems.append(err.message)
        if err.hint:
            self.hints.append(err.hint)


def examine(given: Mapping[str, Any], environ: Mapping[str, str]) -> Findings:
    """Finds out what an engine would do with a configuration; starts, opens and imports nothing of FastDeploy's."""
    found = Findings(loads_plugin(environ))
    _look_for_plugin(found, environ)
    try:
        found.strict = strict(environ)
    except ConfigError as err:
        found.strict = None
        found.refuse(err)
    seen = _look_at_fastdeploy(found)
    wrong = wrong_types(given)
    usable = {key: value for key, value in given.items() if key in KNOWN_KEYS and not wrong_types({key: value})}
    replay = SimpleNamespace(**{STORE_KEY: "local", _ENABLE: False, **DEFAULTS, **usable})
    if not KNOWN_KEYS.issuperset(given):
        wrong += unknown_keys(given, KNOWN_KEYS, store_options(replay))
    found.problems += wrong
    found.engine = _engine(found, replay, given, seen, wrong=bool(wrong), environ=environ)
    return found


def look_at_engine(environ: Mapping[str, str]) -> Findings:
    """Finds out whether FastDeploy is here and fits this package, whatever an engine's configuration says."""
    found = Findings(loads_plugin(environ))
    _look_at_fastdeploy(found)
    if found.fastdeploy is None:
        found.warnings.clear()
    return found


def _engine(
    found: Findings,
    replay: Any,
    given: Mapping[str, Any],
    seen: Comparison,
    *,
    wrong: bool,
    environ: Mapping[str, str],
) -> str:
    """Returns what the engine does, in the order in which it would come to it; adds what is wrong with the store."""
    name = replay.routing_store_type
    family = None if found.fastdeploy is None else found.fastdeploy["family"]
    checked = found.fastdeploy is None or seen.checks_options
    if not found.plugin:
        return _without_plugin(found, replay, given, environ)
    stops = (wrong and checked) or (bool(seen.misfits) and found.strict is not False)
    if stops:
        if (replay.enable_routing_replay or given.get(_ENABLE)) and name != RESPONSE:
            _resolve(found, replay, environ)  # all that is wrong is said at once
        return "does not start"
    if not replay.enable_routing_replay:
        found.problems.append(f"{_ENABLE} is not true")
        return OFF
    if family in REFUSED:
        return "does not start"
    fits = family is None or (family in SUPPORTED and seen.misfits.keys().isdisjoint(_CARRIERS))
    if name == RESPONSE:
        return _with_response(found, family if fits else "")
    usable = _resolve(found, replay, environ)
    if (not usable or found.strict is None) and (checked or fits):
        return "does not start"
    if not fits:
        return "starts with one warning, and uses FastDeploy's own stores: this package leaves it as it is"
    if _STORE_MODULE in seen.misfits:
        return "does not start"
    return (
        f"would store routing through this package, in {name!r}, if FastDeploy were installed here"
        if family is None
        else f"stores routing through this package, in {name!r}"
    )


def _without_plugin(found: Findings, replay: Any, given: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    if not given.get(_ENABLE):  # any other value is true to FastDeploy
        found.problems.append(f"{_ENABLE} is not true")
        return OFF
    name = replay.routing_store_type
    if name == RESPONSE:
        return "sends routing with its replies, where FastDeploy can (2.6 and later); no store is used"
    _resolve(found, replay, environ)
    if name in ("local", "rdma"):
        return f"uses FastDeploy's own store {name!r}, not this package's"
    return f"cannot use {name!r}: FastDeploy knows local and rdma; some versions drop routing silently"


def _with_response(found: Findings, family: str | None) -> str:
    if family in ("A", "D"):
        found.problems.append(f"this FastDeploy, of family {family}, cannot send routing with its replies")
        found.hints.append(f'"{STORE_KEY}": "{RESPONSE}" needs FastDeploy 2.6; name a store')
        return "does not start"
    where = "" if family == "E" else ", where FastDeploy can (2.6 and later)"
    return f"sends routing with its replies{where}; no store is used"


def _resolve(found: Findings, replay: Any, environ: Mapping[str, str]) -> bool:
    """Looks for the store and the writer's limits; returns whether both can be used."""
    usable = True
    try:
        resolved = resolve_store(replay, environ)
    except RoutingError as err:
        found.refuse(err)
        usable = False
    else:
        found.store = {
            "name": resolved.name,
            "distribution": resolved.distribution,
            "version": resolved.version,
            "options": resolved.effective(),
        }
    if found.plugin:
        try:
            WriterLimits.load()
        except RoutingError as err:
            found.refuse(err)
            usable = False
    return usable


# --- FastDeploy -----------------------------------------------------------------------------------------------------


def _look_at_fastdeploy(found: Findings) -> Comparison:
    """Looks for FastDeploy's package, and compares it with what the hook expects; does not import it."""
    spec = find_spec("fastdeploy")
    if spec is None or not spec.submodule_search_locations:
        found.warnings.append("FastDeploy is not installed here, so whether this package fits it was not looked at")
        return Comparison()
    folder = Path(next(iter(spec.submodule_search_locations)))
    found.fastdeploy = {"path": str(folder), "family": family_at(folder)}
    seen = compare(folder)
    if found.fastdeploy["family"] not in SUPPORTED:
        found.problems.append(f"the FastDeploy that is installed here is {family_text(found.fastdeploy)}")
        found.hints.append("use a FastDeploy 2.4, 2.5 or 2.6 release, or another version of this package")
    elif seen.misfits:
        found.hints.append(
            "this package does not know this FastDeploy; use a 2.4, 2.5 or 2.6 release, or upgrade "
            "fastdeploy-routing-plugins"
        )
    found.problems += seen.misfits.values()
    found.warnings += [f"{name} was not compared with what is expected: {why}" for name, why in seen.unread.items()]
    if seen.misfits and not found.strict:
        found.hints.append(f"with {STRICT_VARIABLE}=1 such an engine does not start, instead of losing routing")
    return seen


def family_text(fastdeploy: Mapping[str, str]) -> str:
    """Returns what a FastDeploy is, in words."""
    family = fastdeploy["family"]
    if not family:
        return "of no known family"
    return f"of family {family}" + ("" if family in SUPPORTED else ", which is not supported")


# --- the plugin -----------------------------------------------------------------------------------------------------


def loads_plugin(environ: Mapping[str, str]) -> bool:
    """Whether FastDeploy would call this package."""
    return PLUGIN_NAME in environ.get(VARIABLE, "").split(",")


def _look_for_plugin(found: Findings, environ: Mapping[str, str]) -> None:
    if not found.plugin:
        found.problems.append(f"{VARIABLE} does not list {PLUGIN_NAME}, so FastDeploy does not load this package")
        found.hints.append(plugin_hint(environ.get(VARIABLE)))
    if not is_offered():
        found.problems.append(f"no installed package offers {PLUGIN_NAME} in {GROUP}")
        found.hints.append("install fastdeploy-routing-plugins into the environment that FastDeploy runs in")


def plugin_hint(value: str | None) -> str:
    """Returns what to do if FastDeploy does not call this package, as the variable has this value."""
    if value is not None and PLUGIN_NAME in map(str.strip, value.split(",")):
        return f"FastDeploy does not strip blanks: write {VARIABLE}={','.join(map(str.strip, value.split(',')))}"
    return f"set {VARIABLE}={','.join(filter(None, [value, PLUGIN_NAME]))} for the engine"


def is_offered() -> bool:
    """Whether an installed package offers this package's plugin to FastDeploy."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - costs other commands 10 ms

    return bool(entry_points(group=GROUP, name=PLUGIN_NAME))
