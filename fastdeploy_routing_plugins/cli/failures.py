"""How commands say that they failed, apart from the package's own errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.keys import RoutingKey


class UsageProblem(click.UsageError):
    """The command line makes no sense; exit code 2. Attribute ``hint``: what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Failure(Exception):
    """The command could not do its work; exit code 1. Attributes ``code``, ``message`` and ``hint``."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


def naming(key: RoutingKey, message: str) -> str:
    """Returns a message that names the rollout that it is about, as errors do: quoted, since ids may be any text."""
    return message if repr(key.rollout_id) in message else f"{key}: {message}"
