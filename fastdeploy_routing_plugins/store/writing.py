"""Putting: from a caller's array to an object that fits its rollout, and stays, whoever else puts at the same time."""

from __future__ import annotations

import time
from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .. import arrays, digests, envelope
from ..backend import Buffer
from ..errors import AbortedError, AbsentError, ConflictError, CorruptDataError, SupersededError, UnsupportedError
from ..keys import RoutingKey
from ..names import AbortName, ObjectName, PartName
from ..record import WeightSpan, as_spans
from ..spec import Capability
from ..status import PutOutcome
from . import reading
from .assemble import Attempts
from .placing import place
from .undigested import WORTH, Undigested

_PROBES = "fd-routing-probes"  # a namespace that no run uses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..arrays import IntArray
    from ..schema import RoutingSchema
    from .objects import Objects
    from .selection import Selection

    Lend = Callable[[memoryview, tuple[int, ...], str], Buffer]


@dataclass(frozen=True, slots=True)
class Draft:
    """An object that is ready to be stored.

    Attributes:
        key: Which sample.
        what: The last component of its name.
        header: Its header.
        array: ``[layers, tokens, top_k]`` in canonical form, None for seals and abort marks.
        lend: Makes the buffer of an array that is canonical as it came, if its owner lends the memory.
        undigested: Whether the digests are to be made while the payload is copied.
    """

    key: RoutingKey
    what: ObjectName
    header: envelope.Header
    array: IntArray | None = None
    lend: Lend | None = None
    undigested: bool = False

    @property
    def buffer(self) -> Buffer:
        """The payload, in the array's own memory."""
        header = self.header
        if self.array is None or not isinstance(header, envelope.PartHeader):
            return Buffer(memoryview(b""))
        payload = digests.payload_of(self.array)
        if self.undigested:
            return Undigested(payload, self.array.shape, header)
        make = Buffer if self.lend is None else self.lend
        return make(payload, self.array.shape, header.dtype)


def draft_part(
    key: RoutingKey,
    stamp: Mapping[str, Any],
    routing: Any,
    schema: RoutingSchema,
    *,
    layers: Selection,
    tokens: Selection,
    total_tokens: int | None,
    layout: str,
    weight_versions: object,
    validate: bool = True,
    lend: Lend | None = None,
    on_copy: bool = False,
) -> Draft:
    """Checks a part and computes its header; see ``RoutingStore.put`` for the arguments and errors.

    Args:
        key: Which sample.
        stamp: The header's fields that all objects have.
        routing: See ``RoutingStore.put``.
        schema: See ``RoutingStore.put``.
        layers: See ``RoutingStore.put``.
        tokens: See ``RoutingStore.put``.
        total_tokens: See ``RoutingStore.put``.
        layout: See ``RoutingStore.put``.
        weight_versions: See ``RoutingStore.put``.
        validate: Whether ids are checked; ids that are to be narrowed always are.
        lend: See ``Draft``.
        on_copy: Whether digests may be left to who copies the payload, see ``Undigested``.
    """
    given = arrays.layer_first(arrays.as_numpy(routing), layout)
    what = place(given.shape, schema, layers, tokens, total_tokens)
    spans: tuple[WeightSpan, ...] = as_spans(weight_versions, what.part.tokens)
    array = arrays.canonical(given, schema, what.part, validate=validate)
    undigested = on_copy and array.nbytes >= WORTH
    whole: str | msgspec.UnsetType = msgspec.UNSET
    if undigested:
        made = digests.no_digests(what.part)
    else:
        payload = digests.payload_of(array)
        made = digests.digest_payload(payload, what.part, schema.row_bytes)
        if payload.nbytes <= digests.WHOLE:
            whole = digests.digest_whole(payload)
    header = envelope.PartHeader(
        **stamp,
        num_experts=schema.num_experts,
        top_k=schema.top_k,
        layer_ids=schema.layer_ids,
        dtype=schema.dtype,
        layers=what.part.layers,
        tokens=what.part.tokens,
        total_tokens=what.total_tokens,
        digests=made,
        weight_versions=tuple((span.start, span.stop, span.version) for span in spans),
        whole=whole,
    )
    # Narrowed ids lie in memory of their own, which nobody reuses before the put ends.
    lent = lend if lend is not None and np.may_share_memory(array, given) else None
    return Draft(key, what, header, array, lent, undigested)


async def keeps(objects: Objects, stamp: Mapping[str, Any]) -> bool:
    """Whether a mark that nobody else knows of is listed right after it was put; it is deleted again."""
    key = RoutingKey(f"{stamp['producer']}:{time.monotonic_ns()}")
    own = {**stamp, "namespace": _PROBES, "rollout_id": key.rollout_id}
    draft = Draft(key, AbortName(), envelope.AbortHeader(**own, reason="a probe"))
    try:
        kept = (await create(objects, _PROBES, draft)).listed
    except UnsupportedError:  # a store that holds its users to one namespace
        return True
    await objects.delete([draft.header.name()])
    return kept


