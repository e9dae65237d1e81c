"""``RoutingReader``: the trainer's side. Reads what a rank needs, one rollout or many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from ..errors import RoutingError, UnsupportedError
from ..keys import as_key
from ..store.fetching import Clock
from . import asking, gathering, several, turns
from .batching import Terms
from .handle import ReaderHandle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..errors import StoreError
    from ..keys import RoutingKey
    from ..record import RoutingRecord
    from ..store.routing_store import RoutingStore
    from ..store.selection import Selection
    from .alignment import Rows
    from .asking import Ask, Reading
    from .batch import RoutingBatch, Side
    from .places import Places
    from .staleness import Freshness, StaleSpan

    Key = str | RoutingKey
    OnMissing = Literal["raise", "mask"]


_EACH: Final = "n"  # every token has a row


class RoutingReader(ReaderHandle):
    """Reads routing for a trainer; ``open_reader`` makes one. Close it, or use it as a context manager.

    Safe to use from several threads. It pickles as what it was opened with. A copy in another process, and a reader in
    a forked process, opens the store there when it is first used, and never touches what its origin has open.

    Reading consumes nothing: any number of ranks read the same rollouts.

    Args:
        resolved: Which store, from ``resolve``.
        schema: The model's schema, which all routing must follow.
        layout: What this rank needs, from ``ParallelLayout``; None: everything.
        prefetch_bytes: How many bytes of routing ``prefetch`` holds at most.
        prefetch_records: How many rollouts ``prefetch`` waits for, reads and holds at most.

    Raises:
        InvalidRecordError: An argument is not what it should be.
        ConfigError: The layout has recorded layers in no stage.
        RoutingError: The store does not open; the error is the store's own.
    """

    # --- one rollout --------------------------------------------------------------------------------------------

    def get(
        self,
        key: Key,
        timeout: float = 0.0,
        layers: Selection = None,
        tokens: Selection = None,
        *,
        layer_ids: Sequence[int] | None = None,
        choice: int = 0,
        min_attempt: int = 0,
        num_tokens: int | None = None,
        rows: Rows = "n",
        pad_to: int | None = None,
        fresh: Freshness | None = None,
        verify: bool = True,
        view: bool = False,
    ) -> Reading:
        """Returns the routing of a rollout, waiting for it if need be.

        Args:
            key: The rollout id, or a ``RoutingKey``.
            timeout: Seconds to wait for what is absent; moving the bytes is not counted.
            layers: Which MoE layers, by position in the recorded layers.
            tokens: Which tokens, absolute. A range is returned as soon as its own parts are there.
            layer_ids: Which layers by the model's own indices, consecutive recorded ones; instead of ``layers``.
            choice: Which choice of a request with ``n > 1``.
            min_attempt: Attempts below this do not count.
            num_tokens: The rollout's tokens as the trainer counts them; the record must have that many, by ``rows``.
            rows: Whether every token has a row (``"n"``) or the last one has none (``"n-1"``, ``"shifted"``).
            pad_to: To how many tokens the trainer pads the sample before it divides them between ranks.
            fresh: How old the weights may be.
            verify: Whether digests are compared (whole chunks are read then).
            view: Whether it may lie in the store's own memory; see ``view``.

        Returns:
            What ``layers``, ``layer_ids`` and ``tokens`` say. Without them, all that this rank needs: a
            ``RoutingRecord`` if that is one range of layers and all tokens, else a ``RoutingShare``.

        Raises:
            AbsentError: It is not there when the time is over; the subclass says why, ``waited`` how long it took.
            SchemaMismatchError: It follows another schema than the reader states; the message shows both.
            LengthMismatchError: It has another number of tokens than ``num_tokens`` says.
            StaleError: Weights made it that are older than ``fresh`` accepts.
            CorruptDataError: Stored bytes are not what was put.
            ConflictError: Parts contradict each other.
        """
        place = as_key(key, choice)
        special = self.layout, layers, tokens, layer_ids, num_tokens, pad_to, fresh
        usual = rows is _EACH and type(min_attempt) is int and not min_attempt and all(one is None for one in special)
        if usual and self._own().begun is None:
            return self._own().store.get(place, timeout=timeout, verify=verify, view=view)
        counts = None if num_tokens is None else [num_tokens]
        terms = Terms(
            self.schema, self.layout, layers=layers, layer_ids=layer_ids, min_attempt=min_attempt, fresh=fresh,
            verify=verify, view=view, num_tokens=counts, rows=rows, pad_to=pad_to,
        )  # fmt: skip
        ask = terms.ask(place, tokens)
        own = self._own()
        begun = own.begun
        if begun is not None and ask in begun.prefetched:
            taken = begun.run(lambda _, prefetched: prefetched.take(ask))
            if taken is not None:
                return ask.checked(taken)
        Clock(timeout)  # says if it is none, also where nothing has to be waited for
        if own.store.moves_many and (tokens is None or view) and not terms.shared:
            there = own.read_at_once([ask], terms.places(0 if view else 1, "right"))
            if there:
                return there[0]
        return own.store.run(lambda store: asking.read(store, ask, timeout))

    def view(
        self, key: Key, timeout: float = 0.0, layers: Selection = None, tokens: Selection = None, **how: Any
    ) -> Reading:
        """Returns the same as ``get`` without looking at the bytes: no digests, and no copy the store can spare.

        What comes back may lie in the store's own memory, even in the engine's, which keeps it there for as long as
        anything refers to it: let go of it soon.
        """
        return self.get(key, timeout, layers, tokens, **{"verify": False, "view": True, **how})

    def get_turn(
        self,
        key: Key,
        turn: int,
        timeout: float = 0.0,
        *,
        new_only: bool = False,
        choice: int = 0,
        min_attempt: int = 0,
        fresh: Freshness | None = None,
        verify: bool = True,
    ) -> RoutingRecord:
        """Returns a trajectory up to the end of a turn, as soon as that turn was appended; see ``Trajectory``.

        Args:
            key: The trajectory's id.
            turn: Which turn, from 0 on.
            timeout: Seconds to wait for it.
            new_only: Only the tokens that this turn added, not those before.
            choice: See ``get``.
            min_attempt: See ``get``.
            fresh: See ``get``.
            verify: See ``get``.

        Raises:
            NotFoundError: The trajectory is over and has fewer turns.
            UnsupportedError: This rank has no single range of it; ask with ``get(key, layers=…, tokens=…)``.
            RoutingError: As ``get``.
        """
        place, clock = as_key(key, choice), Clock(timeout)
        terms = Terms(self.schema, self.layout, min_attempt=min_attempt, fresh=fresh, verify=verify)
        terms.ask(place, (0, 0))  # says now if the rank's layers are no single range
        if self.layout is not None and self.layout.splits_tokens:
            raise UnsupportedError(
                f"this rank ({self.layout}) has a share of the tokens, not a whole turn",
                hint="get(key, tokens=…) reads any range; turns(key) says where turns end",
            )

        async def job(store: RoutingStore) -> Reading:
            start, stop = await turns.find_turn(store, place, turn, asking.left(clock), min_attempt)
            ask = terms.ask(place, (start if new_only else 0, stop))
            return await asking.read(store, ask, asking.left(clock))

        found: Any = self._own().store.run(job)
        record: RoutingRecord = found
        return record

    def turns(self, key: Key, *, choice: int = 0) -> tuple[int, ...]:
        """Returns one past the last token of each turn that a trajectory has so far. Raises NotFoundError."""
        return turns.turn_ends(self.store.status(key, choice=choice))

    # --- many rollouts ------------------------------------------------------------------------------------------

    def get_batch(
        self,
        ids: Iterable[Key],
        timeout: float = 0.0,
        on_missing: OnMissing = "raise",
        *,
        layers: Selection = None,
        layer_ids: Sequence[int] | None = None,
        min_attempt: int = 0,
        fresh: Freshness | None = None,
        verify: bool = True,
        num_tokens: Sequence[int] | None = None,
        rows: Rows = "n",
        tokens: slice | Sequence[slice] | None = None,
        pad_to: int | None = None,
        side: Side = "right",
        fill: int | None = None,
    ) -> RoutingBatch:
        """Reads several rollouts at the same time into one padded array, in the order of ``ids``.

        Args:
            ids: Rollout ids or ``RoutingKey``s; one may stand there several times, and is read once.
            timeout: Seconds to wait for all of them together.
            on_missing: What becomes of a rollout that cannot be had. ``"raise"``: an error, at once for what waiting
                does not cure, else when the time is over. ``"mask"``: it stays in the batch without a recorded row,
                ``batch.missing`` has its error, and ``batch.check_missing`` limits their share; tokens of weights that
                are too old then count as not recorded.
            layers: As for ``get``.
            layer_ids: As for ``get``.
            min_attempt: As for ``get``.
            fresh: As for ``get``.
            verify: As for ``get``.
            num_tokens: Tokens of each sample as the trainer counts them, before it cuts any off. None: as recorded.
            rows: How rows belong to tokens, see ``align``.
            tokens: Which tokens the trainer keeps, see ``align``; only their rows are read.
            pad_to: To how many tokens the trainer pads each sample, before it divides them between ranks. None: to
                those of the longest one.
            side: Where padding goes.
            fill: An id to pad with. None: distinct ids, spread over the experts.

        Raises:
            StoreError: With ``"raise"``: the first failure in the order of ``ids``; fact ``failed`` has all of them,
                by index. With ``"mask"``: what is wrong with the store, not with one rollout.
            SchemaMismatchError: A rollout follows another schema.
            LengthMismatchError: A rollout has another number of tokens than ``num_tokens`` says.
            InvalidRecordError: The arguments do not fit each other.
        """
        mask, keys = several.masks(on_missing), several.keys(ids)
        terms = Terms(
            self.schema, self.layout, layers=layers, layer_ids=layer_ids, min_attempt=min_attempt, verify=verify,
            view=True, fresh=None if mask else fresh, num_tokens=num_tokens, rows=rows, tokens=tokens, pad_to=pad_to,
        )  # fmt: skip
        asks = terms.asks(keys)
        clock = Clock(timeout)
        if len(set(keys)) == len(keys):
            places = terms.places(len(keys), side)
            items = self._all_of(asks, clock, places, mask=mask)
        else:
            places = terms.places(0, side)
            once = {(ask.what, ask.recorded): ask for ask in asks}
            try:
                found = self._all_of(list(once.values()), clock, places, mask=mask)
            except RoutingError as err:
                raise several.as_asked(err, list(once), [(ask.what, ask.recorded) for ask in asks]) from None
            by_what = dict(zip(once, found, strict=True))
            items = [by_what[ask.what, ask.recorded] for ask in asks]
        return terms.batch(items, keys, side, fill, fresh if mask else None, places)

    def _all_of(
        self, asks: Sequence[Ask], clock: Clock, places: Places, *, mask: bool
    ) -> Sequence[Reading | StoreError]:
        own = self._own()
        have = own.read_at_once(asks, places)
        if len(have) == len(asks):
            return [have[index] for index in range(len(asks))]
        to = own.concurrent()
        return to.run(lambda store, ahead: gathering.all_of(store, ahead, asks, clock, to.lanes, have, mask=mask))

    def as_completed(
        self, ids: Iterable[Key], timeout: float = 0.0, on_missing: OnMissing = "raise", **terms: Any
    ) -> Iterator[tuple[Key, Reading | StoreError]]:
        """Reads several rollouts at the same time and yields each, with its id as given, as soon as it is there.

        Args:
            ids: Rollout ids or ``RoutingKey``s.
            timeout: Seconds from the call on to wait for all of them together.
            on_missing: What becomes of those that cannot be had. ``"raise"``: after all others were yielded, the first
                failure in the order of ``ids`` is raised; fact ``failed`` has all of them, by index. ``"mask"``: their
                errors are yielded in their place.
            **terms: ``layers``, ``layer_ids``, ``min_attempt``, ``fresh``, ``verify``, ``num_tokens``, ``rows``,
                ``tokens`` and ``pad_to`` of ``get_batch``.

        Raises:
            RoutingError: As ``get_batch``; what is wrong with all of them, at once.
        """
        given = list(several.some(ids))
        asks = Terms(self.schema, self.layout, **terms).asks(several.keys(given))
        mask = several.masks(on_missing)
        return several.completed(self, self._own().concurrent(), given, asks, Clock(timeout), mask=mask)

    def prefetch(self, ids: Iterable[Key], timeout: float = 600.0, **terms: Any) -> None:
        """Begins to read rollouts in the background, within the reader's bounds, and returns.

        A later ``get``, ``get_batch`` or ``as_completed`` of the same ranges takes what is there. What nobody takes is
        held until ``release`` or ``close``. Reading ahead raises nothing: whoever gets the rollout meets the error.

        Args:
            ids: Rollout ids or ``RoutingKey``s, in the order in which they will be needed.
            timeout: Seconds to wait for what is absent.
            **terms: As for ``as_completed``; ranges must be those of the later call.
        """
        asks = Terms(self.schema, self.layout, **terms).asks(several.keys(ids))
        if self.layer_ids:
            self._own().concurrent().run(lambda _, prefetched: prefetched.add(asks, timeout))

    def release(self, ids: Iterable[Key]) -> None:
        """Says that rollouts are not needed any more; to be called by one rank, once all of them have read.

        Frees what was prefetched of them. A store that lends its memory (``rdma``) gives that back to the engine, and
        nobody gets them any more; other stores go on keeping them.

        Args:
            ids: Rollout ids or ``RoutingKey``s.
        """
        keys, own = several.keys(ids), self._own()
        if own.begun is not None:
            own.begun.run(lambda store, prefetched: gathering.release(store, prefetched, keys))
        if own.begun is None or own.begun.loop is not own.store.loop:  # a blocking backend's other handle
            own.store.run(lambda store: asking.release(store, keys))

    def stale(self, ids: Iterable[Key], fresh: Freshness) -> dict[Key, tuple[StaleSpan, ...]]:
        """Returns which tokens of which rollouts are too old, from headers alone; those without any are left out.

        Raises:
            NotFoundError: One of them is not stored.
        """
        Terms(self.schema, fresh=fresh)  # says if it is none
        given = list(several.some(ids))
        stats = self._own().concurrent().run(lambda store, _: gathering.stats(store, several.keys(given)))
        spans = [fresh.stale(stat.weight_versions, [(0, turns.covered(stat.status))], stat.unstated) for stat in stats]
        return {key: some for key, some in zip(given, spans, strict=True) if some}
