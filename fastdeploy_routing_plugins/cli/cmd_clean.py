"""``fd-routing clean``: stores what dead engines left in shared memory, and removes it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli import shelves
from fastdeploy_routing_plugins.cli.arenas import ArenaRow
from fastdeploy_routing_plugins.cli.asking import confirmed
from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.cli.output import Output, show_bytes
from fastdeploy_routing_plugins.cli.signals import cleaning_up
from fastdeploy_routing_plugins.errors import (
    ArenaError,
    ResolveError,
    RoutingError,
    StoreUnavailableError,
    UnsupportedError,
)
from fastdeploy_routing_plugins.stores.rdma.leftovers import awaited
from fastdeploy_routing_plugins.wording import counted
from fastdeploy_routing_plugins.writer import leftovers
from fastdeploy_routing_plugins.writer.limits import WriterLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastdeploy_routing_plugins.cli.shelves import ShelfRow
    from fastdeploy_routing_plugins.cli.signals import Stop
    from fastdeploy_routing_plugins.writer.leftovers import Rescue

_SHOWN = 20  # operations that people see; --json has them all


@click.command("clean")
@click.option(
    "--arena-dir",
    "folders",
    multiple=True,
    metavar="PATH",
    help="Where to look; may be repeated. Without it the writer's arena_dir, /dev/shm unless configured.",
)
@click.option(
    "--spill-dir",
    "spills",
    multiple=True,
    metavar="PATH",
    help="Also remove spilled payloads there whose arena is gone. Not for a folder that hosts share.",
)
@click.option("--dry-run", is_flag=True, help="Only show what there is, and what would be stored.")
@click.option("--discard", is_flag=True, help="Remove what dead processes left without storing what is in it.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before --discard.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long workers of dead engines may take to finish.",
)
@click.option("--kill", is_flag=True, help="Kill the workers that do not finish, and store the rest here.")
@common_options
@click.pass_obj
def command(
    out: Output,
    folders: Sequence[str],
    spills: Sequence[str],
    dry_run: bool,
    discard: bool,
    yes: bool,
    wait: float,
    kill: bool,
) -> int:  # fmt: skip
    """Store what dead engines left in shared memory, in the stores that it was meant for, and remove it.

    Arenas of living engines are left alone. What cannot be stored is reported with its id and cause; if that is
    because a store is unavailable, its arena stays. What dead producers of `rdma` held for readers is removed, unless
    it is younger than a minute (--discard removes that as well). Exits with 1 if anything could not be stored, or
    stays.
    """
    where = [_folder(path, "--arena-dir") for path in folders or [WriterLimits.load().arena_dir]]
    spill_dirs = [_folder(path, "--spill-dir") for path in spills]
    with cleaning_up() as stop:
        rows = {arena.path: ArenaRow(arena) for folder in where for arena in leftovers.look(folder, tidy=not dry_run)}
        if not dry_run:
            _settle(out, rows, where, wait, kill, stop)
        held = shelves.look(where, tidy=not dry_run)
        for path in shelves.needed(held, [path for path, row in rows.items() if row.arena.state == "dead"]):
            rows[path].arena = replace(rows[path].arena, home=True)
        if dry_run:
            shelves.spare(held, awaited(where), discard=discard)
        else:
            dead = [row for row in rows.values() if row.outcome == "left" and row.arena.state in ("dead", "damaged")]
            if discard:
                discard = _discard(out, dead, shelves.young(held), yes)
            else:
                _store(out, dead)
            shelves.remove(shelves.spare(held, awaited(where), discard=discard))
        spilled = [_sweep(folder, where, dry_run) for folder in spill_dirs]
    ok = dry_run or (
        not any(row.outcome == "kept" or row.failed for row in rows.values())
        and not any(row.outcome == "kept" for row in held)
        and all(each["removed"] == each["orphaned"] for each in spilled)
    )
    document = {"dry_run": dry_run, "ok": ok, "folders": where, "spilled": spilled}
    arenas = [*[row.to_dict(dry_run) for row in rows.values()], *[row.to_dict() for row in held]]
    if not out.document({**document, "arenas": arenas}):
        _print(out, list(rows.values()), held, where, spilled, dry_run)
    return 0 if ok else 1


def _folder(path: str, option: str) -> str:
    folder = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(folder):
        raise UsageProblem(f"there is no folder {path!r}", f"{option} takes the folder that the writer's limits name")
    return folder


# --- what is done ----------------------------------------------------------------------------------------------------


def _settle(out: Output, rows: dict[str, ArenaRow], where: Sequence[str], wait: float, kill: bool, stop: Stop) -> None:
    """Waits for the workers of dead engines, kills them if told to, and looks again."""
    draining = [path for path, row in rows.items() if row.arena.state == "draining"]
    if not draining:
        return
    if wait:
        out.note(f"waiting up to {wait:g} s for the workers of {len(draining)} dead engines")
    if not leftovers.wait_until_unused(draining, wait, stop.check) and kill:
        for path in draining:
            if not leftovers.wait_until_unused([path], 0):
                leftovers.kill_worker(path)
    now = {arena.path: arena for folder in where for arena in leftovers.look(folder)}
    for path in draining:
        row = rows[path]
        if path not in now:
            row.outcome = "finished"
            continue
        row.arena = now[path]
        if row.arena.state not in ("dead", "damaged"):
            row.outcome = "kept"
            row.error = StoreUnavailableError(
                f"the worker of a dead engine (pid {row.arena.worker_pid or '?'}) still stores what is in {path}",
                hint="let it finish (--wait SECONDS), or end it and store the rest from here (--kill)",
            )


def _discard(out: Output, rows: Sequence[ArenaRow], young: Sequence[ShelfRow], yes: bool) -> bool:
    """Removes arenas after asking; returns whether the answer, which counts for young shelves as well, was yes."""
    count = sum(len(row.arena.pending) for row in rows)
    size = f"{counted(len(rows), 'arena')} ({show_bytes(sum(row.arena.nbytes for row in rows))})"
    what = f"{size} with {counted(count, 'operation')} never stored"
    if young:
        objects = counted(sum(each.shelf.objects for each in young), "object")
        what += f", and {counted(len(young), 'shelf', 'shelves')} with {objects}"
    if (rows or young) and not yes and not confirmed(f"Remove {what}?", "removes"):
        out.note("nothing was removed")
        for row in rows:
            row.outcome = "kept"
        return False
    for row in rows:
        try:
            gone = leftovers.throw_away(row.arena.path)
        except OSError as err:
            row.outcome, row.error = "kept", _unremoved(row, err)
        else:
            row.outcome = "discarded" if gone else "left"
    return True


def _store(out: Output, rows: Sequence[ArenaRow]) -> None:
    calls = leftovers.BoundedCalls()
    before = 0
    with out.progress(["storing"], sum(len(row.arena.pending) for row in rows)) as advance:

        def progress(done: int, total: int) -> None:
            advance(0, before + done)

        for row in rows:
            if row.arena.home:
                row.outcome, row.error = "kept", _with_way_out(leftovers.stays_home(row.arena.path, row.arena.store))
                continue
            try:
                _rescued(row, leftovers.rescue(row.arena.path, calls, progress))
            except OSError as err:
                row.outcome, row.error = "kept", _unremoved(row, err)
            before += len(row.arena.pending)
    out.abandoned = calls.hung


def _rescued(row: ArenaRow, rescue: Rescue) -> None:
    """Notes how an attempt to store an arena's content ended."""
    row.stored, row.failed, err = rescue.stored, rescue.failed, rescue.error
    if rescue.removed:
        row.outcome = "stored"
    elif err is None:
        row.outcome = "left"  # somebody else was faster
    else:
        row.outcome, row.error = "kept", _with_way_out(err)


