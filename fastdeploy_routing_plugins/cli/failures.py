"""How commands say that they failed, apart from the package's own errors."""

from __future__ import annotations

import click


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
