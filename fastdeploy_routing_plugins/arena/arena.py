"""The engine's side of an arena: ``Arena`` hands out blocks, publishes them in order and takes them back."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArenaRoomError, StoreClosedError
from . import file as files
from .allocator import Extents
from .layout import MAX_META, PAGE, TAIL_BYTES, WORD, Live, State, Word, block_size, read_code, write_block
from .pins import PinBook
from .room import choose_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from .file import ArenaFile

_CONTROL_SHARE = 16  # one part in so many of the heap is for operations without payload
_CONTROL_MAX = 16 << 20


class Block:
    """Pages in the hand of whoever fills them.

    Attributes:
        page: First page.
        pages: Number of pages.
        generation: Different for every use of any page.
        meta: What to do with it, see ``writer.operations``.
        payload_at: Where the payload begins, from the start of the file.
        payload_bytes: Its size.
        sequence: Place in the order of publishing; 0 before.
    """

    __slots__ = ("generation", "meta", "page", "pages", "payload_at", "payload_bytes", "sequence")

    def __init__(self, page: int, pages: int, generation: int, meta: bytes, offset: int, payload_bytes: int) -> None:
        self.page = page
        self.pages = pages
        self.generation = generation
        self.meta = meta
        self.payload_at = page * PAGE + offset
        self.payload_bytes = payload_bytes
        self.sequence = 0

    @property
    def nbytes(self) -> int:
        """Size of the block in bytes, its head included."""
        return self.pages * PAGE


class Arena:
    """One arena, from the side of its owner. Methods may be called from several threads.

    Args:
        file: The file, made by ``file.create``.
    """

    def __init__(self, file: ArenaFile) -> None:
        self.file = file
        self._words = file.words
        self._key = file.head.key
        self._lock = threading.Lock()
        heap = file.head.heap_page
        pages = file.head.pages - heap
        control = min(pages // _CONTROL_SHARE, _CONTROL_MAX // PAGE)
        self._control_from = heap + pages - control
        self._data = Extents(heap, pages - control)
        self._control = Extents(self._control_from, control)
        self._ring = file.head.ring_page * PAGE // WORD
        self._slots = file.head.ring_slots
        self._published = 0
        self._generation = 0
        self._returned: deque[Block] = deque()  # released, not looked at yet
        self._waiting: list[Block] = []  # done with, but pinned by readers
        self._pins = PinBook(file.path)
        self._closed = False

    @classmethod
    def create(cls, folder: str, nbytes: int | None, text: bytes, kind: str = files.ENGINE) -> Arena:
        """Makes an arena.

        Args:
            folder: A tmpfs.
            nbytes: Its size; None: a quarter of the free room, at most 4 GiB.
            text: JSON for adopters.
            kind: See ``file.create``.

        Raises:
            ArenaRoomError: there is not enough room.
            ArenaError: the folder does not allow it.
        """
        file = files.create(folder, choose_size(folder, nbytes), text, kind)
        try:
            return cls(file)
        except BaseException as err:
            file.remove()
            file.close()
            if isinstance(err, OSError):
                raise ArenaRoomError(f"{folder} has no room for an arena's pins: {err.strerror}") from err
            raise

    @property
    def capacity(self) -> int:
        """Bytes of the heap that payloads can use, heads included."""
        return self._data.pages * PAGE

    @property
    def free(self) -> int:
        """Free bytes of that."""
        with self._lock:
            self._sweep()
            return self._data.free * PAGE

    @property
    def largest(self) -> int:
        """Bytes of the largest block that fits now."""
        with self._lock:
            self._sweep()
            return self._data.largest * PAGE

    def allocate(self, meta: bytes, payload_bytes: int) -> Block | None:
        """Returns a block to fill, or None if there is no room for it now, or never will be; see ``fits``.

        Operations without payload may use a share of the heap that parts cannot, so a full arena still takes them.
        """
        if len(meta) > MAX_META:
            return None
        pages, offset = block_size(len(meta), payload_bytes)
        with self._lock:
            if self._closed:
                raise _closed()
            if self._returned:
                self._sweep()
            page = self._data.take(pages)
            if page is None and self._waiting:
                self._reclaim()
                page = self._data.take(pages)
            if page is None and payload_bytes == 0:
                page = self._control.take(pages)
            if page is None:
                return None
            self._generation += 1
            return Block(page, pages, self._generation, meta, offset, payload_bytes)

    def fits(self, meta_bytes: int, payload_bytes: int) -> bool:
        """Whether a block of this size fits into an empty arena."""
        return meta_bytes <= MAX_META and block_size(meta_bytes, payload_bytes)[0] <= self._data.pages

    def want(self, meta_bytes: int, payload_bytes: int) -> None:
        """Tells the worker that a block of this size is waited for, until ``want_nothing``."""
        with self._lock:
            if not self._closed:
                self._words[Live.WANTED] = block_size(meta_bytes, payload_bytes)[0] * PAGE

    def want_nothing(self) -> None:
        """Tells the worker that nobody waits any more."""
        with self._lock:
            if not self._closed:
                self._words[Live.WANTED] = 0

    def array(self, block: Block, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """Returns a block's payload as a writable array, in place."""
        count = block.payload_bytes // np.dtype(dtype).itemsize
        flat: npt.NDArray[np.generic] = np.frombuffer(self.file.map, dtype, count, block.payload_at)
        return flat.reshape(shape)

    def publish(self, block: Block) -> int | None:
        """Hands a filled block to the worker; returns its sequence, or None while the ring has no slot."""
        with self._lock:
            if self._closed:
                raise _closed()
            if self._published - self._words[Live.RING_TAIL] >= self._slots:
                return None
            sequence = self._published + 1
            page, offset = block.page, block.payload_at - block.page * PAGE
            heading = page, block.pages, block.generation, sequence, block.meta, offset, block.payload_bytes
            write_block(self.file.data, self._words, self._key, *heading)
            block.sequence = sequence
            self._words[self._ring + self._published % self._slots] = block.page
            self._published = sequence
            self._words[Live.RING_HEAD] = sequence
            return sequence

    def state(self, block: Block) -> int:
        """Returns the state of a published block."""
        with self._lock:
            self._check_open()
            return int(self._words[block.page * PAGE // WORD + Word.STATE])

    def code(self, block: Block) -> str:
        """Returns the code of the error that a block ended in, if its state is FAILED."""
        with self._lock:
            self._check_open()
            return read_code(self.file.data, block.page)

    def release(self, block: Block) -> None:
        """Takes a block back; its pages are used again once no reader has a pin on them.

        Never waits and takes no lock: the garbage collector may call this in the middle of any other method, and a
        signal may end it anywhere. Readers find the block gone at once; the next ``allocate`` does the rest.
        """
        if block.sequence and not self._closed:
            with contextlib.suppress(ValueError):  # closed meanwhile
                self._words[block.page * PAGE // WORD + Word.STATE] = State.FREE
        self._returned.append(block)

    def _sweep(self) -> None:
        """Looks at what was released since the last time. Called with the lock held."""
        if not self._returned:
            return
        while self._returned:
            self._waiting.append(self._returned.popleft())
        self._reclaim()

    def _reclaim(self) -> None:
        """Frees what no living reader looks at. The state was set before: a later pin finds the block gone."""
        if self._closed:
            return
        pinned = self._pins.pinned()
        if pinned is None:
            return
        for block in list(self._waiting):
            if (block.page, block.generation) in pinned:
                continue
            self._waiting.remove(block)  # before: an interrupt may lose pages, but must not give them back twice
            # Before a byte of it is used again: whoever read head or end afterwards knows what he read in between.
            self._words[block.page * PAGE // WORD + Word.MAGIC] = 0
            self._words[((block.page + block.pages) * PAGE - TAIL_BYTES) // WORD] = 0
            (self._control if block.page >= self._control_from else self._data).give(block.page, block.pages)

    def restart_ring(self) -> int:
        """Drops what a dead worker did not take; returns the sequence from which the next one reads the ring."""
        with self._lock:
            self._check_open()
            self._words[Live.RING_TAIL] = self._published
            return self._published + 1

    def beats(self) -> int:
        """Returns a number that grows while the worker's main loop turns."""
        with self._lock:
            return 0 if self._closed else int(self._words[Live.HEARTBEAT])

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def close(self, *, remove: bool) -> None:
        """Lets go of the arena; ``remove`` also takes it from the file system."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if remove:
                self.file.remove()
            self._pins.close()
            self.file.close()

    def forget(self) -> None:
        """In a forked child, which is no owner: closes the descriptors."""
        self._lock = threading.Lock()  # a thread that is not here may hold the old one
        self.close(remove=False)


def _closed() -> StoreClosedError:
    return StoreClosedError("the writer is closed")
