"""Shared memory: its room, and what dead processes left there."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.arena.room import MIN_ARENA, choose_size
from fastdeploy_routing_plugins.cli.output import show_bytes
from fastdeploy_routing_plugins.doctor.lines import Line
from fastdeploy_routing_plugins.errors import ArenaRoomError, ConfigError
from fastdeploy_routing_plugins.stores.rdma import leftovers as shelves
from fastdeploy_routing_plugins.stores.rdma.shelf import MAX_AUTO
from fastdeploy_routing_plugins.wording import counted
from fastdeploy_routing_plugins.writer import leftovers as arenas
from fastdeploy_routing_plugins.writer.limits import WriterLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastdeploy_routing_plugins.doctor.case import Case

_TMPFS = ("tmpfs", "ramfs", "hugetlbfs")
_CLEAN = "fd-routing clean stores what can be stored, and removes it"


def _limits() -> WriterLimits:
    try:
        return WriterLimits.load()
    except ConfigError:  # line `writer` says what is wrong
        return WriterLimits()


def check_memory(case: Case) -> Iterator[Line]:
    """Looks whether an engine's writer, and a producer of the configured store, find room."""
    limits = _limits()
    for folder in case.folders or (limits.arena_dir,):
        yield _room(folder, limits.arena_bytes, "an engine's arena")
    config = case.rdma
    if config is not None:
        folder = case.folders[0] if case.folders else config.arena_dir
        yield _room(
            folder, max(config.capacity, MIN_ARENA) if config.capacity else None, "a producer's shelf", MAX_AUTO
        )


def _room(folder: str, wanted: int | None, what: str, at_most: int = sys.maxsize) -> Line:
    """Says whether a folder has room for something of a size; None: for what it would be by itself."""
    subject = "memory"
    try:
        size = choose_size(folder, wanted) if wanted else min(choose_size(folder, None), at_most)
    except ArenaRoomError as err:
        return Line(subject, "bad", f"no room for {what}: {err.message}", err.hint)
    found = os.statvfs(folder)
    free = f"{show_bytes(found.f_bavail * found.f_frsize)} free" if found.f_blocks else "no limit"
    text = f"{folder} ({free}) has room for {what} of {show_bytes(size)}"
    kind = _file_system(folder)
    if kind and kind not in _TMPFS:
        cure = "set arena_dir to a tmpfs, /dev/shm for example"
        return Line(subject, "warn", f"{text}, but is no shared memory: it lies on {kind}", cure)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Line(subject, "bad", f"nothing can be made in {folder}", "set arena_dir, or its permissions")
    return Line(subject, "good", text)


def _file_system(folder: str) -> str:
    """Returns which file system a folder is on; empty if the kernel does not say."""
    path, best, kind = os.path.realpath(folder), "", ""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        return ""
    for row in rows:
        point = row[1].replace("\\040", " ") if len(row) > 2 else ""
        if point and os.path.commonpath([path, point]) == point and len(point) >= len(best):
            best, kind = point, row[2]
    return kind


def check_leftovers(case: Case) -> Iterator[Line]:
    """Looks for what dead processes of this user left in shared memory."""
    folders = case.folders or tuple(
        dict.fromkeys([_limits().arena_dir, *([case.rdma.arena_dir] if case.rdma else [])])
    )
    dead = [each for folder in folders for each in arenas.look(folder)]
    held = [each for folder in folders for each in shelves.look(folder)]
    yield from _arenas(dead)
    useless = [each for each in held if each.state != "live"]
    if useless:
        size, count = show_bytes(sum(each.nbytes for each in useless)), sum(each.objects for each in useless)
        text = f"{counted(len(useless), 'shelf', 'shelves')} of dead producers ({size}, {counted(count, 'object')})"
        yield Line("leftovers", "warn", text, "fd-routing clean removes those that no store worker takes over")
    pages = [each for folder in folders for each in shelves.dead_pages(folder)]
    if pages:
        text = f"{len(pages)} pages of dead metadata services ({show_bytes(sum(each.nbytes for each in pages))})"
        yield Line("leftovers", "warn", text, "fd-routing clean removes them")
    if not useless and not pages and all(each.state == "live" for each in dead):
        yield Line("leftovers", "good", f"none in {', '.join(folders)}; arenas in use: {len(dead) + len(held)}")


def _arenas(found: Sequence[arenas.Leftover]) -> Iterator[Line]:
    dead = [each for each in found if each.state == "dead"]
    if dead:
        count, size = sum(len(each.pending) for each in dead), show_bytes(sum(each.nbytes for each in dead))
        text = f"{counted(len(dead), 'arena')} of dead engines ({size}, {counted(count, 'operation')})"
        yield Line("leftovers", "warn", text, _CLEAN)
    for each in found:
        if each.state == "damaged":
            yield Line("leftovers", "warn", f"{each.path}: {each.problem}", "fd-routing clean --discard removes it")
        elif each.state == "draining":
            text = f"worker {each.worker_pid} of a dead engine still works on {each.path}"
            yield Line("leftovers", "info", text, "fd-routing clean --kill ends it, should it hang")
