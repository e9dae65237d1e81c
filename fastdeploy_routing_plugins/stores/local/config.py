"""Configuration of ``local``."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import ConfigError


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """How ``local`` is configured.

    Attributes:
        store_dir: The store's folder. ``~`` is the user's home; a relative path starts at the working folder of the
            process that opens the store, so engine and trainer had better state an absolute one.
        fsync: Whether ``put`` returns only when the routing would survive a power failure. Without it, routing
            survives the death of any process, but not of the machine.
    """

    store_dir: str = field(
        default="./fd_routing_store",
        metadata={"doc": "folder of the store, best an absolute path; created if missing, shared with nothing else"},
    )
    fsync: bool = field(
        default=False, metadata={"doc": "whether a put waits for the disk, so that routing survives a power failure"}
    )

    def __post_init__(self) -> None:
        if not self.store_dir or "\0" in self.store_dir:
            problem = f"store_dir is no folder's path: {self.store_dir!r}"
            raise ConfigError(problem, hint="for example /data/run-7/routing", problems=(problem,))
