"""Arenas from outside: which lie in a folder, who works on them, and how those of dead engines end.

For ``fd-routing clean`` and the demo. A worker that starts does the same for its own store alone, in ``adoption``.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from concurrent.futures import TimeoutError as FutureTimeoutError  # not the built-in one before Python 3.11
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from ..arena import file as files
from ..arena.view import ArenaView
from ..errors import ArenaError, RoutingError, StoreUnavailableError, UnsupportedError
from ..resolver import ResolvedStore
from ..store.pool import DaemonPool
from .adoption import adopt, discard, held, is_home, open_destination, pending
from .messages import Outcome, failed
from .operations import Setup
from .spill import spilled_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .executing import Executor
    from .tasks import Retry, Task

T = TypeVar("T")

_LOOK = 0.1  # s between looks whether workers have ended
_DYING = 10.0  # s until a killed process has let go of its arena
_HELD = re.compile(r".*/(fd-routing-\d+-[0-9a-f]{16}\.arena)(?: \(deleted\))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Leftover:
    """An arena of this user as it is now.

    Attributes:
        path: Where it is.
        nbytes: Its size.
        state: ``live``: its engine lives, or who uses it cannot be seen from here. ``draining``: the engine is dead, a
            worker finishes. ``dead``: nobody uses it. ``damaged``: nobody uses it, and it cannot be read.
        engine_pid: Process id of its engine, dead or alive; 0 if it cannot be read.
        worker_pid: Process id of who works on it; 0 if that is nobody, or nobody who can be seen from here.
        store: Name of its store; empty if it cannot be read.
        namespace: Its namespace there.
        pending: What is still to be done, for people.
        held: How many parts readers may still fetch from it.
        home: Whether there is something in it that only a store worker of its configuration can store.
        problem: Why it cannot be read.
    """

    path: str
    nbytes: int
    state: Literal["live", "draining", "serving", "dead", "damaged"]
    engine_pid: int = 0
    worker_pid: int = 0
    store: str = ""
    namespace: str = ""
    pending: tuple[str, ...] = ()
    held: int = 0
    home: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Rescue:
    """What became of a dead engine's arena.

    Attributes:
        removed: Whether it is gone.
        stored: Operations done.
        failed: What could not be done, and why.
        error: Why the arena stays.
    """

    removed: bool
    stored: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    error: RoutingError | None = None


def look(folder: str, *, tidy: bool = False) -> list[Leftover]:
    """Returns this user's arenas in a folder; ``tidy`` as in ``arena.file.find``."""
    found = [_inspect(each) for each in files.find(folder, tidy=tidy)]
    return [each for each in found if each is not None]


def _inspect(found: files.Found) -> Leftover | None:
    """Returns what an arena is; None if it is gone meanwhile."""
    left = Leftover(found.path, found.nbytes, "live" if found.used else "damaged")
    try:
        file = files.peek(found.path)
    except FileNotFoundError:
        return None
    except (ArenaError, OSError) as err:
        return replace(left, problem=str(err))
    try:
        left = replace(left, engine_pid=file.head.owner_pid)
        store = Setup.decode(file.text).store
        wire = msgspec.json.decode(store)
        left = replace(left, store=str(wire["store"]), namespace=str(wire["options"]["namespace"]))
        left = replace(left, pending=(*pending(file),), held=held(file))
        return _with_state(left, file) if found.used else replace(left, state="dead", home=_stays_home(left, store))
    except (ArenaError, msgspec.DecodeError, LookupError, TypeError) as err:
        why = str(err) if isinstance(err, ArenaError) else "the arena's text does not say which store it is for"
        return replace(left, problem=why)
    finally:
        file.close()


def _stays_home(left: Leftover, store: str) -> bool:
    """Whether something is left in a dead engine's arena that nobody else can store."""
    if not left.pending and not left.held:
        return False
    try:
        return is_home(ResolvedStore.from_json(store))
    except RoutingError:
        return False


def _with_state(left: Leftover, file: files.ArenaFile) -> Leftover:
    """Says who uses an arena that somebody uses."""
    worker, started = files.worker_of(file)
    works = files.alive(worker, started)
    if files.alive(file.head.owner_pid, file.head.owner_start):
        return replace(left, worker_pid=worker if works else 0)
    if works:
        state: Literal["draining", "serving"] = "draining" if left.pending or not left.held else "serving"
        return replace(left, state=state, worker_pid=worker)
    # A worker that was just started has not signed yet; or another process is storing what is in it.
    others = [pid for pid in _holders().get(os.path.basename(left.path), []) if pid != os.getpid()]
    return replace(left, state="draining", worker_pid=others[0]) if others else left


