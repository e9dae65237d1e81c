"""The first page of an arena file: what it says, written and read with care."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass

from ..errors import ArenaError, ArenaRoomError
from .layout import FILE_HEAD, FILE_MAGIC, PAGE, RING_SLOTS, VERSION, WORD, pages_for

_MAX_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class FileHead:
    """The first page of an arena; see ``layout``."""

    pages: int
    key: int
    ring_page: int
    ring_slots: int
    heap_page: int
    text_bytes: int
    owner_pid: int
    owner_start: int


def plan(size: int, text: bytes, owner_pid: int, owner_start: int) -> FileHead:
    """Returns the head of a new arena.

    Raises:
        ArenaRoomError: so small a file is no arena.
        ArenaError: the text is too long.
    """
    if len(text) > _MAX_TEXT:
        raise ArenaError(f"the configuration has {len(text)} bytes, an arena keeps {_MAX_TEXT}")
    ring_page = 2 + pages_for(len(text))
    heap_page = ring_page + pages_for(RING_SLOTS * WORD)
    if heap_page + 2 > size // PAGE:
        raise ArenaRoomError(f"{size} bytes are too few for an arena", hint="set arena_bytes higher")
    key = int.from_bytes(os.urandom(8), "little")
    return FileHead(size // PAGE, key, ring_page, RING_SLOTS, heap_page, len(text), owner_pid, owner_start)


def write_head(fd: int, head: FileHead, text: bytes) -> None:
    """Writes head and text. The magic comes last: a file without it was never used."""
    raw = FILE_HEAD.pack(FILE_MAGIC, VERSION, *astuple(head))
    os.pwrite(fd, text, 2 * PAGE)
    os.pwrite(fd, raw[WORD:], WORD)
    os.pwrite(fd, raw[:WORD], 0)


def read_head(path: str, fd: int, size: int) -> FileHead:
    """Returns the head of a file of ``size`` bytes.

    Raises:
        ArenaError: it is no arena, of another version, or damaged.
    """
    raw = os.pread(fd, FILE_HEAD.size, 0)
    if len(raw) < FILE_HEAD.size:
        raise ArenaError(f"{path} is no arena: it has {size} bytes")
    magic, version, *numbers = FILE_HEAD.unpack(raw)
    if magic != FILE_MAGIC:
        raise ArenaError(f"{path} is no arena, or damaged")
    if version != VERSION:
        raise ArenaError(
            f"{path} is an arena of version {version}, not {VERSION}",
            hint="`fd-routing clean` of the version that made it reads it",
        )
    head = FileHead(*numbers)
    text_end = 2 + pages_for(head.text_bytes)
    ring_end = head.ring_page + pages_for(head.ring_slots * WORD)
    sound = (
        size == head.pages * PAGE
        and head.text_bytes <= _MAX_TEXT
        and text_end <= head.ring_page
        and 0 < head.ring_slots <= 1 << 20
        and ring_end <= head.heap_page < head.pages
    )
    if not sound:
        raise ArenaError(f"{path} is damaged: its head contradicts its size")
    return head
