"""Bytes on their way, and who waits for them."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .rdma_pool import Piece


class Transfer:
    """Bytes on their way from a producer into a piece of receive memory.

    Args:
        piece: The piece.
        at: Where in it they go.
        remote: Their address in the producer's process.
        nbytes: How many.
        then: What is read when this and all others that name it have arrived.
    """

    __slots__ = ("awaits", "batch", "call", "local", "nbytes", "piece", "remote", "then")

    def __init__(self, piece: Piece, at: int, remote: int, nbytes: int, then: Transfer | None = None) -> None:
        self.piece = piece
        self.local = piece.address + at
        self.remote = remote
        self.nbytes = nbytes
        self.then = then
        self.awaits = 0
        self.batch = 0
        self.call: Call | None = None
        if then is not None:
            then.awaits += 1


class Call:
    """Transfers from one producer that one thread waits for.

    Args:
        segment: The producer's name in Mooncake.
        transfers: What to read, and after each what it names as ``then``.

    Attributes:
        over: Whether nothing more is to be waited for: all ended, or one failed while others may be under way.
        failed: Whether one of them failed.
        given_up: Whether nobody waits for it any more.
        launched: Whether the engine has seen any of them.
        nbytes: How much is read.
        left: How many have not ended.
        flying: Those under way.
    """

    __slots__ = ("_bell", "failed", "flying", "given_up", "launched", "left", "nbytes", "over", "segment", "transfers")

    def __init__(self, segment: str, transfers: Sequence[Transfer]) -> None:
        self.segment = segment
        self.transfers = transfers
        self.nbytes = sum([each.nbytes for each in transfers])
        self.left = len(transfers)
        self.flying: deque[Transfer] = deque()
        self.over = False
        self.failed = False
        self.given_up = False
        self.launched = False
        self._bell = threading.Lock()
        self._bell.acquire()

    def wait(self, seconds: float) -> None:
        """Returns when somebody has called ``wake`` since the last time, or after so long."""
        self._bell.acquire(timeout=seconds)

    def wake(self) -> None:
        """Has ``wait`` return, now or when it is called next."""
        with contextlib.suppress(RuntimeError):  # woken already
            self._bell.release()

    def end(self, *, failed: bool) -> None:
        """Says that it is over."""
        self.failed = self.failed or failed
        self.over = True
        self.wake()
