"""Configuration of ``local``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Literal

from ...errors import ConfigError

_LIMIT = 4095  # bytes; the system's own limit for one path
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_EXAMPLE = "write a path, for example /data/run-7/routing"


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """How ``local`` is configured.

    Attributes:
        store_dir: The store's folder. ``~`` is the user's home; a relative path starts at the working folder of the
            process that opens the store, so engine and trainer had better state an absolute one.
        fsync: Whether ``put`` returns only when the routing would survive a power failure. Without it, routing
            survives the death of any process, but not of the machine.
        layout: What the folder looks like. ``"pdtensor"`` is FastDeploy's own file tree, for trainers that read it;
            see ``PdtensorBackend``.
    """

    store_dir: str = field(
        default="./fd_routing_store",
        metadata={"doc": "folder of the store, best an absolute path; created if missing, shared with nothing else"},
    )
    fsync: bool = field(
        default=False, metadata={"doc": "whether a put waits for the disk, so that routing survives a power failure"}
    )
    layout: Literal["safetensors", "pdtensor"] = field(
        default="safetensors",
        metadata={
            "doc": "`pdtensor`: FastDeploy's own file tree, for trainers that read it: `ID/ID.pdtensor` of a rollout "
            "that is put whole, as engines do with `use_fused_put`, `ID/layer_N.pdtensor` of a layer put by itself"
        },
    )

    def __post_init__(self) -> None:
        reason, hint = _fault(self.store_dir)
        if reason:
            problem = f"store_dir {self.store_dir!r:.100} {reason}"
            raise ConfigError(f"{problem}: {hint}", problems=(f"{problem}: {hint}",))

    @property
    def shows_layers(self) -> bool:
        """Whether others may look for the layers of a rollout one by one."""
        return self.layout == "pdtensor"

    def path(self) -> str:
        """Returns the folder's absolute path in this process.

        Raises:
            ConfigError: it is relative, and the working folder is gone.
        """
        try:
            return os.path.abspath(os.path.expanduser(self.store_dir))
        except OSError as err:
            problem = f"store_dir {self.store_dir!r} starts at the working folder, which is gone: {err.strerror}"
            raise ConfigError(problem, hint="write an absolute path", problems=(problem,)) from err


def _fault(store_dir: str) -> tuple[str, str]:
    """Returns what is wrong with a path and what to write, or two empty texts."""
    scheme = _SCHEME.match(store_dir)
    if not store_dir or "\0" in store_dir:
        return "is no folder's path", _EXAMPLE
    if scheme is not None and scheme[1].lower() == "file":
        return "is a URL", "write the path alone, for example /data/run-7/routing"
    if scheme is not None:
        return f"is a {scheme[1]} URL, but local keeps routing in a folder", f"{_EXAMPLE}, or choose another store"
    if store_dir.startswith("~") and os.path.expanduser(store_dir) == store_dir:
        return (
            "starts in the home of a user who is not known here",
            f"{_EXAMPLE}, or ./~NAME for a folder of that name",
        )
    try:
        length = len(os.fsencode(store_dir))
    except UnicodeEncodeError:
        return "has characters that no path has here", _EXAMPLE
    return ("is too long", f"at most {_LIMIT} bytes") if length > _LIMIT else ("", "")
