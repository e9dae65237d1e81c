"""Looking at what is stored: by key, by producer, header by header, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import arrays
from ..backend import GetRequest
from ..envelope import PartHeader, decode_header
from ..errors import (
    AbsentError,
    ConflictError,
    CorruptDataError,
    InvalidKeyError,
    InvalidRecordError,
    NotFoundError,
    UnsupportedError,
)
from ..keys import RoutingKey, decode_component, encode_namespace, encode_prefix
from ..names import Part
from ..record import WeightSpan, spans_within
from . import reading
from .assemble import Attempts, absence, uncovered
from .stating import unstated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..arrays import IntArray
    from ..schema import RoutingSchema
    from ..status import RolloutStatus
    from .objects import Objects

_BATCH = 256  # headers fetched at a time
_DEPTH = 5  # slashes in a name
_DENSE = 1 << 24  # counters that a report holds at the most


@dataclass(frozen=True, slots=True)
class RolloutStat:
    """What names and headers say of a rollout's highest attempt.

    Attributes:
        status: State, coverage, sizes.
        schema: The model's schema, or None if no part is there.
        weight_versions: Spans over the tokens, as far as producers stated them.
        producers: Who wrote the parts.
        time_ns: When the last part was put, in ns since the epoch by its producer's clock; 0 without parts.
        unstated: Ranges of tokens of which some parts state no weights while others do.
    """

    status: RolloutStatus
    schema: RoutingSchema | None
    weight_versions: tuple[WeightSpan, ...]
    producers: tuple[str, ...]
    time_ns: int
    unstated: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a full check of one rollout found.

    Attributes:
        key: Which sample.
        status: State and coverage.
        schema: The model's schema, if a header could be read.
        problems: What is wrong; empty when all is well.
        warnings: What looks wrong: constant or all-zero layers.
        nbytes: Payload bytes that were read and checked.
        experts_used: For each recorded layer, how many different experts were chosen.
        counts: ``[layers, num_experts]`` int64, how often each expert was chosen; None if nothing was readable, or if
            that would be more than 16 million counters.
    """

    key: RoutingKey
    status: RolloutStatus
    schema: RoutingSchema | None
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    nbytes: int
    experts_used: tuple[int, ...]
    counts: np.ndarray[Any, np.dtype[np.int64]] | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {
            **self.status.to_dict(),
            "ok": self.ok,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "bytes_checked": self.nbytes,
            "experts_used": list(self.experts_used),
        }


async def by_key(objects: Objects, namespace: str, prefix: str | None) -> dict[RoutingKey, Sequence[str]]:
    """Returns a namespace's names by key, sorted by key.

    Args:
        objects: The store.
        namespace: Its text.
        prefix: See ``RoutingStore.list``.
    """
    found: dict[RoutingKey, Sequence[str]] = {}
    for start, names in (await groups(objects, namespace, prefix)).items():
        _, component, choice, kind = start.split("/")
        text = await _rollout_id(objects, component, names)
        if text is not None and (prefix is None or text == prefix or text.startswith(f"{prefix}:")):
            try:
                key = RoutingKey(text, int(choice), kind)
            except ValueError:
                continue  # no name of ours: left alone
            found[key] = names
    return dict(sorted(found.items()))


async def groups(objects: Objects, namespace: str, prefix: str | None = None) -> dict[str, Sequence[str]]:
    """Returns a namespace's names by ``namespace/rollout/choice/kind``; with a prefix, some others may be among them.

    Whatever stands under such a path belongs to the rollout, also what only later versions understand.
    """
    root = f"{encode_namespace(namespace)}/"
    starts = [root]
    if prefix is not None:
        encoded = encode_prefix(RoutingKey(prefix).rollout_id)
        starts = [f"{root}{encoded}/", f"{root}{encoded}{encode_prefix(':')}", f"{root}~x"]
    found: dict[str, list[str]] = {}
    for start in starts:
        for name in await objects.names(start):
            if name.count("/") == _DEPTH:
                found.setdefault(name.rsplit("/", 2)[0], []).append(name)
    return dict(found)


async def _rollout_id(objects: Objects, component: str, names: Sequence[str]) -> str | None:
    """Returns the id behind a name's component; a digest's is read from the first readable header."""
    try:
        text = decode_component(component)
    except InvalidKeyError:
        return None
    if text is not None:
        return text
    for name in names:
        try:
            return (await objects.header(name)).rollout_id
        except (AbsentError, CorruptDataError, UnsupportedError):
            continue
    return None


async def written_by(objects: Objects, producer: str, names: Sequence[str]) -> list[str]:
    """Returns those of the names whose header states this producer; unreadable ones belong to nobody."""
    mine = []
    for at in range(0, len(names), _BATCH):
        batch = names[at : at + _BATCH]
        for name, blob in zip(batch, await objects.get_many([GetRequest(n, ()) for n in batch]), strict=True):
            if isinstance(blob, AbsentError):
                continue
            try:
                if decode_header(blob.header, name=name).producer == producer:
                    mine.append(name)
            except (CorruptDataError, UnsupportedError):
                continue
    return mine


async def named(objects: Objects, key: RoutingKey, namespace: str, *, why: bool) -> RolloutStatus:
    """See ``RoutingStore.status``.

    Args:
        objects: The store's objects.
        key: Which rollout.
        namespace: The store's namespace.
        why: Whether it is asked, if there is none, why; that costs a question.
    """
    prefix = key.prefix(namespace)
    names = await objects.names(prefix)
    try:
        return Attempts.parse(prefix, names).status(key)
    except NotFoundError as err:
        reason = None if names or not why else await objects.why_absent(prefix)
        if reason is None:
            raise
        raise NotFoundError(err.message, hint=reason.message, **err.facts) from None


