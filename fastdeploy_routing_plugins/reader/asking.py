"""What a reader asks for, and how it is read: ``Ask``. Coroutines over an open ``RoutingStore``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from ..errors import LengthMismatchError, NotFoundError
from ..spec import Capability
from ..store import fetching
from ..store.selection import bounds
from .share import joined, nothing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..keys import RoutingKey
    from ..record import RoutingRecord
    from ..schema import RoutingSchema
    from ..status import RolloutStatus
    from ..store.fetching import Clock
    from ..store.routing_store import RoutingStore
    from ..store.selection import Selection
    from .ranges import RankLayout
    from .share import RoutingShare
    from .staleness import Freshness

Reading: TypeAlias = "RoutingRecord | RoutingShare"

_ANEW = 16  # times that a share is read again because a new attempt came in between


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One rollout, or some of it; ``RoutingReader.get`` says what the fields mean.

    Attributes:
        rank: Whose share is asked for; None where ``layers``, ``layer_ids`` and ``tokens`` say it.
        recorded: How many recorded tokens the rollout must have.
        length: How many tokens the trainer divides; None: as many as are recorded.
    """

    key: RoutingKey
    layers: Selection = None
    tokens: Selection = None
    layer_ids: tuple[int, ...] | None = None
    min_attempt: int = 0
    verify: bool = True
    view: bool = False
    recorded: int | None = None
    length: int | None = None
    fresh: Freshness | None = None
    rank: RankLayout | None = None

    @property
    def whole(self) -> bool:
        """Whether all of the rollout is asked for."""
        return self.rank is None and self.layers is None and self.tokens is None and self.layer_ids is None

    @property
    def what(self) -> tuple[object, ...]:
        """What is read, without the conditions on it: equal for two asks that get the same."""
        ranges = bounds("layers", self.layers), bounds("tokens", self.tokens)
        return self.key, *ranges, self.layer_ids, self.length, self.rank

    def query(self, schema: RoutingSchema) -> fetching.Query:
        """What has to be covered before it can be read; the total has to be known where no range is stated."""
        if self.rank is None:
            return fetching.Query(
                self.key, self.layers, self.tokens, self.layer_ids, self.min_attempt, self.verify, self.view
            )
        ranges = self.rank.layer_ranges(schema)
        layers = min(start for start, _ in ranges), max(stop for _, stop in ranges)
        return fetching.Query(self.key, layers, min_attempt=self.min_attempt)

    def check_total(self, total: int | None) -> None:
        """Checks the number of recorded tokens of a rollout, if it is known and something is stated.

        Raises:
            LengthMismatchError: it is another one.
        """
        if total is not None and self.recorded not in (None, total):
            raise LengthMismatchError(
                f"{self.key} has {total} recorded tokens; the reader expects {self.recorded}",
                hint="num_tokens counts prompt and response; rows= says whether the last token has a row",
                stored=total,
                expected=self.recorded,
            )
        if total is not None and self.length is not None and total > self.length:
            raise LengthMismatchError(
                f"{self.key} has {total} recorded tokens; the reader divides {self.length}",
                stored=total,
                expected=self.length,
            )

    def checked(self, found: Reading) -> Reading:
        """Returns what was read if it is what was asked for.

        Raises:
            LengthMismatchError: The rollout has another number of tokens.
            StaleError: Older weights than accepted made it.
        """
        self.check_total(found.total_tokens)
        if self.fresh is not None:
            self.fresh.require(found)
        return found


async def read(store: RoutingStore, ask: Ask, timeout: float) -> Reading:
    """Reads, waiting up to ``timeout`` seconds for what is absent. Awaits verbs of ``store``, nothing else."""
    if ask.rank is not None:
        return ask.checked(await _read_share(store, ask, fetching.Clock(timeout)))
    return ask.checked(
        await store.get(
            ask.key,
            timeout=timeout,
            layers=ask.layers,
            tokens=ask.tokens,
            layer_ids=ask.layer_ids,
            min_attempt=ask.min_attempt,
            verify=ask.verify,
            view=ask.view,
        )
    )


