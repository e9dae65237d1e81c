"""``fd-routing show``: what one store's plugin declares, and the options that it understands."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.config import CommonOptions
from fastdeploy_routing_plugins.discovery import scan
from fastdeploy_routing_plugins.resolving import loading, lookup
from fastdeploy_routing_plugins.resolving.options import describe
from fastdeploy_routing_plugins.resolving.sources import split_name
from fastdeploy_routing_plugins.spec import API_VERSION, Capability

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.cli.output import Output
    from fastdeploy_routing_plugins.resolving.options import OptionInfo


@click.command("show")
@click.argument("name")
@common_options
@click.pass_obj
def command(out: Output, name: str) -> int:
    """Load the plugin of store NAME and show what it declares: version, capabilities, options.

    NAME may be name@distribution. Its backend is not loaded, nothing is opened.
    """
    short, distribution = split_name(name)
    lookup.check_allowed(short, os.environ)
    candidate = lookup.find(short, distribution, scan())
    spec = loading.call_hook(candidate, loading.import_plugin(candidate))
    loading.check_spec(candidate, spec)
    options = [(info, "store") for info in describe(loading.load_config_class(candidate, spec))]
    options += [(info, "every store") for info in describe(CommonOptions)]
    can = [flag.name for flag in Capability if flag.value and flag in spec.capabilities]
    document = {
        "name": spec.name,
        "summary": spec.summary,
        "distribution": candidate.distribution,
        "version": candidate.version,
        "target": candidate.target,
        "location": candidate.location,
        "api_version": list(spec.api_version),
        "host_api_version": list(API_VERSION),
        "capabilities": can,
        "install_hint": spec.install_hint,
        "host_keys": dict(spec.host_keys),
        "options": [_option(info, scope) for info, scope in options],
    }
    if out.document(document):
        return 0
    for label, text in (
        ("name", spec.name),
        ("summary", spec.summary),
        ("from", f"{candidate.distribution} {candidate.version} ({candidate.target})"),
        ("API", f"{_dotted(spec.api_version)} (the host has {_dotted(API_VERSION)})"),
        ("does natively", ", ".join(map(str, can)) or "nothing"),
        ("may need", spec.install_hint),
        ("host keys", ", ".join(f"{key} sets {option}" for key, option in spec.host_keys.items())),
    ):
        if text:
            out.line(f"{label:14} {text}")
    out.line()
    rows = [(info.name, info.type, _default(info), info.doc) for info, _ in options]
    out.table(("OPTION", "TYPE", "DEFAULT", "MEANING"), rows)
    return 0


def _option(info: OptionInfo, scope: str) -> dict[str, Any]:
    return {
        "name": info.name,
        "type": info.type,
        "required": info.required,
        "default": info.default,
        "secret": info.secret,
        "doc": info.doc,
        "of": scope,
    }


def _default(info: OptionInfo) -> str:
    return "(required)" if info.required else json.dumps(info.default, ensure_ascii=False)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
