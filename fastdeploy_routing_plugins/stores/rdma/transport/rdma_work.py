"""What is to be read, and what is on its way: submitted in order, and looked at until it has ended."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....trylock import TryLock
    from .rdma_call import Call, Transfer

AT_ONCE: Final = 256  # transfers from one producer; in its TCP mode Mooncake refuses more than 1,024


class Work:
    """Transfers of one engine. ``add`` may be called by anybody, all else only by whoever does the work.

    Args:
        engine: Mooncake's engine.
        gate: A lock without which nothing is submitted.
        over: Called when a call is over, while transfers of it may still be under way.
    """

    def __init__(self, engine: Any, gate: TryLock, over: Callable[[Call], None]) -> None:
        self._engine = engine
        self._gate = gate
        self._over = over
        self._new: deque[Call] = deque()
        self._waiting: dict[str, deque[Transfer]] = {}  # by producer
        self._flying: list[Call] = []
        self._count: Counter[str] = Counter()  # of transfers under way, by producer

    def add(self, call: Call) -> None:
        """Takes a call to read."""
        self._new.append(call)

    @property
    def left(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._new or self._waiting or self._flying)

    def end(self) -> None:
        """Lets go of the engine. Only when nothing is left."""
        self._engine = None

    def flying(self) -> list[Call]:
        """Returns the calls of which something is under way."""
        return list(self._flying)

    def round(self) -> bool:
        """Submits what is new, and looks once at what is under way; returns whether anything changed."""
        while self._new:
            call = self._new.popleft()
            self._waiting.setdefault(call.segment, deque()).extend(call.transfers)
        launched = bool(self._waiting) and self._launch()
        return self._look() or launched

    def _launch(self) -> bool:
        """Submits what waits, unless somebody meets a new producer; returns whether any was."""
        launched = False

        def launch() -> None:
            nonlocal launched
            for segment, waiting in list(self._waiting.items()):
                while waiting and self._count[segment] < AT_ONCE:
                    self._submit(waiting.popleft())
                    launched = True
                if not waiting:
                    del self._waiting[segment]

        if not self._gate.run(launch):
            self._drop_unwanted()
        return launched

    def _drop_unwanted(self) -> None:
        """Forgets what waits for nobody."""
        for segment, waiting in list(self._waiting.items()):
            for _ in range(len(waiting)):
                transfer = waiting.popleft()
                assert transfer.call is not None
                if transfer.call.given_up or transfer.call.failed:
                    self._ended(transfer.call, transfer, worked=False)
                else:
                    waiting.append(transfer)
            if not waiting:
                del self._waiting[segment]

    def _submit(self, transfer: Transfer) -> None:
        call = transfer.call
        assert call is not None
        if call.given_up or call.failed:
            self._ended(call, transfer, worked=False)
            return
        call.launched = True
        transfer.batch = self._engine.batch_transfer_async_read(
            call.segment, [transfer.local], [transfer.remote], [transfer.nbytes]
        )
        if transfer.batch == 0:
            self._ended(call, transfer, worked=False)
            return
        self._count[call.segment] += 1
        if not call.flying:
            self._flying.append(call)
        call.flying.append(transfer)

    def _look(self) -> bool:
        """Looks once at the oldest transfer of each call, and on from there; returns whether something ended."""
        moved = False
        for call in list(self._flying):
            flying = call.flying
            while flying:
                state = self._engine.transfer_check_status(flying[0].batch)
                if state not in (1, -1):  # -2 is the engine's own idea of late: the bytes may still arrive
                    break
                moved = True
                self._count[call.segment] -= 1
                self._ended(call, flying.popleft(), worked=state == 1)
            if not flying:
                self._flying.remove(call)
                if not self._count[call.segment]:
                    del self._count[call.segment]
        return moved

    def _ended(self, call: Call, transfer: Transfer, *, worked: bool) -> None:
        """Takes note that a transfer is over; has what comes after it read."""
        then = transfer.then
        if worked and then is not None and not call.given_up:
            then.awaits -= 1
            if then.awaits == 0:
                then.call = call
                then.piece.hold()
                self._waiting.setdefault(call.segment, deque()).append(then)
                call.left += 1
        transfer.piece.drop()
        call.left -= 1
        if call.left == 0 or not worked:
            call.end(failed=not worked)
            self._over(call)
