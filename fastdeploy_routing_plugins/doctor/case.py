"""What the checks are told, and what they find out for each other: ``Case``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastdeploy_routing_plugins.resolver import ResolvedStore

OURS = "fastdeploy-routing-plugins"
ANSWERING = 0.6  # share of a check's time after which a store gives up by itself, and can still say why


@dataclass(slots=True)
class Case:
    """What is looked at.

    Attributes:
        store: ``--store``.
        config: ``--config``.
        directory: ``--dir``.
        namespace: ``--namespace``.
        folders: Where shared memory is, as the command line says; empty: where the configuration says.
        timeout: Seconds that a check may take.
        environ: The environment.
        resolved: The configured store, once it is known.
        works: Whether what later checks build on was found to work.
    """

    store: str | None = None
    config: str | None = None
    directory: str | None = None
    namespace: str | None = None
    folders: tuple[str, ...] = ()
    timeout: float = 5.0
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    resolved: ResolvedStore | None = None
    works: bool = True

    @property
    def rdma(self) -> Any:
        """The configuration of ``rdma`` if that is the configured store, and not over Redis, else None."""
        resolved = self.resolved
        if resolved is None or resolved.distribution != OURS or resolved.name != "rdma" or resolved.config.redis:
            return None
        return resolved.config