def _with_way_out(err: RoutingError) -> RoutingError:
    """Returns an error whose hint says how the arena can be got rid of."""
    if isinstance(err, ArenaError):
        hint = "nothing can be stored from it; --discard removes it"
    elif isinstance(err, ResolveError):
        hint = "run this where the engine ran, in its environment; or --discard removes it"
    elif isinstance(err, UnsupportedError):
        hint = "--discard removes it"
    else:
        hint = "run this again when the store answers; or --discard removes it"
    return type(err)(err.message, hint=f"{err.hint}; {hint}" if err.hint else hint, **err.facts)


def _unremoved(row: ArenaRow, err: OSError) -> ArenaError:
    return ArenaError(f"{row.arena.path} cannot be removed: {err.strerror}", hint="whose folder is it?")


def _sweep(folder: str, where: Sequence[str], dry_run: bool) -> dict[str, Any]:
    """Removes spilled payloads whose arena is gone; says how many."""
    found = leftovers.orphaned(folder, {*where, WriterLimits.load().arena_dir})
    nbytes = removed = 0
    for path in found:
        with suppress(OSError):
            nbytes += os.lstat(path).st_size
            if not dry_run:
                os.unlink(path)
                removed += 1
    return {"folder": folder, "orphaned": len(found), "bytes": nbytes, "removed": removed}


# --- what people see -------------------------------------------------------------------------------------------------


def _print(
    out: Output,
    rows: Sequence[ArenaRow],
    held: Sequence[ShelfRow],
    where: Sequence[str],
    spilled: Sequence[dict[str, Any]],
    dry_run: bool,
) -> None:
    if rows or held:
        headers = ("ARENA", "KIND", "STATE", "SIZE", "ENGINE", "WORKER", "STORE", "PENDING", "RESULT")
        cells = [*[row.cells(dry_run) for row in rows], *[row.cells(dry_run) for row in held]]
        out.table(headers, cells, right="   rrr r")
    lines = list(_details(rows, dry_run))
    if lines:
        out.table(("WHAT", "WHY" if not dry_run else "ARENA"), lines)
    for err in [*[row.error for row in rows], *[row.error for row in held]]:
        if err is not None:
            out.error(err.code, err.message, err.hint)
    for each in spilled:
        verb = "would remove" if dry_run else "removed"
        count = each["orphaned"] if dry_run else each["removed"]
        out.line(f"{verb} {count} orphaned payloads ({show_bytes(each['bytes'])}) of {each['folder']}")
    gone = [row.arena for row in rows if row.outcome in ("stored", "discarded", "finished")]
    if not rows and not held:
        out.line(f"no arenas in {', '.join(where)}")
    elif not dry_run:
        stored = sum(row.stored for row in rows)
        sizes = [*[arena.nbytes for arena in gone], *[each.shelf.nbytes for each in held if each.outcome == "removed"]]
        size = show_bytes(sum(sizes))
        out.line(f"stored {counted(stored, 'operation')}, removed {counted(len(sizes), 'arena')} ({size})")


def _details(rows: Sequence[ArenaRow], dry_run: bool) -> Iterator[tuple[str, str]]:
    """Yields the first operations that would be stored, or that could not be."""
    if dry_run:
        every = [(what, row.arena.path) for row in rows if row.arena.state == "dead" for what in row.arena.pending]
    else:
        every = [lost for row in rows for lost in row.failed]
    yield from every[:_SHOWN]
    if len(every) > _SHOWN:
        yield f"... and {len(every) - _SHOWN} more", "--json lists all"
