"""Waiting for routing and getting it: list, decide, wait, read, and look again if something changed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from ..envelope import AbortHeader
from ..errors import AbortedError, AbsentError, ConflictError, InvalidKeyError, InvalidRecordError
from ..keys import MAX_ATTEMPT, check_int, shown
from ..names import AbortName, Part
from ..record import RoutingRecord, spans_within
from . import reading
from .assemble import Attempts, absence, uncovered
from .selection import Selection, bounds, closed
from .stating import unstated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..arrays import IntArray
    from ..envelope import PartHeader
    from ..keys import RoutingKey
    from ..schema import RoutingSchema
    from ..status import RolloutStatus
    from .objects import Objects


class Query(msgspec.Struct, frozen=True):
    """What a reader asks for; see ``RoutingStore.get``."""

    key: RoutingKey
    layers: Selection = None
    tokens: Selection = None
    layer_ids: Sequence[int] | None = None
    min_attempt: int = 0
    verify: bool = True
    view: bool = False

    @property
    def whole(self) -> bool:
        """Whether all of the rollout is asked for."""
        return self.layers is None and self.tokens is None and self.layer_ids is None


class Clock:
    """A deadline, and how long it has been waited for.

    Raises:
        InvalidKeyError: ``timeout`` is not a finite number of seconds from 0 on.
    """

    def __init__(self, timeout: float) -> None:
        given: object = timeout
        if not isinstance(given, (int, float)) or not 0 <= given < 1e9:
            raise InvalidKeyError(f"timeout must be a finite number of seconds from 0 on, got {shown(timeout)}")
        self.start = time.monotonic()
        self.deadline = self.start + timeout

    @property
    def waited(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline


async def get(
    objects: Objects, namespace: str, expected: RoutingSchema | None, query: Query, timeout: float
) -> RoutingRecord:
    """Waits for what is asked and returns it; see ``RoutingStore.get``."""
    clock = Clock(timeout)
    prefix = query.key.prefix(namespace)
    names: list[str] | None = None
    if query.whole:
        names, found = await objects.look(prefix, view=query.view)
        sole = Attempts.sole(prefix, names)
        if sole is not None and sole[0] >= check_int("min_attempt", query.min_attempt, MAX_ATTEMPT):
            piece = reading.Piece(names[0], sole[1], sole[1].part, sole[1].part)
            blob = found or (await objects.get_many([piece.request()], view=query.view))[0]
            if not isinstance(blob, AbsentError):
                nbytes = piece.what.nbytes if query.verify else 0
                decoded = await objects.offload(nbytes, reading.decode_piece, piece, blob, verify=query.verify)
                return sole_record(expected, query.key, sole[0], piece, *decoded)
    while True:
        status, names, query = await wait_until_readable(objects, namespace, expected, query, clock, names)
        try:
            record = await _read(objects, namespace, query, status)
        except AbsentError as err:
            # A part went between listing and reading: deleted, or replaced by a higher attempt.
            fresh = await objects.names(prefix)
            if fresh == names:
                raise err.with_facts(waited=clock.waited) from err
            names = fresh
            continue
        if expected is not None:
            record.schema.require(expected)
        return record


def sole_record(
    expected: RoutingSchema | None,
    key: RoutingKey,
    attempt: int,
    piece: reading.Piece,
    header: PartHeader,
    array: IntArray,
) -> RoutingRecord:
    """Makes a record of a rollout that is one part: what ``_read`` does, without assembling anything."""
    schema = header.schema()
    if expected is not None:
        schema.require(expected)
    array.flags.writeable = False
    return RoutingRecord(
        routing=array,
        key=key,
        schema=schema,
        part=piece.rect,
        total_tokens=piece.what.total_tokens,
        attempt=attempt,
        weight_versions=header.spans(),
        producers=(header.producer,),
    )


async def wait_until_readable(
    objects: Objects,
    namespace: str,
    expected: RoutingSchema | None,
    query: Query,
    clock: Clock,
    names: list[str] | None = None,
) -> tuple[RolloutStatus, list[str], Query]:
    """Waits until the asked range is covered.

    Returns:
        The rollout's status, the names that it was made from, and the query with layers as positions.
    """
    bounds("layers", query.layers)
    bounds("tokens", query.tokens)
    check_int("min_attempt", query.min_attempt, MAX_ATTEMPT)
    prefix = query.key.prefix(namespace)
    if names is None:
        names = await objects.names(prefix)
    while True:
        try:
            status = Attempts.parse(prefix, names).status(query.key, min_attempt=query.min_attempt)
            if status.state == "aborted":
                raise await _aborted(objects, prefix, status)
            if status.state == "conflict":
                raise ConflictError(
                    f"attempt {status.attempt} of {status.key} contradicts itself: {status.problem}",
                    hint="delete the rollout and produce it again, or put it with a higher attempt",
                )
            if status.parts and (
                query.layer_ids is not None or (expected and expected.fingerprint != status.parts[0].schema)
            ):
                header = await objects.part_header(f"{prefix}{status.attempt:019d}/{status.parts[0]}")
                if expected is not None:
                    header.schema().require(expected)
            if query.layer_ids is not None and status.parts:
                query = msgspec.structs.replace(
                    query, layer_ids=None, layers=_positions(header.schema(), query.layer_ids)
                )
            _require(status, query)
        except AbortedError as err:
            raise err.with_facts(waited=clock.waited) from None
        except AbsentError as err:
            if not names:
                await objects.absence(prefix, err.with_facts(waited=clock.waited), final=clock.over)
            if clock.over:
                raise err.with_facts(waited=clock.waited) from None
        else:
            return status, names, query
        names = await objects.changed(prefix, names, clock.deadline)


def _require(status: RolloutStatus, query: Query) -> None:
    """Raises why the asked range is absent, if it is."""
    if status.state == "complete" and query.layers is None and query.tokens is None:
        return
    if not status.parts:
        raise absence(status, ())
    token_start, token_stop = bounds("tokens", query.tokens)
    token_stop = status.total_tokens if token_stop is None else token_stop
    if token_stop is None:
        raise absence(status, ())
    known_tokens = token_stop if status.total_tokens is None else status.total_tokens
    tokens = closed("tokens", (token_start, token_stop), known_tokens)
    layers = closed("layers", query.layers, status.total_layers)
    if layers[0] == layers[1]:
        raise InvalidKeyError("layers is an empty range; a read needs at least one layer")
    missing = uncovered(status.parts, Part(tokens, layers))
    if missing:
        raise absence(status, missing)


async def _aborted(objects: Objects, prefix: str, status: RolloutStatus) -> AbortedError:
    header = await objects.header(f"{prefix}{status.attempt:019d}/{AbortName()}")
    reason = header.reason if isinstance(header, AbortHeader) else ""
    return AbortedError(f"attempt {status.attempt} of {status.key} was given up: {reason}", reason=reason)


def _positions(schema: RoutingSchema, layer_ids: object) -> tuple[int, int]:
    if isinstance(layer_ids, str) or not isinstance(layer_ids, Iterable):
        raise InvalidRecordError(f"layer_ids must list layers of the model, got {shown(layer_ids)}")
    layer_ids = tuple(layer_ids)
    positions = [schema.position(layer_id) for layer_id in layer_ids]
    if not positions or positions != list(range(positions[0], positions[0] + len(positions))):
        raise InvalidRecordError(f"layer_ids {list(layer_ids)} are not consecutive recorded layers: {schema}")
    return positions[0], positions[-1] + 1


async def _read(objects: Objects, namespace: str, query: Query, status: RolloutStatus) -> RoutingRecord:
    prefix = f"{query.key.prefix(namespace)}{status.attempt:019d}/"
    stop = max(name.part.tokens[1] for name in status.parts) if status.total_tokens is None else status.total_tokens
    want = Part(closed("tokens", query.tokens, stop), closed("layers", query.layers, status.total_layers))
    pieces = reading.plan(prefix, status.parts, want, verify=query.verify)
    silent: tuple[tuple[int, int], ...] = ()
    if not pieces:  # zero tokens are asked for: only the schema has to be read
        header = await objects.part_header(f"{prefix}{status.parts[0]}")
        headers = [header]
        routing = reading.empty(want, header.dtype, header.top_k)
    else:
        requests = [piece.request() for piece in pieces]
        headers, decoded = [], []
        for piece, blob in zip(pieces, await objects.get_many(requests, view=query.view), strict=True):
            if isinstance(blob, AbsentError):
                raise blob
            header, array = await objects.offload(
                piece.what.nbytes if query.verify else 0, reading.decode_piece, piece, blob, verify=query.verify
            )
            headers.append(header)
            decoded.append(array)
        header = headers[0]
        routing = reading.join(want, pieces, decoded, header.dtype, header.top_k)
        silent = unstated(
            (piece.rect, bool(each.weight_versions)) for piece, each in zip(pieces, headers, strict=True)
        )
    return RoutingRecord(
        routing=routing,
        key=query.key,
        schema=header.schema(),
        part=want,
        total_tokens=status.total_tokens,
        attempt=status.attempt,
        weight_versions=spans_within([span for h in headers for span in h.spans()], want.tokens),
        producers=tuple(dict.fromkeys(h.producer for h in headers)),
        unstated=silent,
    )
