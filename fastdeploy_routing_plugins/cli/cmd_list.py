"""``fd-routing list``: the stores that installed packages offer. Imports no plugin and works whatever is broken."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import click

from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.discovery import Candidate, scan
from fastdeploy_routing_plugins.errors import StoreDisabledError
from fastdeploy_routing_plugins.resolving.lookup import check_allowed, is_valid_name

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.cli.output import Output

_HINTS = {
    "duplicate": "uninstall one of them, or write NAME@DISTRIBUTION",
    "invalid name": "a store's name matches [a-z][a-z0-9_]*; its author must rename it",
    "disabled": "see FD_ROUTING_STORE_DISABLED and FD_ROUTING_STORES_ALLOWED",
    "hidden": "older metadata of the same package comes first on the path; `fd-routing check NAME` says where",
}


@click.command("list")
@common_options
@click.pass_obj
def command(out: Output) -> int:
    """Show the stores that installed packages offer, from their metadata alone.

    NAME is what routing_store_type is set to. STATE is "found" if nothing in the metadata speaks against a store;
    whether its plugin works, `fd-routing check` tries.
    """
    found = scan()
    names = Counter(candidate.name for candidate in found.candidates)
    states = [(candidate, _state(candidate, names)) for candidate in found.candidates]
    states += [(hidden.candidate, "hidden") for hidden in found.hidden]
    stores = [
        {
            "name": candidate.name,
            "distribution": candidate.distribution,
            "version": candidate.version,
            "target": candidate.target,
            "location": candidate.location,
            "state": state,
        }
        for candidate, state in states
    ]
    if out.document({"stores": stores, "problems": list(found.problems)}):
        return 0
    columns = ("name", "distribution", "version", "target", "state")
    out.table([column.upper() for column in columns], [[store[column] for column in columns] for store in stores])
    for state, hint in _HINTS.items():
        if any(state == other for _, other in states):
            out.note(f"{state}: {hint}")
    for problem in found.problems:
        out.note(f"warning: {problem}")
    return 0


def _state(candidate: Candidate, names: Counter[str]) -> str:
    if not is_valid_name(candidate.name):
        return "invalid name"
    if names[candidate.name] > 1:
        return "duplicate"
    try:
        check_allowed(candidate.name, os.environ)
    except StoreDisabledError:
        return "disabled"
    return "found"
