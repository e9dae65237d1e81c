"""``WriterLimits``: how much memory and time the engine side may take, and what it checks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..arena.room import SHM
from ..config import load_alone
from ..resolving.jsontext import parse_text
from ..resolving.sources import Item

if TYPE_CHECKING:
    from collections.abc import Mapping

WRITER_VARIABLE = "FD_ROUTING_WRITER_CONFIG"
MAX_LANES = 64


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Limits of a writer; sizes in bytes, times in seconds."""

    arena_bytes: int | None = field(
        default=None,
        metadata={"doc": "Size of the shared memory; without it a quarter of the free room, at most 4 GiB."},
    )
    arena_dir: str = field(default=SHM, metadata={"doc": "The tmpfs that holds it."})
    on_full_wait: float = field(
        default=1.0, metadata={"doc": "How long a full arena may hold the engine up, in total while it is full."}
    )
    spill_dir: str | None = field(
        default=None, metadata={"doc": "Folder for parts that a full arena has no room for; without it they fail."}
    )
    spill_bytes: int = field(default=16 << 30, metadata={"doc": "How much may lie in spill_dir."})
    retry_for: float = field(
        default=60.0,
        metadata={"doc": "How long a store that is unavailable, or has no memory, is tried again for each part."},
    )
    call_timeout: float = field(
        default=30.0, metadata={"doc": "After this a call of the store counts as hung; its worker is replaced."}
    )
    start_timeout: float = field(default=60.0, metadata={"doc": "How long the worker may take to open the store."})
    exit_wait: float = field(
        default=5.0,
        metadata={"doc": "How long an exiting interpreter waits for what is pending; the worker then goes on alone."},
    )
    lanes: int = field(default=4, metadata={"doc": "How many trajectories are stored at the same time."})
    validate: bool = field(
        default=True, metadata={"doc": "Whether the worker checks every id's range and samples rows for repeats."}
    )
    read_back: bool = field(
        default=False, metadata={"doc": "Whether the worker reads each part back before it counts as stored."}
    )
    abort_lost: bool = field(
        default=False,
        metadata={"doc": "Whether an attempt that loses a part to the store is aborted, so that nobody waits for it."},
    )

    def __post_init__(self) -> None:
        for name in ("on_full_wait", "retry_for", "exit_wait"):
            if getattr(self, name) < 0:
                raise ValueError(f"option {name!r} must not be negative")
        for name in ("call_timeout", "start_timeout", "spill_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"option {name!r} must be positive")
        if not 1 <= self.lanes <= MAX_LANES:
            raise ValueError(f"option 'lanes' must be from 1 to {MAX_LANES}")

    @classmethod
    def load(cls, config: Mapping[str, Any] | str | None = None) -> WriterLimits:
        """Returns limits from a mapping, JSON text or ``@file``, merged with ``FD_ROUTING_WRITER_CONFIG``.

        Raises:
            ConfigError: an option is unknown or has a wrong type or value; names every problem.
        """
        said: list[tuple[Mapping[str, Any], str]] = []
        if isinstance(config, str):
            said.append(parse_text(config, "the writer's configuration"))
        elif config is not None:
            said.append((config, "the writer's configuration"))
        if text := os.environ.get(WRITER_VARIABLE):
            said.append(parse_text(text, WRITER_VARIABLE))
        items = [Item(key, value, source) for options, source in said for key, value in options.items()]
        return load_alone(cls, items, owner="the writer")
