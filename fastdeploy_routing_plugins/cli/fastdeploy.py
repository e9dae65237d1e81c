"""``fd-routing check --fastdeploy``: what an engine would do with a ``--routing-replay-config``, here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.hosts.fastdeploy import PLUGIN_NAME
from fastdeploy_routing_plugins.hosts.fastdeploy.families import family_at
from fastdeploy_routing_plugins.hosts.fastdeploy.settings import (
    DEFAULTS,
    KNOWN_KEYS,
    RESPONSE,
    resolve_store,
    unknown_keys,
    wrong_types,
)
from fastdeploy_routing_plugins.resolving.jsontext import parse_text
from fastdeploy_routing_plugins.resolving.sources import STORE_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastdeploy_routing_plugins.cli.output import Output

VARIABLE = "FD_PLUGINS"
SUPPORTED = "ADE"
GROUP = "fastdeploy.reasoning_parser_plugins"


@dataclass(slots=True)
class Findings:
    """What was found.

    Attributes:
        plugin: Whether FastDeploy would call this package.
        fastdeploy: Where FastDeploy is installed, and its family; None if it is not installed here.
        engine: What the engine would do, in words.
        problems: What would stop it, or keep routing from arriving.
        store: The store that would be used, or None.
        hints: What to do, one for each problem that has one.
    """

    plugin: bool
    fastdeploy: dict[str, str] | None = None
    engine: str = ""
    problems: list[str] = field(default_factory=list)
    store: dict[str, Any] | None = None
    hints: list[str] = field(default_factory=list)


def command(out: Output, text: str) -> int:
    """Prints what the engine would do; returns the exit code, 1 if something is wrong."""
    given, _ = parse_text(text, "--fastdeploy")
    found = examine(given, os.environ)
    document = {
        "ok": not found.problems,
        "plugin": {"variable": VARIABLE, "value": os.environ.get(VARIABLE), "loaded": found.plugin},
        "fastdeploy": found.fastdeploy,
        "engine": found.engine,
        "problems": found.problems,
        "hints": found.hints,
        "store": found.store,
    }
    if not out.document(document):
        out.line(f"{VARIABLE}: {_plugin_text(found.plugin)}")
        here = found.fastdeploy
        where = "not installed here" if here is None else f"{_family_text(here)}, in {here['path']}"
        out.line(f"FastDeploy: {where}")
        out.line(f"engine: {found.engine}")
        if found.store is not None:
            out.line(f"store: {found.store['name']} from {found.store['distribution']} {found.store['version']}")
            for key, value in found.store["options"].items():
                out.line(f"  {key:16} {value!r}")
        for problem in found.problems:
            out.line(f"problem: {problem}")
        for hint in found.hints:
            out.line(f"hint: {hint}")
    return 0 if document["ok"] else 1


def examine(given: Mapping[str, Any], environ: Mapping[str, str]) -> Findings:
    """Finds out what an engine would do with a configuration; starts and opens nothing."""
    found = Findings(_loads_plugin(environ))
    if not found.plugin:
        found.problems.append(f"{VARIABLE} does not list {PLUGIN_NAME}, so FastDeploy does not load this package")
        found.hints.append(_plugin_hint(environ.get(VARIABLE)))
    if not _installed():
        found.problems.append(f"no installed package offers {PLUGIN_NAME} in {GROUP}")
        found.hints.append("install fastdeploy-routing-plugins into the environment that FastDeploy runs in")
    found.fastdeploy = _fastdeploy_here()
    supported = found.fastdeploy is None or found.fastdeploy["family"] in tuple(SUPPORTED)
    if not supported and found.fastdeploy is not None:
        found.problems.append(f"the FastDeploy that is installed here is {_family_text(found.fastdeploy)}")
        found.hints.append("use a FastDeploy 2.4, 2.5 or 2.6 release, or another version of this package")
    wrong = [*wrong_types(given), *unknown_keys(given, KNOWN_KEYS)]
    found.problems += wrong
    usable = {key: value for key, value in given.items() if key in KNOWN_KEYS and not wrong_types({key: value})}
    replay = SimpleNamespace(**{STORE_KEY: "local", "enable_routing_replay": False, **DEFAULTS, **usable})
    if not replay.enable_routing_replay:
        found.engine = "records no routing: enable_routing_replay is not true"
        found.problems.append("enable_routing_replay is not true")
    elif replay.routing_store_type == RESPONSE:
        found.engine = "sends routing with its replies, where FastDeploy can (2.6 and later); no store is used"
    else:
        _resolve(found, replay, environ, stops=bool(wrong) or not supported)
    return found


def _fastdeploy_here() -> dict[str, str] | None:
    """Looks for FastDeploy's package without importing it."""
    spec = find_spec("fastdeploy")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    return {"path": str(folder), "family": family_at(folder)}


def _family_text(fastdeploy: Mapping[str, str]) -> str:
    family = fastdeploy["family"]
    if not family:
        return "of no known family"
    return f"of family {family}" + ("" if family in SUPPORTED else ", which is not supported")


def _resolve(found: Findings, replay: Any, environ: Mapping[str, str], *, stops: bool) -> None:
    name = replay.routing_store_type
    try:
        resolved = resolve_store(replay, environ)
    except RoutingError as err:
        stops = True
        found.problems.append(err.message)
        if err.hint:
            found.hints.append(err.hint)
    else:
        found.store = {
            "name": resolved.name,
            "distribution": resolved.distribution,
            "version": resolved.version,
            "options": resolved.effective(),
        }
    if not found.plugin and name in ("local", "rdma"):
        found.engine = f"uses FastDeploy's own store {name!r}, not this package's"
    elif not found.plugin:
        found.engine = f"cannot use {name!r}: FastDeploy knows local and rdma; some versions drop routing silently"
    else:
        found.engine = "does not start" if stops else f"stores routing through this package, in {name!r}"


def _loads_plugin(environ: Mapping[str, str]) -> bool:
    return PLUGIN_NAME in environ.get(VARIABLE, "").split(",")


def _plugin_text(loaded: bool) -> str:
    value = os.environ.get(VARIABLE)
    shown = "not set" if value is None else repr(value)
    return f"{shown}: FastDeploy {'loads' if loaded else 'does not load'} this package"


def _plugin_hint(value: str | None) -> str:
    if value is not None and PLUGIN_NAME in map(str.strip, value.split(",")):
        return f"FastDeploy does not strip blanks: write {VARIABLE}={','.join(map(str.strip, value.split(',')))}"
    return f"set {VARIABLE}={','.join(filter(None, [value, PLUGIN_NAME]))} for the engine"


def _installed() -> bool:
    from importlib.metadata import entry_points  # noqa: PLC0415 - costs other commands 10 ms

    return bool(entry_points(group=GROUP, name=PLUGIN_NAME))
