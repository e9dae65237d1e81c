"""Arenas whose engine and worker both died: what was published is stored, the rest is reported, the file goes."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ..arena import file as files
from ..arena.layout import State
from ..arena.view import ArenaView
from ..errors import (
    AbortedError,
    ArenaError,
    DeletedError,
    RoutingError,
    StoreUnavailableError,
    SupersededError,
)
from ..resolver import ResolvedStore
from ..spec import Capability
from ..store.sync import SyncStore
from . import operations
from .executing import Executor
from .messages import Adopted, Message, Note, Outcome, short
from .operations import Setup, describe
from .spill import spilled_in
from .tasks import Retry, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[[Executor, Task], Outcome | Retry]

_BATCH = 20  # failures in one packet
_OVERTAKEN = {AbortedError.code, DeletedError.code, SupersededError.code}  # not wanted any more, if it was stored


@dataclass(frozen=True, slots=True)
class Adoption:
    """What became of a dead run's arena.

    Attributes:
        path: Where it was.
        stored: Operations done.
        failed: What could not be done, and why.
        kept: Whether the arena stays because the store is unavailable.
    """

    path: str
    stored: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    kept: bool = False


def adopt(
    file: files.ArenaFile,
    store: SyncStore,
    setup: Setup,
    *,
    run: Run = Executor.run,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Adoption:
    """Does what an arena's dead engine had handed over, in order, and removes the arena.

    The arena stays if the store is unavailable: a later try may do the rest.

    Args:
        file: The arena, locked.
        store: The store that its text names, open.
        setup: Its text.
        run: Does a task of an executor; may look after hanging calls.
        progress: Called with the number of operations done and of all.
    """
    view = ArenaView(file)
    executor = Executor(store, view, setup, _producer(setup), lends=False)
    blocks = view.scan(retained=is_home(store.resolved), failed=True)
    done, lost = 0, []
    for number, block in enumerate(blocks):
        try:
            task = Task(block, operations.decode(block.meta))
        except ArenaError as err:
            lost.append((f"operation {block.sequence}", str(err)))
            continue
        if view.state(block) == State.FAILED:
            why = f"{view.code(block)}: it failed when nobody was left to hear of it"
            lost.append((describe(task.operation), why))
            continue
        kept = view.state(block) == State.RETAINED
        while isinstance(answer := run(executor, task), Retry):
            time.sleep(answer.pause)
        failed = answer.code and not (kept and answer.code in _OVERTAKEN)
        if failed:
            lost.append((describe(task.operation), f"{answer.code}: {answer.message}"))
        else:
            done += 1
        progress(number + 1, len(blocks))
        if answer.code == StoreUnavailableError.code:
            return Adoption(file.path, done, lost, kept=True)
        if failed:
            view.fail(block, answer.code)
    discard(file, setup)
    return Adoption(file.path, done, lost)


def is_home(resolved: ResolvedStore) -> bool:
    """Whether what a store took lives in the memory of the process that put it."""
    return Capability.RETAIN in resolved.spec.capabilities


def discard(file: files.ArenaFile, setup: Setup | None) -> None:
    """Removes an arena and the payloads spilled from it."""
    if setup is not None and setup.spill_dir is not None:
        for path, arena in spilled_in(setup.spill_dir):
            if arena == os.path.basename(file.path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
    file.remove()
    file.close()


def pending(file: files.ArenaFile) -> list[str]:
    """Returns what is still to be done, or to be reported, in an arena, for people."""
    found = []
    for block in ArenaView(file).scan(failed=True):
        try:
            found.append(describe(operations.decode(block.meta)))
        except ArenaError:
            found.append(f"operation {block.sequence}, unreadable")
    return found


def held(file: files.ArenaFile) -> int:
    """Returns how many parts readers may still fetch from an arena, because their store keeps them in place."""
    view = ArenaView(file)
    return sum(view.state(block) == State.RETAINED for block in view.scan(retained=True))


def adopt_others(
    setup: Setup, own: str, run: Run, keep: Callable[[SyncStore], None] = lambda store: None
) -> Iterator[Message]:
    """Adopts, at the start of a worker, the arenas of dead runs that wrote to the same store and namespace.

    Args:
        setup: The new run's setup.
        own: Path of the new run's arena.
        run: See ``adopt``.
        keep: Given the stores that must stay open, or what they took is gone.

    Yields:
        Messages for the engine.
    """
    foreign, nbytes = 0, 0
    for found in files.find(setup.arena_dir):
        if found.used or found.path == own:
            continue
        try:
            file = files.take(found.path)
            if file is None:
                continue
            other = Setup.decode(file.text)
        except (ArenaError, OSError) as err:
            yield Note(logging.WARNING, short(f"{found.path} of a dead process cannot be read: {err}"))
            continue
        if _destination(other) != _destination(setup):
            if not ArenaView(file).scan(retained=True, failed=True):
                discard(file, other)  # its engine died before it could
                continue
            foreign, nbytes = foreign + 1, nbytes + found.nbytes
            file.close()
            continue
        try:
            store = _heir(other)
        except RoutingError as err:
            file.close()
            yield Note(logging.WARNING, short(f"{found.path} of a dead run stays: {err}"))
            continue
        adoption = adopt(file, store, other, run=run)
        if is_home(store.resolved):
            keep(store)
        else:
            with contextlib.suppress(RoutingError):
                store.close()
        if adoption.kept:
            file.close()
            yield Note(logging.WARNING, short(f"{found.path} of a dead run stays: {adoption.failed[-1][1]}"))
        else:
            lost = [(short(what), short(why)) for what, why in adoption.failed]
            yield Adopted(adoption.stored, lost[:_BATCH])
            yield from (Adopted(0, lost[at : at + _BATCH]) for at in range(_BATCH, len(lost), _BATCH))
    if foreign:
        text = (
            f"{foreign} arenas of dead runs with another store or namespace take {nbytes >> 20} MiB of "
            f"{setup.arena_dir}; `fd-routing clean` looks after them"
        )
        yield Note(logging.WARNING, text)


def _heir(setup: Setup) -> SyncStore:
    """Opens a dead run's store as its own producer, by which ``clear`` goes, with what its store worker kept."""
    store = open_destination(setup)
    try:
        store.inherit()
    except BaseException:
        store.close()
        raise
    return store


def _destination(setup: Setup) -> tuple[str, str]:
    """Store, options and namespace of a setup; whoever produced it."""
    wire = msgspec.json.decode(setup.store)
    options = {key: value for key, value in wire["options"].items() if key != "producer"}
    return wire["store"], msgspec.json.encode(options, order="deterministic").decode()


def _producer(setup: Setup) -> str:
    return str(msgspec.json.decode(setup.store)["options"]["producer"])


def open_destination(setup: Setup) -> SyncStore:
    """Opens the store that an arena's parts were meant for.

    Raises:
        RoutingError: it cannot be opened here and now.
    """
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # gone; then only absolute paths mean anything
            os.chdir(setup.cwd)
        return SyncStore(ResolvedStore.from_json(setup.store), setup.schema())
    finally:
        os.fchdir(here)
        os.close(here)
