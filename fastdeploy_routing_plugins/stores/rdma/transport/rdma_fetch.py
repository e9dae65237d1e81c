"""Reading objects from one producer: as many at once as the receive memory has room for, each checked on arrival."""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from ....arena.layout import PAGE, TAIL_BYTES
from ....backend import Blob
from ....errors import CorruptDataError, NotFoundError, RoutingError, StoreClosedError, StoreUnavailableError
from .base import Wanted
from .rdma_blocks import DoubtError, check_payload, check_tail, read_card
from .rdma_call import Call, Transfer
from .rdma_contact import described
from .rdma_engine import STUCK
from .rdma_plan import plan
from .spans import cut, spans_of, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from ....arena.pool import Pool
    from ..place import OwnerInfo
    from .rdma_line import Line
    from .rdma_plan import Plan
    from .rdma_pool import Piece, ReceivePool

VIEW_FROM: Final = 256 << 10  # bytes; below, a copy costs less than to keep track of a view
AT_ONCE: Final = 256  # objects
_SLICE: Final = 4 << 20  # bytes
_SLICES: Final = 8  # under way at once
_TRIES: Final = 2  # a connection may have gone while nobody used it


class _AgainError(Exception):
    """What was being read is to be read again, by another engine or after asking whether the producer lives.

    Attributes:
        counts: Whether it may not happen often.
    """

    def __init__(self, counts: bool) -> None:
        self.counts = counts


