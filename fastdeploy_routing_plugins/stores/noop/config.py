"""Configuration of ``noop``: there is nothing to configure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoopConfig:
    """``noop`` has no options."""
