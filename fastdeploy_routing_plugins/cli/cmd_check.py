"""``fd-routing check``: takes the way from a store's name to its backend step by step, and says where it ends."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice
from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.discovery import scan
from fastdeploy_routing_plugins.errors import ConfigError, StoreDisabledError
from fastdeploy_routing_plugins.resolver import Step, check
from fastdeploy_routing_plugins.resolving.sources import CONFIG_VARIABLE, read, request_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.cli.output import Output


@click.command("check")
@click.argument("name", required=False)
@click.option("--config", metavar="JSON|@FILE", help="Options to check: the store's own, or a whole configuration.")
@common_options
@click.pass_obj
def command(out: Output, name: str | None, config: str | None) -> int:
    """Find out, step by step, why store NAME does not work; without NAME, look at every store that is installed.

    Nothing is opened: `fd-routing try` does that. Exits with 1 if a step failed.
    """
    problems: tuple[str, ...] = ()
    if name is not None:
        stated, environ = StoreChoice(store=name, config=config).sources()
        results = {name: check(name, stated, environ=environ)}
    elif config is not None:
        raise UsageProblem("--config is checked for one store", "name it: fd-routing check NAME --config ...")
    else:
        found = scan()
        problems = found.problems
        names = {candidate.name for candidate in found.candidates} | {one.candidate.name for one in found.hidden}
        environ = _environ_for_all()
        results = {each: check(each, environ=environ) for each in sorted(names)}
    # What an administrator forbade is as it should be, unless it was asked for.
    forbidden = [each for each, steps in results.items() if name is None and _is_forbidden(steps)]
    failed = [each for each, steps in results.items() if each not in forbidden and _failure(steps) is not None]
    document = {
        "ok": not failed and not problems,
        "problems": list(problems),
        "stores": [
            {"name": each, "ok": _failure(steps) is None, "disabled": each in forbidden, "steps": _plain(steps)}
            for each, steps in results.items()
        ],
    }
    if not out.document(document):
        for each, steps in results.items():
            word = "disabled" if each in forbidden else "failed" if each in failed else "ok"
            out.line(f"{each}: {word}")
            if each not in forbidden:
                _print(out, steps)
        for problem in problems:
            out.line(f"problem: {problem}")
        if name is not None and not failed:
            out.note(f"next: fd-routing try --store {name} makes a round trip")
    return 0 if document["ok"] else 1


def _environ_for_all() -> dict[str, str]:
    """Returns the environment without bare options: they belong to one store, and nobody said to which."""
    environ = dict(os.environ)
    with suppress(ConfigError):
        read(None, environ)
        return environ
    with suppress(ConfigError):
        request_for("", None, environ)
        return {key: value for key, value in environ.items() if key != CONFIG_VARIABLE}
    return environ  # malformed: every store's check says so


def _print(out: Output, steps: Sequence[Step]) -> None:
    for step in steps:
        text = step.error.message if step.error is not None else step.detail
        out.line(f"  {step.name:10} {step.state:8} {text}".rstrip())
        if step.error is not None and step.error.hint:
            out.line(f"  {'':10} {'hint':8} {step.error.hint}")


def _failure(steps: Sequence[Step]) -> Step | None:
    return next((step for step in steps if step.state == "failed"), None)


def _is_forbidden(steps: Sequence[Step]) -> bool:
    failure = _failure(steps)
    return failure is not None and isinstance(failure.error, StoreDisabledError)


def _plain(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [
        {
            "step": step.name,
            "state": step.state,
            "detail": step.detail if step.error is None else step.error.message,
            "code": step.error.code if step.error is not None else None,
            "hint": step.error.hint if step.error is not None else "",
        }
        for step in steps
    ]