class Fetch:
    """One call of ``Source.read``.

    Args:
        line: Which engine to read with, see ``rdma_line``.
        copies: Where results go that cannot stay where they arrived.
        info: The producer.
        segment: Its name in Mooncake.
        in_order: Whether each transfer's bytes are read in order.
        fresh: Whether it gave a sign of life lately.
        deadline: When to give up, in ``time.monotonic()``.
    """

    def __init__(
        self,
        line: Line,
        copies: Pool,
        info: OwnerInfo,
        segment: str,
        in_order: bool,
        fresh: Callable[[], bool],
        deadline: float,
    ) -> None:
        self._line = line
        self._copies = copies
        self._info = info
        self._segment = segment
        self._in_order = in_order
        self._fresh = fresh
        self._deadline = deadline
        self._tries = 0
        self._use(line.pool)

    def _use(self, pool: ReceivePool) -> None:
        self._pool = pool
        self._slice = min(_SLICE, pool.largest)

    def read(self, wanted: Sequence[Wanted]) -> list[Blob | RoutingError]:
        """See ``Source.read``."""
        try:
            return self._read_twice(wanted)
        except StoreUnavailableError as err:
            if self._line.closed:
                raise StoreClosedError("the store is closed") from err
            raise

    def _read_twice(self, wanted: Sequence[Wanted]) -> list[Blob | RoutingError]:
        """Reads, and reads again what was not whole: what changed meanwhile has gone by then, the rest is damaged."""
        answers = self._read(wanted)
        doubtful = [index for index, answer in enumerate(answers) if isinstance(answer, DoubtError)]
        again = self._read([wanted[index] for index in doubtful])
        for index, answer in zip(doubtful, again, strict=True):
            damaged = isinstance(answer, DoubtError)
            answers[index] = CorruptDataError(f"{wanted[index].name} is damaged") if damaged else answer
        return answers

    def _read(self, wanted: Sequence[Wanted]) -> list[Blob | RoutingError]:
        answers: list[Blob | RoutingError | None] = [None] * len(wanted)
        plans: deque[tuple[int, Plan]] = deque()
        for index, each in enumerate(wanted):
            try:
                plans.append((index, plan(each, self._info, in_order=self._in_order)))
            except (CorruptDataError, NotFoundError) as err:
                answers[index] = err
        while plans:
            try:
                if plans[0][1].nbytes > self._pool.largest:
                    answers[plans[0][0]] = self._read_large(plans[0][1])
                    plans.popleft()
                else:
                    self._read_some(plans, answers)
            except _AgainError as err:
                self._use(self._line.pool)
                self._tries += err.counts
                if self._tries >= _TRIES:
                    raise StoreUnavailableError(
                        f"{described(self._info)} does not let itself be read from at {self._segment}",
                        hint="a retry may succeed; the metadata service knows whether it is gone for good",
                    ) from None
        return [each for each in answers if each is not None]

    # --- several objects --------------------------------------------------------------------------------------------

    def _read_some(self, plans: deque[tuple[int, Plan]], answers: list[Blob | RoutingError | None]) -> None:
        """Reads the first few of what is left, and takes them off."""
        taken = [(plans[0][0], plans[0][1], self._room(plans[0][1].nbytes))]
        left = self._pool.nbytes // 2 - plans[0][1].nbytes  # a producer that freezes must not take all
        for index, each in itertools.islice(plans, 1, AT_ONCE):
            left -= each.nbytes
            piece = self._pool.take(each.nbytes) if left > 0 and each.nbytes <= self._pool.largest else None
            if piece is None:
                break
            taken.append((index, each, piece))
        try:
            self._transfer([transfer for _, each, piece in taken for transfer in _transfers(each, piece)])
            for index, each, piece in taken:
                try:
                    answers[index] = self._opened(each, piece)
                except (CorruptDataError, NotFoundError) as err:
                    answers[index] = err
                plans.popleft()
        finally:
            for _, _, piece in taken:
                piece.drop()

    def _opened(self, each: Plan, piece: Piece) -> Blob:
        """Returns what arrived, if it is what was wanted."""
        place, name = each.wanted.place, each.wanted.name
        if each.again is not None:
            self._check(each, piece)
        raw = piece.data[each.card.at : each.card.at + each.card.nbytes]
        header = read_card(raw, self._info.arenas[0].key, place, name)
        start = min((at for at, size in each.pieces if size), default=0)
        stop = max((at + size for at, size in each.pieces if size), default=0)
        if stop == start:
            return Blob(header, (memoryview(b""),) * len(each.pieces))
        memory = piece.view(start, stop) if stop - start >= VIEW_FROM else None
        if memory is None:
            memory = self._copies.take(stop - start)
            np.copyto(np.frombuffer(memory, np.uint8), np.frombuffer(piece.data[start:stop], np.uint8))
        if len(each.pieces) == 1:
            return Blob(header, (memory,))
        return Blob(header, tuple([memory[at - start : at - start + size] for at, size in each.pieces]))

    def _check(self, each: Plan, piece: Piece) -> None:
        """Sees to it that a payload in a piece is the one that was wanted."""
        place, name = each.wanted.place, each.wanted.name
        key = self._info.arenas[place.arena].key
        head = check_payload(piece.data[each.head : each.head + PAGE], key, place, name)
        if each.tail is not None:
            check_tail(piece.data[each.tail : each.tail + TAIL_BYTES], head, name)

    # --- one that is larger than what one read may take -------------------------------------------------------------

    def _read_large(self, each: Plan) -> Blob | RoutingError:
        """Reads a large object slice by slice, each copied to where it stays as soon as it arrives."""
        wanted, place = each.wanted, each.wanted.place
        card = self._read([Wanted(wanted.name, place, ())])[0]
        if isinstance(card, RoutingError) or each.again is None:
            return card
        spans = spans_of(wanted)
        target = self._copies.take(total(spans))
        whole = np.frombuffer(target, np.uint8)
        slices = deque(_slices(spans, each.again.remote + place.payload_at - place.page * PAGE, self._slice))
        while slices:
            self._read_slices(slices, whole)
        piece = self._room(PAGE)
        try:
            self._transfer([Transfer(piece, 0, each.again.remote, each.again.nbytes)])
            self._check(msgspec.structs.replace(each, head=0, tail=None), piece)
        except (CorruptDataError, NotFoundError) as err:
            return err
        finally:
            piece.drop()
        return Blob(card.header, cut(target, spans))

    def _read_slices(self, slices: deque[tuple[int, int, int]], whole: npt.NDArray[np.uint8]) -> None:
        """Reads as many slices as there is room for, and takes them off."""
        taken: list[tuple[tuple[int, int, int], Piece]] = []
        piece: Piece | None = self._room(self._slice)
        while piece is not None:
            taken.append((slices.popleft(), piece))
            piece = self._pool.take(self._slice) if slices and len(taken) < _SLICES else None
        try:
            self._transfer([Transfer(piece, 0, remote, nbytes) for (remote, nbytes, _), piece in taken])
            for (_, nbytes, at), piece in taken:
                np.copyto(whole[at : at + nbytes], np.frombuffer(piece.data[:nbytes], np.uint8))
        finally:
            for _, piece in taken:
                piece.drop()

    # --- moving bytes -----------------------------------------------------------------------------------------------

    def _room(self, nbytes: int) -> Piece:
        """Returns receive memory, for which it may wait: nothing may be held meanwhile."""
        piece = self._pool.wait(nbytes, self._deadline)
        if piece is None:
            self._line.renew(self._pool)
            raise StoreUnavailableError(
                f"all {self._pool.nbytes >> 20} MiB of receive memory are in use",
                hint="by other reads, or by transfers from producers that do not answer",
            )
        return piece

    def _transfer(self, transfers: Sequence[Transfer]) -> None:
        """Reads; returns when all has arrived.

        Raises:
            StoreUnavailableError: not before the deadline.
            _AgainError: it failed; memory for the next try must be other memory.
        """
        engine = self._line.meet(self._segment, self._info, self._fresh, self._deadline)
        call = Call(self._segment, transfers)
        if self._line.pool is not self._pool or not engine.start(call):
            raise _AgainError(counts=False)
        try:
            while not engine.finish(call, min(self._deadline, time.monotonic() + STUCK)):
                if time.monotonic() >= self._deadline:
                    self._line.lost(engine, self._segment)
                    raise StoreUnavailableError(
                        f"{described(self._info)} did not answer in time",
                        hint="a retry may succeed; the metadata service knows whether it is gone for good",
                    )
                if engine.stuck and not call.launched:
                    self._line.replace(engine)
                    raise _AgainError(counts=False)
        finally:
            if not call.over:
                engine.give_up(call)
        if call.failed:
            self._line.lost(engine, self._segment)
            raise _AgainError(counts=True)


def _transfers(each: Plan, piece: Piece) -> list[Transfer]:
    """Returns what is to be read for an object into a piece."""
    again = each.again
    then = None if again is None or each.head else Transfer(piece, again.at, again.remote, again.nbytes)
    return [Transfer(piece, span.at, span.remote, span.nbytes, then) for span in each.spans]


def _slices(spans: Iterable[tuple[int, int]], base: int, largest: int) -> Iterator[tuple[int, int, int]]:
    """Yields ``(address, size, place among the results)`` of a payload's spans in slices of at most so many bytes."""
    at = 0
    for start, stop in spans:
        while start < stop:
            nbytes = min(largest, stop - start)
            yield base + start, nbytes, at
            start += nbytes
            at += nbytes
