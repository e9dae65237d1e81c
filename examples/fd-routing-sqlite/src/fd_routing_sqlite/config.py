"""The store's options: what may stand in ``routing_store_config``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SqliteConfig:
    path: str = field(metadata={"doc": "The database file, best an absolute path on a local disk."})
    busy_timeout: float = field(default=5.0, metadata={"doc": "Seconds to wait while another process writes."})

    def __post_init__(self) -> None:
        if not self.path or "\0" in self.path:
            raise ValueError(f"option 'path' names no file: {self.path!r}")
        if not 0 <= self.busy_timeout <= 3600:
            raise ValueError(f"option 'busy_timeout' must be from 0 to 3600 seconds, got {self.busy_timeout}")
