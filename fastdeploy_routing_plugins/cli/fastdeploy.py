"""``fd-routing check --fastdeploy``: prints what an engine would do with a ``--routing-replay-config``, here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.cli.examining import VARIABLE, examine, family_text
from fastdeploy_routing_plugins.hosts.fastdeploy.gate import STRICT_VARIABLE
from fastdeploy_routing_plugins.resolving.jsontext import parse_text

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.cli.examining import Findings
    from fastdeploy_routing_plugins.cli.output import Output


def command(out: Output, text: str) -> int:
    """Prints what the engine would do; returns the exit code, 1 if something is wrong."""
    given, _ = parse_text(text, "--fastdeploy")
    found = examine(given, os.environ)
    document = {
        "ok": not found.problems,
        "plugin": {"variable": VARIABLE, "value": os.environ.get(VARIABLE), "loaded": found.plugin},
        "strict": {"variable": STRICT_VARIABLE, "value": os.environ.get(STRICT_VARIABLE), "on": found.strict},
        "fastdeploy": found.fastdeploy,
        "engine": found.engine,
        "problems": found.problems,
        "warnings": found.warnings,
        "hints": found.hints,
        "store": found.store,
    }
    if not out.document(document):
        _print(out, found)
    return 0 if document["ok"] else 1


def _print(out: Output, found: Findings) -> None:
    loads = "loads" if found.plugin else "does not load"
    out.line(f"{VARIABLE}: {_value(VARIABLE)}: FastDeploy {loads} this package")
    out.line(f"{STRICT_VARIABLE}: {_value(STRICT_VARIABLE)}: {_strict_text(found)}")
    here = found.fastdeploy
    where = "not installed here" if here is None else f"{family_text(here)}, in {here['path']}"
    out.line(f"FastDeploy: {where}")
    out.line(f"engine: {found.engine}")
    if found.store is not None:
        out.line(f"store: {found.store['name']} from {found.store['distribution']} {found.store['version']}")
        for key, value in found.store["options"].items():
            out.line(f"  {key:16} {value!r}")
    for kind, texts in (("problem", found.problems), ("warning", found.warnings), ("hint", found.hints)):
        for text in texts:
            out.line(f"{kind}: {text}")


def _value(variable: str) -> str:
    value = os.environ.get(variable)
    return "not set" if value is None else repr(value)


def _strict_text(found: Findings) -> str:
    if not found.plugin:
        return "means nothing without this package"
    if found.strict is None:
        return "cannot be understood"
    what = "does not start" if found.strict else "gets a warning"
    return f"a FastDeploy that is not as expected {what}"