async def create(objects: Objects, namespace: str, draft: Draft) -> PutOutcome:
    """Stores an object if it fits what is known of its rollout, and withdraws it if a race made it not fit.

    Raises:
        ConflictError: Other content is stored in its place, or totals, schemas or overlaps contradict each other.
        SupersededError: A higher attempt is stored.
        AbortedError: The attempt was given up.
    """
    key, what, attempt, buffer = draft.key, draft.what, draft.header.attempt, draft.buffer
    prefix = key.prefix(namespace)
    name = f"{prefix}{attempt:019d}/{what}"
    if Capability.LIST not in objects.has:
        return PutOutcome(name, await objects.create(name, draft.header, buffer), buffer.nbytes)
    before = await objects.names(prefix)
    known = Attempts.parse(prefix, before)
    if before:
        await _check_fits(objects, known, draft)
    duplicate = await objects.create(name, draft.header, buffer)
    if duplicate and isinstance(what, PartName):
        await _check_stored(objects, name, what)
    # Others may have put meanwhile: what contradicts them goes again, so that nothing unreadable is acknowledged.
    after = await objects.names(prefix)
    if not duplicate:
        insort(before, name)
    if after == before and set(known.objects) <= {attempt}:
        return PutOutcome(name, duplicate, buffer.nbytes)  # nobody did
    listed = name in after
    now = Attempts.parse(prefix, after)
    try:
        _check_attempt(now, key, attempt)
        now.check_new(key, attempt, None)
        if isinstance(what, PartName) and draft.array is not None:
            await _check_overlaps(objects, now, attempt, what, draft.array)
    except (SupersededError, ConflictError):
        if not duplicate:
            await objects.delete([name])
        raise
    if now.highest == attempt and len(now.objects) > 1 and now.status(key).state == "complete":
        await objects.delete(now.names(below=attempt))
    return PutOutcome(name, duplicate, buffer.nbytes, listed)


async def _check_fits(objects: Objects, known: Attempts, draft: Draft) -> None:
    """Raises why an object contradicts what is there of its rollout, if it does; see ``create``."""
    key, what, attempt = draft.key, draft.what, draft.header.attempt
    _check_attempt(known, key, attempt)
    if isinstance(what, AbortName):
        if known.highest == attempt and known.status(key).state == "complete":
            raise ConflictError(
                f"{key}, attempt {attempt}, is complete: readers may have it already", hint="delete(id) removes it"
            )
        return
    if known.aborted(attempt):
        raise AbortedError(f"attempt {attempt} of {key} was given up", hint="put with a higher attempt")
    await _check_schema(objects, known, draft)
    known.check_new(key, attempt, what)
    if isinstance(what, PartName) and draft.array is not None:
        await _check_overlaps(objects, known, attempt, what, draft.array)


async def _check_schema(objects: Objects, known: Attempts, draft: Draft) -> None:
    """Shows both schemas if a new part follows another one than the rollout has."""
    attempt = draft.header.attempt
    other = next((name for name in known.parts(attempt) if isinstance(draft.what, PartName)), None)
    if (
        other is None
        or not isinstance(draft.header, envelope.PartHeader)
        or other.schema == draft.header.schema().fingerprint
        or Capability.READ not in objects.has
    ):
        return
    try:
        stored = (await objects.part_header(f"{known.prefix}{attempt:019d}/{other}")).schema()
    except (AbsentError, CorruptDataError):
        return
    raise ConflictError(
        f"{draft.key}, attempt {attempt}, is stored with {stored}; this part has {draft.header.schema()}: "
        "one rollout cannot follow different schemas",
        hint="which of the two is the model's? Put with the same schema, or with a higher attempt",
    )


def _check_attempt(known: Attempts, key: RoutingKey, attempt: int) -> None:
    if known.highest > attempt:
        raise SupersededError(
            f"attempt {attempt} of {key} is older than the stored attempt {known.highest}", attempt=known.highest
        )


async def _check_overlaps(objects: Objects, known: Attempts, attempt: int, what: PartName, array: IntArray) -> None:
    """Compares a new part with stored ones that share cells with it; what cannot be read is left to the readers."""
    if Capability.READ not in objects.has:
        return
    mine = reading.Piece("", what, what.part, what.part)
    (t0, t1), (l0, l1) = what.part.tokens, what.part.layers
    for other in known.parts(attempt):
        (u0, u1), (m0, m1) = other.part.tokens, other.part.layers
        if u0 >= t1 or u1 <= t0 or m0 >= l1 or m1 <= l0 or other == what:
            continue
        shared = other.part.intersect(what.part)
        if shared is None:
            continue
        for piece in reading.plan(f"{known.prefix}{attempt:019d}/", [other], shared, verify=True):
            try:
                stored = reading.decode_piece(piece, await objects.get(piece.request()), verify=True)[1]
            except (AbsentError, CorruptDataError):
                continue
            reading.compare(mine, array, [(piece, stored)])


async def _check_stored(objects: Objects, name: str, what: PartName) -> None:
    """Reads what is stored already: a repeated put is a success only if a reader can get it."""
    if Capability.READ in objects.has:
        piece = reading.Piece(name, what, what.part, what.part)
        reading.decode_piece(piece, await objects.get(piece.request()), verify=True)
