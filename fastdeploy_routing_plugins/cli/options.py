"""Options that commands share. Light: what they mean is found out in ``choosing``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def common_options(function: F) -> F:
    """Adds what every command takes. The values are read before the command line is parsed, see ``main``."""
    function = click.option("--debug", is_flag=True, expose_value=False, help="Log everything; show tracebacks.")(
        function
    )
    return click.option("--json", is_flag=True, expose_value=False, help="Print one JSON document.")(function)


def bare_store_options(merged: str, *, namespace: bool) -> Callable[[F], F]:
    """Returns what adds the options that choose a store, as ``store``, ``config``, ``directory`` and ``namespace``.

    Args:
        merged: What becomes of the environment's configuration, for the help.
        namespace: Whether ``--namespace`` is one of them.
    """

    def decorate(function: F) -> F:
        if namespace:
            text = "Namespace; without it FD_ROUTING_NAMESPACE, or default."
            function = click.option("--namespace", metavar="NAME", help=text)(function)
        text = "Short for --store local with this store_dir."
        function = click.option("--dir", "directory", metavar="PATH", help=text)(function)
        text = f"The store's own options, or a whole configuration. {merged}"
        names = ("--config", "--routing-replay-config")  # the second is what FastDeploy calls it
        function = click.option(*names, "config", metavar="JSON|@FILE", help=text)(function)
        return click.option("--store", metavar="NAME", help="Which store, see `fd-routing list`.")(function)

    return decorate


def choice_option(function: F) -> F:
    """Adds ``--choice``."""
    return click.option(
        "--choice", type=click.IntRange(0), default=0, show_default=True, help="Which choice of a request with n > 1."
    )(function)


def selection_options(function: F) -> F:
    """Adds ``ID... | --prefix P | --all``; see ``pick``."""
    function = choice_option(function)
    function = click.option("--all", "everything", is_flag=True, help="All rollouts of the namespace.")(function)
    function = click.option("--prefix", metavar="P", help="The id P and those that continue it after a colon.")(
        function
    )
    return click.argument("ids", nargs=-1, metavar="[ID]...")(function)


def parse_range(ctx: click.Context, param: click.Parameter, value: str | None) -> slice | None:
    """Reads ``a:b``, ``a:``, ``:b`` or ``a`` (one index) as a slice; a callback of ``click.option``."""
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{0,12}):([0-9]{0,12})|([0-9]{1,12})", value, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{value!r} is no range such as 0:128, 5: or 7", ctx, param)
    start, stop, single = match.groups()
    if single is not None:
        return slice(int(single), int(single) + 1)
    return slice(int(start) if start else 0, int(stop) if stop else None)
