"""What ``fd-routing clean`` does with the arenas of dead engines: a row each, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.cli.output import show_bytes

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.errors import RoutingError
    from fastdeploy_routing_plugins.writer.leftovers import Leftover


@dataclass(slots=True)
class ArenaRow:
    """An arena, and what became of it.

    Attributes:
        arena: As it was found.
        outcome: ``left``, ``finished``, ``stored``, ``discarded``, ``gone`` or ``kept``.
        stored: Operations that were stored now.
        failed: What could not be stored, and why.
        error: Why the arena is kept.
    """

    arena: Leftover
    outcome: str = "left"
    stored: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    error: RoutingError | None = None

    def to_dict(self, dry_run: bool) -> dict[str, Any]:
        """Returns the row as JSON has it."""
        arena, error = self.arena, self.error
        document = {
            "kind": "arena",
            "path": arena.path,
            "bytes": arena.nbytes,
            "state": arena.state,
            "engine_pid": arena.engine_pid,
            "worker_pid": arena.worker_pid,
            "store": arena.store,
            "namespace": arena.namespace,
            "pending": len(arena.pending),
            "held": arena.held,
            "outcome": self.outcome,
            "stored": self.stored,
            "failed": [{"what": what, "why": why} for what, why in self.failed],
            "error": error and {"code": error.code, "message": error.message, "hint": error.hint},
        }
        return {**document, "operations": list(arena.pending)} if dry_run else document

    def cells(self, dry_run: bool) -> tuple[str, ...]:
        """Returns the row as people see it."""
        arena = self.arena
        return (
            arena.path,
            "arena",
            arena.state,
            show_bytes(arena.nbytes),
            str(arena.engine_pid or "?"),
            str(arena.worker_pid or "-"),
            f"{arena.store} ({arena.namespace})" if arena.store else "?",
            f"{len(arena.pending)}" + (f" + {arena.held} held" if arena.held else "") if arena.store else "?",
            self._intent() if dry_run else self._result(),
        )

    def _intent(self) -> str:
        arena = self.arena
        if arena.home:
            return "stays: an engine with its configuration takes it over"
        if arena.state == "dead":
            return f"would store {len(arena.pending)}" if arena.pending else "would be removed"
        return {
            "live": "left alone",
            "serving": "left alone: its worker serves readers",
            "draining": "would wait",
            "damaged": "needs --discard",
        }[arena.state]

    def _result(self) -> str:
        if self.outcome == "stored":
            return f"stored {self.stored}" + (f", lost {len(self.failed)}" if self.failed else "")
        said = {"left": "left alone", "finished": "finished by its worker", "kept": "stays"}
        return said.get(self.outcome, self.outcome)
