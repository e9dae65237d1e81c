"""What lies where in an arena file, and how a block describes itself.

The file, in pages of 4,096 bytes, all words little-endian u64::

    page 0      file head: magic, version, pages, key, ring page, ring slots, heap page, text bytes, owner, its start
    page 1      live words, each on a cache line of its own (``Live``)
    page 2 ..   text: JSON of whoever made the arena, for whoever adopts it
    ring        one word per slot: the page of a published block
    heap        blocks

A block is a run of pages. It begins with a head of 16 words and the meta text, its payload begins on a page border,
and its last two words repeat generation and sequence, so that a block whose tail equals its head was written whole.
The checksum is XXH3-64 of page, head and meta, seeded with the arena's random key: no payload can pass for a head, nor
can a copy of a block on other pages. A freed block's magic, and the generation at its end, are wiped before its pages
are used again, so pages that are free have no old heads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import xxhash

PAGE: Final = 4096
WORD: Final = 8
VERSION: Final = 1
FILE_MAGIC: Final = int.from_bytes(b"FDARENA\n", "little")
BLOCK_MAGIC: Final = int.from_bytes(b"FDBLOCK\n", "little")
RING_SLOTS: Final = 16_384
MAX_META: Final = 1 << 20

FILE_HEAD: Final = struct.Struct("<10Q")
HEAD_BYTES: Final = 128
TAIL_BYTES: Final = 16
CODE_BYTES: Final = 48
_CHECKED = struct.Struct("<7Q")  # page, generation, sequence, pages, meta bytes, payload's place, payload bytes
_END = struct.Struct("<Q56x")  # checksum; starts and code are zero at first


class Live:
    """Index, in words, of what changes while the arena lives."""

    RING_HEAD: Final = 512  # blocks ever published; written by the engine
    RING_TAIL: Final = 520  # blocks ever taken; written by the worker
    HEARTBEAT: Final = 528  # grows while the worker's main loop turns
    WORKER_PID: Final = 536
    WORKER_START: Final = 544
    WANTED: Final = 552  # bytes that the engine waits for, 0 if it does not; written by the engine


class State(IntEnum):
    """A block's state word."""

    FREE = 0
    READY = 1  # published by the engine, not done yet
    DONE = 2  # the worker did it; whole and readable in the store
    RETAINED = 3  # done, and the backend still uses the payload
    FAILED = 4  # ended in an error, which ``Word.CODE`` names


class Word:
    """Index of a word within a block's head."""

    MAGIC: Final = 0
    STATE: Final = 1
    GENERATION: Final = 2
    SEQUENCE: Final = 3
    PAGES: Final = 4
    META_BYTES: Final = 5
    PAYLOAD_AT: Final = 6
    PAYLOAD_BYTES: Final = 7
    CHECKSUM: Final = 8
    STARTS: Final = 9  # how often a worker began this block and died or hung before it ended
    CODE: Final = 10  # the error's code, ASCII, padded with zeros to ``CODE_BYTES``


_BEGIN = struct.pack("<2Q", BLOCK_MAGIC, State.FREE)
_READY = int(State.READY)


@dataclass(frozen=True, slots=True)
class BlockHead:
    """A block as its head describes it; places in bytes from the start of the file.

    Attributes:
        page: First page.
        pages: Number of pages.
        generation: Different for every use of any page.
        sequence: Place in the order in which the engine published.
        meta: The operation, see ``writer.operations``.
        payload_at: Where the payload begins.
        payload_bytes: Size of the payload.
        starts: See ``Word.STARTS``.
    """

    page: int
    pages: int
    generation: int
    sequence: int
    meta: bytes
    payload_at: int
    payload_bytes: int
    starts: int


def pages_for(nbytes: int) -> int:
    """Returns how many pages hold so many bytes."""
    return -(-nbytes // PAGE)


def block_size(meta_bytes: int, payload_bytes: int) -> tuple[int, int]:
    """Returns ``(pages of a block, offset of its payload in bytes)``."""
    payload_at = -(-(HEAD_BYTES + meta_bytes) // PAGE) * PAGE
    end = payload_at + payload_bytes if payload_bytes else HEAD_BYTES + meta_bytes
    return -(-(end + TAIL_BYTES) // PAGE), payload_at


def checksum(key: int, checked: bytes, meta: bytes) -> int:
    """Returns the digest that only a head of this arena on this page has."""
    return xxhash.xxh3_64_intdigest(checked + meta, key)


def write_block(
    data: memoryview,
    words: memoryview,
    key: int,
    page: int,
    pages: int,
    generation: int,
    sequence: int,
    meta: bytes,
    payload_at: int,
    payload_bytes: int,
) -> None:
    """Describes a block whose payload is in place. The state comes last: until then the block does not exist.

    Args:
        data: The file's bytes.
        words: The same as words.
        key: The arena's key.
        page: See ``BlockHead``.
        pages: See ``BlockHead``.
        generation: See ``BlockHead``.
        sequence: See ``BlockHead``.
        meta: See ``BlockHead``.
        payload_at: Offset of the payload within the block.
        payload_bytes: See ``BlockHead``.
    """
    # An engine's thread waits for this: few calls, each for many words.
    at = page * PAGE
    end = at + pages * PAGE
    checked = _CHECKED.pack(page, generation, sequence, pages, len(meta), payload_at, payload_bytes)
    head = b"".join((_BEGIN, checked[WORD:], _END.pack(xxhash.xxh3_64_intdigest(checked + meta, key)), meta))
    data[at : at + len(head)] = head
    data[end - TAIL_BYTES : end] = checked[WORD : WORD + TAIL_BYTES]
    words[at // WORD + Word.STATE] = _READY


def read_block(data: memoryview, words: memoryview, key: int, page: int) -> BlockHead | None:
    """Returns the block that begins on a page, or None if none that is whole does. Never reads outside ``data``."""
    at = page * PAGE
    first = at // WORD
    if page <= 0 or at + PAGE > len(data) or words[first + Word.MAGIC] != BLOCK_MAGIC:
        return None
    checked = page.to_bytes(WORD, "little") + data[at + Word.GENERATION * WORD : at + Word.CHECKSUM * WORD]
    _, generation, sequence, pages, meta_bytes, payload_at, payload_bytes = _CHECKED.unpack(checked)
    end = at + pages * PAGE
    if pages == 0 or end > len(data) or meta_bytes > min(MAX_META, pages * PAGE - HEAD_BYTES - TAIL_BYTES):
        return None
    if (pages, payload_at) != block_size(meta_bytes, payload_bytes):
        return None
    meta = bytes(data[at + HEAD_BYTES : at + HEAD_BYTES + meta_bytes])
    if words[first + Word.CHECKSUM] != checksum(key, checked, meta):
        return None
    last = end // WORD
    if words[last - 2] != generation or words[last - 1] != sequence:
        return None
    starts = words[first + Word.STARTS]
    return BlockHead(page, pages, generation, sequence, meta, at + payload_at, payload_bytes, starts)


def read_code(data: memoryview, page: int) -> str:
    """Returns the code of the error that the block on a page ended in."""
    at = page * PAGE + Word.CODE * WORD
    return bytes(data[at : at + CODE_BYTES]).rstrip(b"\0").decode("ascii", "replace")