def _holders() -> dict[str, list[int]]:
    """Returns the visible processes that have an arena open, by the arena's name."""
    found: dict[str, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    match = _HELD.fullmatch(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
                    if match is not None:
                        found.setdefault(match[1], []).append(int(pid))
    return found


# --- waiting and ending ----------------------------------------------------------------------------------------------


def wait_until_unused(paths: Sequence[str], seconds: float, check: Callable[[], None] = lambda: None) -> bool:
    """Waits until nobody uses these arenas; returns whether that is so.

    Args:
        paths: The arenas.
        seconds: How long to wait.
        check: Called again and again; may raise.
    """
    folders = {os.path.dirname(path) for path in paths}
    end = time.monotonic() + seconds
    while True:
        used = {found.path for folder in folders for found in files.find(folder, tidy=False) if found.used}
        if used.isdisjoint(paths):
            return True
        if time.monotonic() >= end:
            return False
        check()
        time.sleep(min(_LOOK, max(0.0, end - time.monotonic())))


def kill_worker(path: str) -> bool:
    """Kills the worker of a dead engine; returns whether nobody uses the arena afterwards.

    The arena names the process by id and start time, so that no other process can be meant.
    """
    try:
        file = files.peek(path)
    except (ArenaError, OSError):
        return False
    try:
        if files.alive(file.head.owner_pid, file.head.owner_start):
            return False
        pid, started = files.worker_of(file)
    finally:
        file.close()
    try:
        # The descriptor stays with the process that has the id now, whatever becomes of the id.
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not files.alive(pid, started):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(process)
    return wait_until_unused([path], _DYING)


def end_workers(folder: str, seconds: float) -> None:
    """Lets the workers of dead engines finish for so many seconds, then kills them."""
    paths = [found.path for found in files.find(folder, tidy=False) if found.used]
    if not wait_until_unused(paths, seconds):
        for path in paths:
            kill_worker(path)


# --- storing and removing --------------------------------------------------------------------------------------------


def rescue(path: str, calls: BoundedCalls, progress: Callable[[int, int], None]) -> Rescue:
    """Stores what a dead engine had handed over, in the store that its arena names, and removes the arena.

    Args:
        path: The arena.
        calls: What runs the store's code.
        progress: Called with the number of operations done and of all.
    """
    try:
        file = files.take(path)
        if file is None:
            return Rescue(not os.path.lexists(path))
        setup = Setup.decode(file.text)
    except ArenaError as err:
        return Rescue(False, error=err)
    try:
        if not pending(file) and not held(file):
            discard(file, setup)
            return Rescue(True)
        resolved = ResolvedStore.from_json(setup.store)
        if is_home(resolved):
            raise stays_home(path, resolved.name)
        store = calls.call(lambda: open_destination(setup), setup.call_timeout)
    except RoutingError as err:
        file.close()
        return Rescue(False, error=err)
    try:
        adoption = adopt(file, store, setup, run=calls.runner(file, setup), progress=progress)
    finally:
        with contextlib.suppress(RoutingError):
            store.close()
        file.close()
    if adoption.kept:
        *lost, (what, why) = adoption.failed
        why = why.removeprefix(f"{StoreUnavailableError.code}: ")
        return Rescue(False, adoption.stored, lost, StoreUnavailableError(f"{what}: {why}"))
    return Rescue(True, adoption.stored, adoption.failed)


def stays_home(path: str, store: str) -> UnsupportedError:
    """Returns why nothing of an arena can be stored here: it would be kept for as long as this process lives."""
    return UnsupportedError(
        f"{path} is for store {store!r}, which keeps routing in the memory of who puts it",
        hint="an engine that is started with the same configuration takes it over",
    )


def throw_away(path: str) -> bool:
    """Removes an arena that nobody uses, with all that is in it; returns whether it is gone."""
    try:
        file = files.take(path)
        if file is not None:
            discard(file, Setup.decode(file.text))
    except ArenaError:
        files.remove_unread(path)
    return not os.path.lexists(path)


def orphaned(spill_dir: str, arena_dirs: Iterable[str]) -> list[str]:
    """Returns the spilled payloads whose arena is in none of the folders, and that no visible process has open."""
    there = {os.path.basename(found.path) for folder in arena_dirs for found in files.find(folder, tidy=False)}
    there |= _holders().keys()
    return [path for path, arena in spilled_in(spill_dir) if arena not in there]


class BoundedCalls:
    """Runs a store's code in threads that nobody has to wait for.

    Attributes:
        hung: Whether a call has not returned in its time. Its thread is left behind.
    """

    def __init__(self) -> None:
        self.hung = False
        self._pool = DaemonPool(1, "fd-routing-call")

    def call(self, function: Callable[[], T], limit: float) -> T:
        """Returns what a function returns, within ``limit`` seconds.

        Raises:
            StoreUnavailableError: it did not return.
        """
        future = self._pool.submit(function)
        try:
            result: T = future.result(limit)
        except FutureTimeoutError:
            if future.done():
                raise
            self.hung = True
            self._pool = DaemonPool(1, "fd-routing-call")
            raise StoreUnavailableError(
                f"the store did not return within {limit:g} s, the call_timeout of the writer", hint="is it all right?"
            ) from None
        return result

    def runner(self, file: files.ArenaFile, setup: Setup) -> Callable[[Executor, Task], Outcome | Retry]:
        """Returns what ``adopt`` does a task with; a store that hangs is unavailable."""
        view = ArenaView(file)

        def run(executor: Executor, task: Task) -> Outcome | Retry:
            starts = view.starts(task.block)
            try:
                return self.call(lambda: executor.run(task), setup.call_timeout)
            except StoreUnavailableError as err:  # leaves a start behind: what hangs again and again is given up
                return failed(task.block.sequence, err, setup.call_timeout)
            except BaseException:
                view.set_starts(task.block, starts)  # interrupted by people, which is nothing to hold against the part
                raise

        return run