async def wait(store: RoutingStore, ask: Ask, timeout: float) -> RolloutStatus:
    """Waits until what is asked can be read; moves nothing. Raises like ``RoutingStore.get``."""
    query, clock = ask.query(_schema(store)), fetching.Clock(timeout)
    return (await fetching.wait_until_readable(store._objects, store.namespace, store.schema, query, clock))[0]


async def _read_share(store: RoutingStore, ask: Ask, clock: Clock) -> Reading:
    """Reads a rank's rectangles, all of one attempt. Most ranks have one; its record is returned as it is."""
    rank = ask.rank
    assert rank is not None
    layers = rank.layer_ranges(_schema(store))
    if not layers:
        return nothing(ask.key, _schema(store), rank.local_length(ask.length or 0))
    if len(layers) == 1 and not rank.splits_tokens:
        some = None if layers[0] == (0, _schema(store).num_layers) else layers[0]
        return await store.get(
            ask.key, timeout=left(clock), layers=some, min_attempt=ask.min_attempt, verify=ask.verify, view=ask.view
        )  # fmt: skip
    for _ in range(_ANEW):
        status = await wait(store, ask, left(clock))
        total = status.total_tokens
        assert total is not None
        ask.check_total(total)
        length = total if ask.length is None else ask.length
        tokens = rank.token_ranges(length, total) or ((total, total),)  # none is ours: it still must be there, and fit
        ask = replace(ask, min_attempt=max(ask.min_attempt, status.attempt))
        pieces = []
        for these in layers:  # Python 3.10 takes no await in a comprehension within another
            pieces.append([await _piece(store, ask, these, those, clock) for those in tokens])
        if (
            len({(piece.attempt, piece.total_tokens) for row in pieces for piece in row} | {(status.attempt, total)})
            == 1
        ):
            return joined(pieces, rank.local_length(length))
    raise NotFoundError(f"attempts of {ask.key} replace each other faster than one of them can be read")


async def _piece(
    store: RoutingStore, ask: Ask, layers: tuple[int, int], tokens: tuple[int, int], clock: Clock
) -> RoutingRecord:
    where = {
        "layers": layers,
        "tokens": tokens,
        "min_attempt": ask.min_attempt,
        "verify": ask.verify,
        "view": ask.view,
    }
    return await store.get(ask.key, timeout=left(clock), **where)  # type: ignore[arg-type]


def nbytes(ask: Ask, status: RolloutStatus, schema: RoutingSchema) -> int:
    """Returns how many bytes of routing an ask gets of a rollout that is there."""
    if ask.rank is None:
        layers, tokens = _closed(ask, schema, status)
        return (layers[1] - layers[0]) * (tokens[1] - tokens[0]) * schema.row_bytes
    total = status.total_tokens or 0
    ranges = ask.rank.token_ranges(max(total, ask.length or 0), total) if ask.rank.splits_tokens else ((0, total),)
    count = sum(stop - start for start, stop in ranges)
    return len(ask.rank.layer_ids(schema)) * count * schema.row_bytes


def _closed(ask: Ask, schema: RoutingSchema, status: RolloutStatus) -> tuple[tuple[int, int], tuple[int, int]]:
    first, last = bounds("layers", ask.layers)
    if ask.layer_ids is not None:
        first, last = schema.position(ask.layer_ids[0]), schema.position(ask.layer_ids[-1]) + 1
    start, stop = bounds("tokens", ask.tokens)
    total = status.total_tokens
    if total is None:
        total = max((name.part.tokens[1] for name in status.parts), default=0)
    return (first, schema.num_layers if last is None else last), (start, total if stop is None else stop)


def left(clock: Clock) -> float:
    """Seconds until a clock's deadline, at least 0."""
    return max(0.0, clock.deadline - time.monotonic())


def _schema(store: RoutingStore) -> RoutingSchema:
    assert store.schema is not None  # a reader's store has one
    return store.schema


async def release(store: RoutingStore, keys: Iterable[RoutingKey]) -> None:
    """Tells a backend that lends memory that this reader is done with some rollouts."""
    objects = store._objects
    if Capability.RETAIN in objects.has:
        for key in keys:
            await objects.release(await objects.names(key.prefix(store.namespace)))
