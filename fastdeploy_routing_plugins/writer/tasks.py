"""A block on its way through the worker: ``Task``, when it is tried again, and what a backend is lent of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..backend import Buffer, LentBlock
from ..errors import ArenaFullError, ArenaRoomError, BackendError, RoutingError, StoreUnavailableError
from .honesty import VanishedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..arena.layout import BlockHead
    from .operations import Operation

_TRIES = 3  # of a backend that fails in its own ways
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # s between tries


@dataclass(frozen=True, slots=True)
class Retry:
    """The operation is to be tried again after so many seconds."""

    pause: float


@dataclass(slots=True)
class Task:
    """A block on its way through the worker.

    Attributes:
        block: Where it lies.
        operation: What to do.
        taken: When the worker took it, in ``time.monotonic()``.
        again: Whether an earlier worker had done it, and its store keeps the payload in place.
        tries: How often it was tried.
        lent: The buffers that backends were handed, by all tries.
        over: Whether it ended. What a try that failed gives back says nothing about the next one.
    """

    block: BlockHead
    operation: Operation
    again: bool = False
    taken: float = field(default_factory=time.monotonic)
    tries: int = 0
    lent: list[LentBuffer] = field(default_factory=list)
    over: bool = False

    @property
    def retained(self) -> bool:
        """Whether a backend still keeps the payload, by whichever try."""
        return any(buffer.retained and not buffer.released for buffer in self.lent)

    def pause_after(self, err: RoutingError, retry_for: float) -> float | None:
        """Returns how many seconds to wait before another try, or None if the error is final.

        Args:
            err: What the last try failed with.
            retry_for: Seconds from the first try within which another may begin.
        """
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self.tries - 1, 10))
        late = time.monotonic() - self.taken + pause > retry_for
        memory = isinstance(err, (ArenaRoomError, ArenaFullError)) and "most" not in err.facts  # others may free some
        if memory or isinstance(err, StoreUnavailableError):
            return None if late else pause
        if isinstance(err, BackendError) and not isinstance(err, VanishedError):
            return None if late or self.tries >= _TRIES else pause
        return None


class LentBuffer(Buffer):
    """A payload in the arena. A backend may keep it; the block is reused after ``release``."""

    __slots__ = ("released", "retained")

    def __init__(
        self, data: memoryview, shape: tuple[int, ...], dtype: str, on_release: Callable[[], None], block: LentBlock
    ) -> None:
        super().__init__(data, shape, dtype, on_release=on_release, block=block)
        self.retained = self.released = False

    def retain(self) -> Buffer:
        """Returns this buffer, which stays as it is until ``release``."""
        self.retained = True
        return self

    def release(self) -> None:
        """Gives the buffer back."""
        self.released = True
        super().release()
