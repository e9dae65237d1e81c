"""What ``fd-routing clean`` does with shelves, in which producers of ``rdma`` hold objects for readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.cli.output import show_bytes
from fastdeploy_routing_plugins.errors import ArenaError
from fastdeploy_routing_plugins.stores.rdma import leftovers
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastdeploy_routing_plugins.stores.rdma.leftovers import LeftShelf, Line

_YOUNG = 60.0  # s in which a dead producer may be starting again


@dataclass(slots=True)
class ShelfRow:
    """A shelf, and what became of it.

    Attributes:
        shelf: As it was found.
        outcome: ``left``, ``removed`` or ``kept``.
        why: Why a dead one is left.
        error: Why it is kept.
    """

    shelf: LeftShelf
    outcome: str = "left"
    why: str = ""
    error: ArenaError | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as JSON has it."""
        shelf, error = self.shelf, self.error
        return {
            "kind": shelf.kind,
            "path": shelf.path,
            "bytes": shelf.nbytes,
            "state": shelf.state,
            "engine_pid": shelf.pid,
            "store": "rdma",
            "namespace": shelf.namespace,
            "producer": shelf.producer,
            "objects": shelf.objects,
            "outcome": self.outcome,
            "why": self.why,
            "error": error and {"code": error.code, "message": error.message, "hint": error.hint},
        }

    def cells(self, dry_run: bool) -> tuple[str, ...]:
        """Returns the row as people see it, in the columns of the arenas' table."""
        shelf = self.shelf
        objects = f", with {counted(shelf.objects, 'object')}" if shelf.objects else ""
        if self.outcome == "removed":
            result = f"removed{objects}"
        elif self.outcome == "kept":
            result = "stays"
        else:
            result = f"left alone: {self.why}" if self.why else "left alone"
        if dry_run and shelf.state != "live" and not self.why:
            result = f"would be removed{objects}"
        store, pid = f"rdma ({shelf.namespace})" if shelf.namespace else "rdma", str(shelf.pid or "?")
        return shelf.path, shelf.kind, shelf.state, show_bytes(shelf.nbytes), pid, "-", store, "-", result


def look(folders: Iterable[str], *, tidy: bool) -> list[ShelfRow]:
    """Returns the shelves, and dead services' pages, in folders; ``tidy`` as in ``arena.file.find``."""
    return [
        ShelfRow(shelf)
        for folder in folders
        for shelf in [*leftovers.look(folder, tidy=tidy), *leftovers.dead_pages(folder)]
    ]


def needed(rows: Iterable[ShelfRow], arenas: Iterable[str]) -> list[str]:
    """Returns the arenas of dead engines by which a new one finds what is on a shelf: they must not go before it."""
    lines = {row.shelf.line for row in rows if row.shelf.state == "dead" and row.shelf.objects}
    return [path for path in arenas if leftovers.line_of(path) in lines]


def young(rows: Iterable[ShelfRow]) -> list[ShelfRow]:
    """Returns the dead ones that are left only because they are young."""
    return [row for row in rows if row.shelf.kind == "shelf" and row.shelf.state != "live" and row.shelf.age < _YOUNG]


def spare(rows: Sequence[ShelfRow], awaited: set[Line], *, discard: bool) -> list[ShelfRow]:
    """Returns the shelves that nobody can use any more; says of other dead ones why they are left.

    Args:
        rows: All shelves.
        awaited: The lines of engines whose arenas are there.
        discard: Whether also those go whose producer may be starting again.
    """
    useless = []
    for row in rows:
        shelf = row.shelf
        if shelf.state == "live":
            continue
        if shelf.kind == "page":
            useless.append(row)
        elif shelf.line in awaited and shelf.state == "dead":
            row.why = "the next store worker of an engine takes it over"
        elif shelf.age < _YOUNG and not discard:
            row.why = f"younger than {_YOUNG:.0f} s, its producer may be starting again"
        else:
            useless.append(row)
    return useless


def remove(rows: Iterable[ShelfRow]) -> None:
    """Removes shelves that nobody uses."""
    for row in rows:
        try:
            row.outcome = "removed" if leftovers.remove(row.shelf.path) else "left"
        except OSError as err:
            row.outcome = "kept"
            row.error = ArenaError(f"{row.shelf.path} cannot be removed: {err.strerror}", hint="whose folder is it?")
