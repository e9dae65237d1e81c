"""Fits records into a batch: which schema, layers, positions and padding; ``RoutingBatch.build`` is the door."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import InvalidRecordError, StoreError
from ..keys import RoutingKey, as_int, as_key, shown
from ..names import MAX_TOKENS
from ..record import RoutingRecord
from .alignment import Placement, kept, place
from .padding import check_fill, period, spread_rows
from .places import new_batch
from .share import RoutingShare

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..arrays import IntArray
    from ..schema import RoutingSchema
    from .places import Places

SIDES = ("right", "left")

Found = RoutingRecord | RoutingShare
Item = RoutingRecord | RoutingShare | StoreError


class _Sample(msgspec.Struct, frozen=True, gc=False):
    """One sample: its rows, if there are any, the first of them, and which positions it has."""

    routing: IntArray | None
    first_row: int
    put: Placement


def build(
    items: Sequence[Item],
    keys: Sequence[str | RoutingKey] | None,
    *,
    schema: RoutingSchema | None,
    layer_ids: Sequence[int] | None,
    num_tokens: Sequence[int] | None,
    rows: Any,
    tokens: slice | Sequence[slice] | None,
    pad_to: int | None,
    side: Any,
    fill: int | None,
    places: Places | None = None,
) -> dict[str, Any]:
    """Returns the fields of a ``RoutingBatch``; its ``build`` says what the arguments mean and what is raised."""
    if side not in SIDES:
        raise InvalidRecordError(f"side must be right or left, got {shown(side)}")
    items = tuple(items)
    for kind in dict.fromkeys([type(item) for item in items]):
        if not issubclass(kind, (RoutingRecord, RoutingShare, StoreError)):
            raise InvalidRecordError(f"a batch is made of records and store errors, got {kind.__name__}")
    names = _keys(items, keys)
    found = [None if isinstance(item, StoreError) else item for item in items]
    records = [each for each in found if each is not None]
    schema = _schema(records, schema)
    layers = _layers(records, schema, layer_ids)
    samples = _samples(found, names, num_tokens, rows, tokens)
    routing, mask = _fit(samples, schema, len(layers), _width(samples, pad_to), side, fill, places)
    return {
        "routing": routing,
        "mask": mask,
        "lengths": np.array([each.put.length for each in samples], np.int64),
        "starts": np.array([each.put.start for each in samples], np.int64),
        "keys": names,
        "schema": schema,
        "layer_ids": layers,
        "attempts": tuple([-1 if each is None else each.attempt for each in found]),
        "weight_versions": tuple([() if each is None else each.weight_versions for each in found]),
        "missing": {index: item for index, item in enumerate(items) if isinstance(item, StoreError)},
        "side": side,
    }


def _keys(items: tuple[Item, ...], keys: Sequence[str | RoutingKey] | None) -> tuple[RoutingKey, ...]:
    if keys is None:
        known = [item.key for item in items if not isinstance(item, StoreError)]
        if len(known) < len(items):
            raise InvalidRecordError("keys are needed beside errors, which do not know what they are about")
        return tuple(known)
    names = tuple([key if type(key) is RoutingKey else as_key(key) for key in keys])
    if len(names) != len(items):
        raise InvalidRecordError(f"{len(names)} keys were given for {len(items)} items")
    for item, name in zip(items, names, strict=True):
        if not isinstance(item, StoreError) and item.key is not name and item.key != name:
            raise InvalidRecordError(f"the record of {item.key} stands where {name} was stated")
    return names


def _schema(records: list[Found], schema: RoutingSchema | None) -> RoutingSchema:
    if schema is None:
        if not records:
            raise InvalidRecordError("a batch without any record needs schema=, which its shape comes from")
        schema = records[0].schema
    known = schema
    for record in records:
        if record.schema is not known:
            record.schema.require(schema)
            known = record.schema
    return schema


def _layers(records: list[Found], schema: RoutingSchema, layer_ids: Sequence[int] | None) -> tuple[int, ...]:
    expected = records[0].layer_ids if records else schema.layer_ids
    if layer_ids is not None:
        expected = tuple(layer_ids)
        for layer_id in expected:
            schema.position(layer_id)
    last: tuple[object, object] = None, None
    for record in records:
        if isinstance(record, RoutingRecord):
            if record.schema is last[0] and record.part.layers == last[1]:
                continue  # as the one before
            last = record.schema, record.part.layers
        if record.layer_ids != expected:
            raise InvalidRecordError(f"{record.key} was read with the layers {record.layer_ids}, not {expected}")
    return expected


def _samples(
    found: list[Found | None],
    names: tuple[RoutingKey, ...],
    num_tokens: Sequence[int] | None,
    rows: Any,
    tokens: slice | Sequence[slice] | None,
) -> list[_Sample]:
    if num_tokens is None:
        if rows != "n" or tokens is not None:
            raise InvalidRecordError(
                f"rows={rows!r} and tokens={shown(tokens)} need num_tokens",
                hint="the number of tokens of each sample, before the trainer cuts any off",
            )
        return [_as_read(each) for each in found]
    counts = tuple(num_tokens)
    keep = tuple(itertools.repeat(tokens, len(found)) if tokens is None or isinstance(tokens, slice) else tokens)
    for what, given in (("num_tokens", counts), ("tokens", keep)):
        if len(given) != len(found):
            raise InvalidRecordError(f"{what} has {len(given)} entries for {len(found)} items")
    samples = []
    for record, name, count, part in zip(found, names, counts, keep, strict=True):
        try:
            samples.append(_placed(record, count, rows, part))
        except InvalidRecordError as err:
            raise InvalidRecordError(f"{name}: {err.message}", hint=err.hint) from None
    return samples


def _as_read(record: Found | None) -> _Sample:
    if record is None:
        return _Sample(None, 0, Placement(0, 0, (0, 0), 0))
    if isinstance(record, RoutingShare):
        start = record.token_ranges[0][0] if record.token_ranges else 0
        return _Sample(record.routing, 0, Placement(start, record.length, (0, record.num_tokens), 0))
    start, stop = record.part.tokens
    return _Sample(record.routing, start, Placement(start, stop - start, (start, stop), 0))


def _placed(record: Found | None, count: int, rows: Any, keep: slice | None) -> _Sample:
    if isinstance(record, RoutingShare):
        raise InvalidRecordError(
            "a rank's share has its own count of tokens", hint="leave num_tokens, rows and tokens out"
        )
    if record is not None:
        first, last = record.part.tokens
        return _Sample(record.routing, first, place((first, last), record.total_tokens, count, rows, keep))
    # The trainer has the tokens of a missing sample all the same: every position is there and has no row.
    place((0, 0), None, count, rows, slice(0, 0))
    start, stop = kept(keep, count)
    return _Sample(None, 0, Placement(start, stop - start, (0, 0), 0))


def _width(samples: list[_Sample], pad_to: int | None) -> int:
    longest = max((each.put.length for each in samples), default=0)
    if pad_to is None:
        return longest
    width = as_int(pad_to)
    if width is None or not longest <= width <= MAX_TOKENS:
        raise InvalidRecordError(
            f"pad_to={shown(pad_to)} does not hold the longest sample, which has {longest} positions",
            hint="tokens= says which tokens the trainer keeps",
        )
    return width


def _fit(
    samples: list[_Sample],
    schema: RoutingSchema,
    layers: int,
    width: int,
    side: str,
    fill: int | None,
    places: Places | None,
) -> tuple[IntArray, Any]:
    routing = None if places is None else places.routing
    if routing is None or routing.shape != (len(samples), layers, width, schema.top_k):
        routing, places = new_batch(schema, len(samples), layers, width), None
    mask = np.ones((len(samples), width), np.bool_)
    gaps: list[tuple[int, int, int]] = []
    for index, each in enumerate(samples):
        put, rows = each.put, each.routing
        first = put.offset + (width - put.length if side == "left" else 0)  # the positions that get a row
        last = first + put.count
        if rows is not None and first < last:
            begin = put.rows[0] - each.first_row
            lies = places is not None and not begin and last - first == rows.shape[1]
            if places is None or not lies or not places.lies(index, rows, first):
                routing[index, :, first:last] = rows[:, begin : begin + last - first]
        if last - first < width:
            gaps += [(index, *gap) for gap in ((0, first), (last, width)) if gap[0] < gap[1]]
    for index, first, last in gaps:
        mask[index, first:last] = False
    if fill is not None:
        number = check_fill(fill, routing.dtype)
        for index, first, last in gaps:
            routing[index, :, first:last] = number
    else:
        for (index, first, last), rows in zip(gaps, _runs(gaps, schema), strict=True):
            routing[index, :, first:last] = rows
    return routing, mask


def _runs(gaps: list[tuple[int, int, int]], schema: RoutingSchema) -> Iterator[IntArray]:
    """Yields padding for each gap; all gaps together name every expert equally often, give or take one."""
    if not gaps:
        return
    counts = [last - first for _, first, last in gaps]
    again = period(schema.num_experts, schema.top_k)
    table = spread_rows(min(sum(counts), again + max(counts, default=0)), schema.num_experts, schema.top_k)
    done = 0
    for count in counts:
        begin = done % again
        yield table[begin : begin + count]
        done += count
