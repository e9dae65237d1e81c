"""Trajectories that grow turn by turn: one rollout, to which each turn appends a part with absolute tokens.

A turn's part holds the tokens that were not there before, so turn ``t`` of a trajectory is everything up to the end of
that part: the chain of parts ``0 .. t``. Nothing is stored twice, any turn is one range of tokens, ``0:end``, and the
parts' own names say where turns end. The trajectory is sealed when its last turn is over.

A trajectory that has to begin again, because its engine died or its weights changed under it, goes on under a higher
attempt: ``Trajectory.resume`` carries over what may stay, with the weight versions that made it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..arrays import is_token_first
from ..backend import GetRequest
from ..errors import AbortedError, ConflictError, InvalidKeyError, InvalidRecordError, NotFoundError, SupersededError
from ..keys import MAX_ATTEMPT, as_key, check_int, shown
from ..names import MAX_TOKENS, Part
from ..record import spans_within
from ..store import fetching, reading
from ..store.assemble import uncovered
from ..store.selection import bounds
from ..store.sync import SyncStore
from . import asking

if TYPE_CHECKING:
    from ..arrays import IntArray
    from ..envelope import PartHeader
    from ..keys import RoutingKey
    from ..names import PartName
    from ..record import Versions
    from ..schema import RoutingSchema
    from ..status import PutOutcome, RolloutStatus
    from ..store.routing_store import RoutingStore
    from ..store.selection import Selection
    from ..writer.routing_writer import RoutingWriter
    from ..writer.tickets import Ticket


def covered(status: RolloutStatus) -> int:
    """Returns how many first tokens a rollout has in all of its layers, without a gap."""
    stop = max((name.part.tokens[1] for name in status.parts), default=0)
    if not stop:
        return 0
    missing = uncovered(status.parts, Part((0, stop), (0, status.total_layers)))
    return min((gap.tokens[0] for gap in missing), default=stop)


def turn_ends(status: RolloutStatus) -> tuple[int, ...]:
    """Returns one past the last token of each turn of a trajectory, as far as its tokens are there without a gap.

    A turn is what one ``append`` added: each token at which a part ends, ends a turn. A turn without tokens leaves no
    trace, and one that is put in several parts one after the other, prefill and decode, counts as several.
    """
    stop = covered(status)
    return tuple(sorted({name.part.tokens[1] for name in status.parts if 0 < name.part.tokens[1] <= stop}))


async def find_turn(
    store: RoutingStore, key: RoutingKey, turn: int, timeout: float, min_attempt: int
) -> tuple[int, int]:
    """Waits for a turn; returns the range of the tokens that it added.

    Raises:
        NotFoundError: The trajectory is over and has fewer turns.
        AbsentError: It is not there when the time is over.
    """
    turn, clock = check_int("turn", turn, MAX_TOKENS), fetching.Clock(timeout)
    while True:
        reached = 0
        status = await store._known(key)
        if status is not None:
            ends = turn_ends(status) if status.attempt >= min_attempt else ()
            if turn < len(ends) and status.state not in ("aborted", "conflict"):
                return ends[turn - 1] if turn else 0, ends[turn]
            if status.state == "complete" and status.attempt >= min_attempt:
                raise NotFoundError(f"{key} was over after {len(ends)} turns; there is no turn {turn}")
            reached = ends[-1] if ends else 0
        # The next turn is there as soon as the next token is; how long it is, its part will say.
        await asking.wait(
            store, asking.Ask(key, tokens=(reached, reached + 1), min_attempt=min_attempt), asking.left(clock)
        )


class Trajectory:
    """The side that writes a trajectory: appends turns to one rollout of a store, or of a writer.

    Args:
        target: Where turns go: an open store, or a writer.
        key: The trajectory's id: one for all of its turns.
        choice: See ``RoutingStore.put``.
        attempt: See ``RoutingStore.put``.
        tokens: How many tokens are there already.

    Attributes:
        key: The trajectory's key.
        attempt: The attempt that turns are appended to.
        tokens: How many tokens were appended so far; the next turn begins there.
    """

    def __init__(
        self,
        target: SyncStore | RoutingWriter,
        key: str | RoutingKey,
        *,
        choice: int = 0,
        attempt: int = 0,
        tokens: int = 0,
    ) -> None:
        self._target = target
        self.key = as_key(key, choice)
        self.attempt = check_int("attempt", attempt, MAX_ATTEMPT)
        self.tokens = check_int("tokens", tokens, MAX_TOKENS)

    def __repr__(self) -> str:
        return f"Trajectory({self.key}, attempt={self.attempt}, tokens={self.tokens})"

    def append(
        self,
        routing: Any,
        *,
        tokens: Selection = None,
        layout: str = "layer_first",
        weight_versions: Versions = (),
    ) -> PutOutcome | Ticket:
        """Appends the tokens of a turn.

        Args:
            routing: ``[layers, tokens, top_k]`` of all layers; see ``RoutingStore.put``.
            tokens: Which tokens these are, absolute; None: those after the last ones. A range that begins earlier says
                some tokens again: the store compares them, and keeps both.
            layout: See ``RoutingStore.put``.
            weight_versions: The weights that made these tokens: one version, or spans with absolute tokens.

        Returns:
            What ``put`` of the store, or ``submit`` of the writer, returned.

        Raises:
            InvalidRecordError: It has another number of tokens than ``tokens`` says, or begins after the last ones.
            ConflictError: Some tokens differ from what is there; the message names them. A writer says so later.
            RoutingError: As ``put`` or ``submit``.
        """
        begin, stop = (self.tokens, None) if tokens is None else bounds("tokens", tokens)
        if begin > self.tokens:
            raise InvalidRecordError(
                f"the turn begins at token {begin}, but {self.key} has {self.tokens}: tokens {self.tokens}:{begin} "
                "would be missing",
                hint="append the turns in order, each with all of its tokens",
            )
        end = begin + _count(routing, layout) if stop is None else stop
        result = self._put(routing, (begin, end), layout, weight_versions)
        self.tokens = max(self.tokens, end)
        return result

    def _put(
        self,
        routing: Any,
        tokens: tuple[int, int],
        layout: str,
        spans: Versions,
        layers: Selection = None,
        schema: RoutingSchema | None = None,
    ) -> PutOutcome | Ticket:
        where: dict[str, Any] = {
            "tokens": tokens, "layers": layers, "attempt": self.attempt, "layout": layout, "weight_versions": spans
        }  # fmt: skip
        if isinstance(self._target, SyncStore):
            return self._target.put(self.key, routing, schema=schema, **where)
        return self._target.submit(self.key, routing, **where)

    def seal(self) -> Ticket | None:
        """Says that the last turn is over: from then on the whole trajectory can be read."""
        return self._target.seal(self.key, self.tokens, attempt=self.attempt)

    def abort(self, reason: str) -> Ticket | None:
        """Gives the attempt up: readers get ``AbortedError`` at once. ``resume`` still finds what was appended."""
        return self._target.abort(self.key, reason, attempt=self.attempt)

    @classmethod
    def resume(
        cls,
        store: SyncStore,
        key: str | RoutingKey,
        *,
        choice: int = 0,
        attempt: int | None = None,
        keep: int | None = None,
        into: RoutingWriter | None = None,
    ) -> Trajectory:
        """Goes on with a trajectory that another process, or an earlier try, began.

        Args:
            store: Where it is.
            key: The trajectory's id.
            choice: See ``RoutingStore.put``.
            attempt: Number of the new attempt, higher than any before. The first ``keep`` tokens of the last one,
                aborted or not, are put into it as they are: part by part, with their weight versions. None: goes on
                with the last attempt, which was not aborted.
            keep: How many first tokens stay; None: as many as are there without a gap. Only with ``attempt``.
            into: The writer that takes what follows; None: the store does.

        Raises:
            NotFoundError: Nothing is stored under the key.
            InvalidKeyError: ``keep`` is more than what is there without a gap.
            SupersededError: ``attempt`` is not higher than the last one.
            ConflictError: The last attempt contradicts itself.
            AbortedError: ``attempt`` is None, and the last one was aborted.
            InvalidRecordError: ``store`` is none, but a writer, say.
        """
        if not hasattr(store, "status"):
            raise InvalidRecordError(
                f"a trajectory is looked for in a store, got {type(store).__name__}",
                hint="Trajectory.resume(open_store(config), id, into=writer) goes on with a writer",
            )
        key = as_key(key, choice)
        status = store.status(key)
        if status.state == "conflict":
            raise ConflictError(f"attempt {status.attempt} of {key} contradicts itself: {status.problem}")
        there = covered(status)
        if attempt is None:
            if keep is not None:
                raise InvalidKeyError(
                    "keep needs a new attempt: stored tokens never go", hint="attempt=time.time_ns()"
                )
            if status.state == "aborted":
                raise AbortedError(
                    f"attempt {status.attempt} of {key} was given up",
                    hint=f"resume(…, attempt={status.attempt + 1}) keeps what it has, under a higher attempt",
                )
            return cls(into or store, key, attempt=status.attempt, tokens=there)
        if check_int("attempt", attempt, MAX_ATTEMPT) <= status.attempt:
            raise SupersededError(
                f"attempt {attempt} of {key} is not higher than the stored one, {status.attempt}",
                attempt=status.attempt,
            )
        stop = there if keep is None else check_int("keep", keep, MAX_TOKENS)
        if stop > there:
            raise InvalidKeyError(f"{key} has {there} tokens without a gap, of which {stop} cannot be kept")
        begun = cls(into or store, key, attempt=attempt, tokens=stop)
        for name in status.parts:
            want = name.part.intersect(Part((0, stop), name.part.layers)) if stop else None
            if want is not None:
                header, array = store.run(partial(_stored, status=status, name=name, want=want))
                spans = spans_within(header.spans(), want.tokens)
                begun._put(array, want.tokens, "layer_first", spans, want.layers, header.schema())
        return begun


async def _stored(
    store: RoutingStore, status: RolloutStatus, name: PartName, want: Part
) -> tuple[PartHeader, IntArray]:
    """Reads some of a part of any attempt, aborted ones too."""
    prefix = f"{status.key.prefix(store.namespace)}{status.attempt:019d}/"
    piece = reading.plan(prefix, [name], want, verify=True)[0]
    blob = await store._objects.get(GetRequest(piece.name, None if piece.whole else piece.ranges()))
    return reading.decode_piece(piece, blob, verify=True)


def _count(routing: Any, layout: str) -> int:
    """Returns how many tokens an array has."""
    shape = tuple(getattr(routing, "shape", ()))
    token_first = is_token_first(layout)
    if len(shape) not in (2, 3):
        raise InvalidRecordError(f"routing must be an array [layers, tokens, top_k], got {shown(routing)}")
    return int(shape[0] if token_first or len(shape) == 2 else shape[1])
