"""An arena from the side of a reader that takes no part in it: mapped read-only, blocks pinned while looked at."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArenaError
from .head import read_head
from .layout import _CHECKED, BLOCK_MAGIC, HEAD_BYTES, MAX_META, PAGE, WORD, State, Word, checksum
from .lent import lend
from .pins import _SLOT, Pins

if TYPE_CHECKING:
    import numpy.typing as npt

_SPARE = 16  # slots that a reader keeps; there are 4,096 for all readers of an arena


class ReadArena:
    """A mapped arena of another process of this user on this host. Methods may be called from several threads.

    The mapping lives as long as this object and every view that it gave out, also after ``close``, and after the
    file is removed. A forked child may go on using the object: it pins for itself.

    Args:
        path: The arena's file.
        nbytes: Its size.
        key: Its key.

    Attributes:
        bytes: The file's bytes.

    Raises:
        ArenaError: that is not the arena that lies there; ``__cause__`` is an OSError if nothing can be opened.
    """

    def __init__(self, path: str, nbytes: int, key: int) -> None:
        self.path = path
        self.nbytes = nbytes
        self.key = key
        mapping = _map(path, nbytes, key)
        self._pages = nbytes // PAGE
        self._data = memoryview(mapping)
        self._words = self._data.cast("Q")
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
        self._address: int = self.bytes.__array_interface__["data"][0]
        self._pins: _LastingPins | None = None

    def card(self, page: int, generation: int) -> tuple[bytes, int, int] | None:
        """Returns a block's meta text, where in the file its payload begins, and its size; None if it is not there.

        The text is a copy, which a digest with the arena's key covers: it is that of this generation, even if the
        block is freed meanwhile.
        """
        head = self._head(page, generation)
        if head is None:
            return None
        *numbers, digest = head
        _, _, _, meta_bytes, payload_at, payload_bytes = numbers
        at = page * PAGE
        meta = bytes(self._data[at + HEAD_BYTES : at + HEAD_BYTES + min(meta_bytes, MAX_META)])
        if checksum(self.key, _CHECKED.pack(page, *numbers), meta) != digest:
            return None
        return meta, at + payload_at, payload_bytes

    def holds(self, page: int, generation: int) -> bool:
        """Whether the block of that generation is still there. Ask this after pinning it, and after copying it."""
        return self._head(page, generation) is not None

    def holds_payload(self, page: int, generation: int, start: int, stop: int) -> bool:
        """Whether the block of that generation is still there and has these bytes of the file in its payload."""
        head = self._head(page, generation)
        if head is None:
            return False
        *_, payload_at, payload_bytes, _ = head
        begin = page * PAGE + payload_at
        return begin <= start <= stop <= min(begin + payload_bytes, self._pages * PAGE)

    def _head(self, page: int, generation: int) -> list[int] | None:
        """Returns the words of a block's head that its digest covers, and the digest; None if it is not there."""
        if not 0 < page < self._pages:
            return None
        first = page * PAGE // WORD
        # In this order: if the generation is still there afterwards, the state was this generation's.
        magic, state, *head = self._words[first : first + Word.CHECKSUM + 1].tolist()
        if magic != BLOCK_MAGIC or state == State.FREE or head[0] != generation:
            return None
        _, _, pages, *_ = head
        tail = first + pages * PAGE // WORD
        return head if self._words[tail - 2 : tail].tolist() == head[:2] else None

    def pin(self, page: int, generation: int) -> Pin:
        """Keeps the owner from using a block again. Ask ``holds`` *after* this: it may be gone already.

        Raises:
            ArenaError: all pins are in use, or the owner is gone, which took them with it.
        """
        pins = self._pins
        if pins is None or pins.closed:  # not opened yet, or by the process that this one was forked from
            pins = self._pins = _LastingPins(self.path)
        return Pin(pins, pins.pin(page, generation))

    def view(self, start: int, stop: int, pin: Pin) -> memoryview:
        """Returns bytes of the file in place, which keep a pin until nothing refers to them any more."""
        pin.taken = True  # before: an interrupt may leave it behind, but must not give it back twice
        return lend(self._address + start, stop - start, pin.pins.unpin, pin.slot, keep=self.bytes)

    def close(self) -> None:
        """Lets go of the arena; what looks at it keeps its pins."""
        pins, self._pins = self._pins, None
        if pins is not None:
            pins.retire()


class Pin:
    """A pin that is given back at the end of a ``with`` block, unless a view took it over."""

    __slots__ = ("pins", "slot", "taken")

    def __init__(self, pins: Pins, slot: int) -> None:
        self.pins = pins
        self.slot = slot
        self.taken = False

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.taken:
            self.pins.unpin(self.slot)


class _LastingPins(Pins):
    """Pins whose file stays open until the last of them is given back; a few locked slots are kept for the next ones.

    An owner takes no notice of a locked slot that is empty.
    """

    def __init__(self, arena: str) -> None:
        super().__init__(arena)
        self._spare: list[int] = []
        self._retired = False

    @property
    def closed(self) -> bool:
        """Whether nothing can be pinned."""
        return self._fd < 0

    def pin(self, page: int, generation: int) -> int:
        """See ``Pins``."""
        with self._lock:
            if self._spare:
                slot = self._spare.pop()
                os.pwrite(self._fd, _SLOT.pack(*self._identity, page, generation), slot * _SLOT.size)
                self._mine.add(slot)
                return slot
            slot = super().pin(page, generation)
            if slot in self._spare:  # the garbage collector gave it back while a free one was looked for
                self._spare.remove(slot)
            return slot

    def unpin(self, slot: int) -> None:
        """See ``Pins``."""
        with self._lock:
            if slot in self._mine and len(self._spare) < _SPARE:
                os.pwrite(self._fd, bytes(_SLOT.size), slot * _SLOT.size)
                self._mine.discard(slot)
                self._spare.append(slot)
            else:
                super().unpin(slot)
            if self._retired and not self._mine:
                self.close()

    def retire(self) -> None:
        """Closes the file as soon as nothing is pinned."""
        with self._lock:
            self._retired = True
            if not self._mine:
                self.close()

    def close(self) -> None:
        """See ``Pins``. Closing the file gives up the spare slots' locks."""
        super().close()
        self._spare.clear()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # nobody is left who could give a pin back
            self.close()


def _map(path: str, nbytes: int, key: int) -> mmap.mmap:
    """Maps an arena's file, if it is the one that is meant."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        raise ArenaError(f"{path} cannot be opened: {err.strerror}") from err
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise ArenaError(f"{path} is another user's") from PermissionError(errno.EPERM, "a foreign file")
        head = read_head(path, fd, found.st_size)
        if head.key != key or found.st_size != nbytes:
            raise ArenaError(f"{path} is another arena than the one that is meant")
        with contextlib.suppress(ValueError):
            return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        raise ArenaError(f"{path} cannot be mapped")
    except OSError as err:
        raise ArenaError(f"{path} cannot be mapped: {err.strerror}") from err
    finally:
        os.close(fd)
