"""A payload on its way into a backend: ``Buffer``, and where it lies if it is lent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .arena.file import ArenaFile


@dataclass(frozen=True, slots=True)
class LentBlock:
    """Where a lent payload lies in shared memory, for a backend that lets readers look at it there.

    Attributes:
        arena: The engine's arena.
        page: First page of the payload's block.
        generation: That block's generation: another one means that the block was reused.
        payload_at: Where the payload begins, in bytes from the start of the arena's file.
        again: Whether a process that died had put it already. It may have been deleted since, and then it is no error
            that a backend, which knows of that, does not keep it.
    """

    arena: ArenaFile
    page: int
    generation: int
    payload_at: int
    again: bool = False


class Buffer:
    """A payload on its way into a backend.

    Attributes:
        data: The payload as a flat, read-only memoryview of bytes. Valid until ``_put`` returns.
        shape: ``(layers, tokens, top_k)``, or ``()`` for seals and abort marks, whose payload is empty.
        dtype: ``"uint8"``, ``"uint16"`` or ``"uint32"``, little-endian.
        block: Where in shared memory the payload lies, if it is lent from an engine's arena.
    """

    __slots__ = ("_on_release", "block", "data", "dtype", "shape")

    def __init__(
        self,
        data: memoryview,
        shape: tuple[int, ...] = (),
        dtype: str = "uint8",
        *,
        on_release: Callable[[], None] | None = None,
        block: LentBlock | None = None,
    ) -> None:
        self.data = data
        self.shape = shape
        self.dtype = dtype
        self.block = block
        self._on_release = on_release

    @property
    def nbytes(self) -> int:
        """Size of the payload in bytes."""
        return self.data.nbytes

    @property
    def lent(self) -> bool:
        """Whether the owner leaves the memory alone until ``release``; otherwise it is the caller's after the put."""
        return self._on_release is not None

    def __repr__(self) -> str:
        return f"Buffer({self.nbytes} bytes, shape={self.shape}, dtype={self.dtype})"

    def copy_into(self, target: memoryview) -> bytes | None:
        """Copies the payload to memory of its size, without holding the interpreter's lock.

        Returns:
            The object's header, if it was made from what was copied: it takes the place of the one that ``_put`` got,
            and is as long. Only backends whose ``digests_on_copy`` is true meet that.
        """
        import numpy as np  # noqa: PLC0415 - stores are listed without it

        if self.nbytes:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(self.data, np.uint8))
        return None

    def retain(self) -> Buffer:
        """Returns a buffer of this content that stays valid until ``release``: a copy, unless the owner lends it."""
        return self if self.lent else Buffer(memoryview(bytes(self.data)), self.shape, self.dtype)

    def release(self) -> None:
        """Gives a retained buffer back to its owner. Harmless when nobody waits for it."""
        if self._on_release is not None:
            callback, self._on_release = self._on_release, None
            callback()
