"""``fd-routing check``: takes the way from a store's name to its backend step by step, and says where it ends."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.choosing import StoreChoice
from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.discovery import scan
from fastdeploy_routing_plugins.errors import ConfigError, StoreDisabledError
from fastdeploy_routing_plugins.resolver import Step, check
from fastdeploy_routing_plugins.resolving.lookup import ALLOWED_VARIABLE
from fastdeploy_routing_plugins.resolving.options import HIDDEN
from fastdeploy_routing_plugins.resolving.sources import CONFIG_VARIABLE, read, request_for, split_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.cli.output import Output


@click.command("check")
@click.argument("name", required=False)
@click.option("--config", metavar="JSON|@FILE", help="Options to check: the store's own, or a whole configuration.")
@click.option(
    "--fastdeploy", metavar="JSON|@FILE", help="What an engine would do with this --routing-replay-config, here."
)
@common_options
@click.pass_obj
def command(out: Output, name: str | None, config: str | None, fastdeploy: str | None) -> int:
    """Find out, step by step, why store NAME does not work; without NAME, look at every store that is installed.

    Nothing is opened: `fd-routing try` does that. Exits with 1 if a step failed.
    """
    if fastdeploy is not None:
        if name is not None or config is not None:
            raise UsageProblem("--fastdeploy is checked alone", "leave NAME and --config out")
        from fastdeploy_routing_plugins.cli.fastdeploy import (  # noqa: PLC0415 - another command by nature
            command as check_fastdeploy,
        )

        return check_fastdeploy(out, fastdeploy)
    problems: tuple[str, ...] = ()
    if name is not None:
        stated, environ = StoreChoice(store=name, config=config).sources()
        results = {name: check(name, stated, environ=environ)}
    elif config is not None:
        raise UsageProblem("--config is checked for one store", "name it: fd-routing check NAME --config ...")
    else:
        found = scan()
        problems = found.problems
        environ = _environ_for_all()
        results = {each: check(each, environ=environ) for each in sorted(_installed())}
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
        configured = _configured(name)
        for each, steps in results.items():
            if each in forbidden:
                out.line(f"{each}: disabled by {_forbidder(steps)}")
                continue
            out.line(f"{each}: {'failed' if each in failed else 'ok'}")
            _print(out, steps)
            if each not in failed and (name is not None or config is not None or each == configured):
                out.line("  nothing was opened: `fd-routing try` does that")
        for problem in problems:
            out.line(f"problem: {problem}")
        if name is not None and not failed:
            given = [] if config is None else ["--config", config]
            if given and not given[1].startswith("@") and any(HIDDEN in step.detail for step in results[name]):
                given[1] = "..."  # it has a secret
            line = shlex.join(["fd-routing", "try", "--store", name, *given])
            out.note(f"next: {line} makes a round trip")
    allowed = os.environ.get(ALLOWED_VARIABLE)
    if allowed is not None and _installed().isdisjoint(map(str.strip, allowed.split(","))):
        out.note(f"warning: {ALLOWED_VARIABLE}={allowed!r} names no store that is installed")
    return 0 if document["ok"] else 1


def _installed() -> set[str]:
    found = scan()
    return {candidate.name for candidate in found.candidates} | {one.candidate.name for one in found.hidden}


def _configured(name: str | None) -> str | None:
    """Returns which of the stores looked at the environment names: ``name`` as it was given, or any."""
    with suppress(ConfigError):
        short = read(None, os.environ).name
        return name if name is not None and split_name(name)[0] == short else short
    return None


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


def _forbidder(steps: Sequence[Step]) -> str:
    failure = _failure(steps)
    assert failure is not None
    assert failure.error is not None
    variable = str(failure.error.facts["variable"])
    return f"{variable}={os.environ.get(variable, '')!r}"


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