async def stat(objects: Objects, status: RolloutStatus, namespace: str) -> RolloutStat:
    """Reads the headers of a rollout's parts; see ``RoutingStore.stat``."""
    prefix = f"{status.key.prefix(namespace)}{status.attempt:019d}/"
    headers: list[PartHeader] = []
    for at in range(0, len(status.parts), _BATCH):
        requests = [GetRequest(f"{prefix}{what}", ()) for what in status.parts[at : at + _BATCH]]
        for request, blob in zip(requests, await objects.get_many(requests), strict=True):
            if isinstance(blob, AbsentError):
                raise blob
            header = decode_header(blob.header, name=request.name)
            if isinstance(header, PartHeader):
                headers.append(header)
    stop = max((header.tokens[1] for header in headers), default=0)
    return RolloutStat(
        status,
        headers[0].schema() if headers else None,
        spans_within([span for header in headers for span in header.spans()], (0, stop)),
        tuple(dict.fromkeys(header.producer for header in headers)),
        max((header.time_ns for header in headers), default=0),
        unstated((header.part(), bool(header.weight_versions)) for header in headers),
    )


async def verify(objects: Objects, status: RolloutStatus, namespace: str) -> VerifyReport:
    """Reads and checks all parts of a rollout; see ``RoutingStore.verify``."""
    prefix = f"{status.key.prefix(namespace)}{status.attempt:019d}/"
    problems: list[str] = []
    if status.state in ("incomplete", "pending"):
        problems.append(absence(status, status.missing).message)
    if status.state == "conflict":
        problems.append(status.problem)
    schema: RoutingSchema | None = None
    seen: list[tuple[reading.Piece, IntArray]] = []
    nbytes = 0
    overlapping = _overlap(status)
    for what in status.parts:
        piece = reading.Piece(f"{prefix}{what}", what, what.part, what.part)
        try:
            blob = await objects.get(piece.request())
            header, array = reading.decode_piece(piece, blob, verify=True)
            reading.check_chunks(piece, header, blob)
            schema = schema or header.schema()
            if header.schema() != schema:
                raise ConflictError(f"parts follow different schemas: {schema}; {header.schema()}")
            arrays.check_range(array, schema)
            arrays.check_repeats(array, schema, every_row=True)
            if overlapping:
                reading.compare(piece, array, seen)
        except (AbsentError, CorruptDataError, InvalidRecordError, ConflictError, UnsupportedError) as err:
            problems.append(f"{what.part}: {err.message}")
            continue
        seen.append((piece, array))
        nbytes += what.nbytes
    counts = _counts(seen, schema)
    used = _used(seen, schema, counts)
    warnings = _dead_layers(seen, schema)
    return VerifyReport(status.key, status, schema, tuple(problems), warnings, nbytes, used, counts)


def _counts(
    seen: list[tuple[reading.Piece, IntArray]], schema: RoutingSchema | None
) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    if schema is None or schema.num_layers * schema.num_experts > _DENSE:
        return None
    counts = np.zeros((schema.num_layers, schema.num_experts), np.int64)
    for piece, array in seen:
        for layer, ids in zip(range(*piece.rect.layers), array, strict=True):
            counts[layer] += np.bincount(ids.reshape(-1), minlength=schema.num_experts)
    return counts


def _used(
    seen: Sequence[tuple[reading.Piece, IntArray]],
    schema: RoutingSchema | None,
    counts: np.ndarray[Any, np.dtype[np.int64]] | None,
) -> tuple[int, ...]:
    if counts is not None:
        return tuple(int(n) for n in (counts > 0).sum(axis=1))
    layers: list[list[IntArray]] = [[] for _ in range(schema.num_layers)] if schema else []
    for piece, array in seen:
        for layer, ids in zip(range(*piece.rect.layers), array, strict=True):
            layers[layer].append(np.unique(ids))
    return tuple(len(np.unique(np.concatenate(ids))) if ids else 0 for ids in layers)


def _overlap(status: RolloutStatus) -> bool:
    """Whether any cell of the grid is in more than one part."""
    parts = [what.part for what in status.parts]
    if not parts:
        return False
    grid = Part((0, max(part.tokens[1] for part in parts)), (0, max(part.layers[1] for part in parts)))
    free = uncovered(status.parts, grid)
    return sum(map(_cells, parts)) > _cells(grid) - sum(map(_cells, free))


def _cells(part: Part) -> int:
    return part.num_layers * part.num_tokens


def _dead_layers(seen: Iterable[tuple[reading.Piece, IntArray]], schema: RoutingSchema | None) -> tuple[str, ...]:
    """Names layers in which every token has the same experts: a buffer that was filled once, or never."""
    first: dict[int, IntArray] = {}
    rows: dict[int, int] = {}
    alive: set[int] = set()
    for piece, array in seen:
        for layer, ids in zip(range(*piece.rect.layers), array, strict=True):
            if not len(ids):
                continue
            reference = first.setdefault(layer, ids[0])
            rows[layer] = rows.get(layer, 0) + len(ids)
            if not np.array_equal(ids, np.broadcast_to(reference, ids.shape)):
                alive.add(layer)
    assert schema is not None or not first
    return tuple(
        f"layer {schema.layer_ids[layer] if schema else layer}: all {rows[layer]} tokens have the same experts"
        + (" (all zero)" if not ids.any() else "")
        for layer, ids in sorted(first.items())
        if layer not in alive and rows[layer] > 1
    )
