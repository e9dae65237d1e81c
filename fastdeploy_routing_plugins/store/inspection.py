"""Looking at what is stored: by key, by producer, header by header, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import arrays
from ..backend import GetRequest
from ..envelope import PartHeader, decode_header
from ..errors import AbsentError, ConflictError, CorruptDataError, InvalidKeyError, InvalidRecordError
from ..keys import RoutingKey, encode_namespace, encode_prefix
from ..names import StoredName, parse_name
from ..record import WeightSpan, spans_within
from . import reading
from .assemble import absence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..arrays import IntArray
    from ..schema import RoutingSchema
    from ..status import RolloutStatus
    from .objects import Objects

_BATCH = 256  # headers fetched at a time


@dataclass(frozen=True, slots=True)
class RolloutStat:
    """What names and headers say of a rollout's highest attempt.

    Attributes:
        status: State, coverage, sizes.
        schema: The model's schema, or None if no part is there.
        weight_versions: Spans over the tokens, as far as producers stated them.
        producers: Who wrote the parts.
        time_ns: When the last part was put, in ns since the epoch by its producer's clock; 0 without parts.
    """

    status: RolloutStatus
    schema: RoutingSchema | None
    weight_versions: tuple[WeightSpan, ...]
    producers: tuple[str, ...]
    time_ns: int


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
        counts: ``[layers, num_experts]`` int64, how often each expert was chosen, or None if nothing was readable.
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


async def by_key(objects: Objects, namespace: str, prefix: str | None) -> dict[RoutingKey, list[str]]:
    """Returns a namespace's names by key, sorted by key.

    Args:
        objects: The store.
        namespace: Its text.
        prefix: See ``RoutingStore.list``.
    """
    root = f"{encode_namespace(namespace)}/"
    starts = [root]
    if prefix is not None:
        encoded = encode_prefix(RoutingKey(prefix).rollout_id)
        starts = [f"{root}{encoded}/", f"{root}{encoded}{encode_prefix(':')}", f"{root}~x"]
    groups: dict[str, list[str]] = {}
    for start in starts:
        for name in await objects.names(start):
            groups.setdefault(name.rsplit("/", 2)[0], []).append(name)
    found: dict[RoutingKey, list[str]] = {}
    for names in groups.values():
        try:
            stored = parse_name(names[0])
        except InvalidKeyError:
            continue  # not ours: left alone
        text = await _rollout_id(objects, stored, names)
        if text is not None and (prefix is None or text == prefix or text.startswith(f"{prefix}:")):
            found[RoutingKey(text, stored.choice, stored.kind)] = names
    return dict(sorted(found.items()))


async def _rollout_id(objects: Objects, stored: StoredName, names: list[str]) -> str | None:
    """Returns the id behind a name; one that hides behind a digest is read from the first readable header."""
    if stored.rollout_id is not None:
        return stored.rollout_id
    for name in names:
        try:
            return (await objects.header(name)).rollout_id
        except (AbsentError, CorruptDataError):
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
            except CorruptDataError:
                continue
    return mine


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
    for what in status.parts:
        piece = reading.Piece(f"{prefix}{what}", what, what.part, what.part)
        try:
            header, array = reading.decode_piece(piece, await objects.get(piece.request()), verify=True)
            schema = schema or header.schema()
            if header.schema() != schema:
                raise ConflictError(f"parts follow different schemas: {schema}; {header.schema()}")
            arrays.check_range(array, schema)
            arrays.check_repeats(array, schema, every_row=True)
            reading.compare(piece, array, seen)
        except (AbsentError, CorruptDataError, InvalidRecordError, ConflictError) as err:
            problems.append(f"{what.part}: {err.message}")
            continue
        seen.append((piece, array))
        nbytes += what.nbytes
    counts = _counts(seen, schema)
    used = tuple(int(n) for n in (counts > 0).sum(axis=1)) if counts is not None else ()
    warnings = _dead_layers(seen, schema)
    return VerifyReport(status.key, status, schema, tuple(problems), warnings, nbytes, used, counts)


def _counts(
    seen: list[tuple[reading.Piece, IntArray]], schema: RoutingSchema | None
) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    if schema is None:
        return None
    counts = np.zeros((schema.num_layers, schema.num_experts), np.int64)
    for piece, array in seen:
        for layer, ids in zip(range(*piece.rect.layers), array, strict=True):
            counts[layer] += np.bincount(ids.reshape(-1), minlength=schema.num_experts)
    return counts


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
