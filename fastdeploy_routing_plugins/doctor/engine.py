"""FastDeploy, this package's hook in it, and the writer's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.cli import examining
from fastdeploy_routing_plugins.doctor.lines import Kind, Line
from fastdeploy_routing_plugins.errors import ConfigError
from fastdeploy_routing_plugins.hosts.fastdeploy import PLUGIN_NAME
from fastdeploy_routing_plugins.hosts.fastdeploy.gate import strict
from fastdeploy_routing_plugins.writer.limits import WriterLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.cli.examining import Findings
    from fastdeploy_routing_plugins.doctor.case import Case


def check_fastdeploy(case: Case) -> Iterator[Line]:
    """Looks whether FastDeploy is installed, fits, and loads this package. Imports nothing of it."""
    found = examining.look_at_engine(case.environ)
    yield _fastdeploy(found)
    yield _hook(found, case)
    try:
        strict(case.environ)
    except ConfigError as err:
        yield Line("hook", "bad", err.message, err.hint)


def _fastdeploy(found: Findings) -> Line:
    here = found.fastdeploy
    if here is None:
        return Line("fastdeploy", "info", "not installed here, and not needed by trainers and services")
    text = f"{examining.family_text(here)}, in {here['path']}"
    if found.problems:
        kind: Kind = "bad" if found.plugin else "warn"
        return Line("fastdeploy", kind, f"{text}: {'; '.join(found.problems)}", "; ".join(found.hints))
    if found.warnings:
        return Line("fastdeploy", "warn", f"{text}: {'; '.join(found.warnings)}")
    return Line("fastdeploy", "good", f"{text}; this package fits it")


def _hook(found: Findings, case: Case) -> Line:
    variable = examining.VARIABLE
    value = case.environ.get(variable)
    said = f"{variable}={value}" if value else f"{variable} is not set"
    if not examining.is_offered():
        text = f"no installed package offers {PLUGIN_NAME} in {examining.GROUP}"
        return Line("hook", "bad", text, "install fastdeploy-routing-plugins into this environment")
    if found.plugin:
        return Line("hook", "good", f"{said}: a FastDeploy that starts with it stores routing through this package")
    if found.fastdeploy is None:
        return Line("hook", "info", f"{said}, which matters where FastDeploy runs")
    return Line("hook", "warn", f"{said}: FastDeploy does not load this package", examining.plugin_hint(value))


def check_writer(case: Case) -> Iterator[Line]:
    """Looks at the writer's limits."""
    limits = WriterLimits.load()
    size = "a quarter of the free room" if limits.arena_bytes is None else f"{limits.arena_bytes >> 20:,} MiB"
    spill = f", spills to {limits.spill_dir}" if limits.spill_dir else ""
    yield Line("writer", "good", f"arena of {size} in {limits.arena_dir}{spill}")
