"""What a reader gets: ``RoutingRecord``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from .arrays import IntArray  # noqa: TC001 - help() looks the annotations up
from .errors import InvalidRecordError
from .keys import RoutingKey, as_int, shown
from .names import MAX_TOKENS, Part
from .schema import RoutingSchema  # noqa: TC001

MAX_VERSION = 256  # characters of a weight version


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """Tokens that were generated with one version of the weights.

    Attributes:
        start: First token, absolute.
        stop: One past the last token.
        version: The trainer's name of the weights: a number or a short text.
    """

    start: int
    stop: int
    version: int | str

    def __post_init__(self) -> None:
        for name in ("start", "stop"):
            object.__setattr__(self, name, _number(name, getattr(self, name), 0, MAX_TOKENS))
        version: object = self.version
        if not isinstance(version, str):
            object.__setattr__(self, "version", _number("version", version, -(2**63), 2**63 - 1))
        elif not 0 < len(version) <= MAX_VERSION or not version.isprintable():
            raise InvalidRecordError(f"a version is a number or 1 to {MAX_VERSION} printable characters")
        elif type(version) is not str:
            object.__setattr__(self, "version", str.__str__(version))


def _number(what: str, value: object, low: int, high: int) -> int:
    number = as_int(value)
    if number is None or not low <= number <= high:
        raise InvalidRecordError(f"{what} of a weight-version span must be an integer, got {shown(value)}")
    return number


Versions: TypeAlias = int | str | Sequence[WeightSpan]
"""Which weights made some tokens: one version, or spans with absolute tokens that cover them once."""


def as_spans(given: object, tokens: tuple[int, int]) -> tuple[WeightSpan, ...]:
    """Returns what a caller states as weight versions, checked.

    Raises:
        InvalidRecordError: these are no spans, or they do not cover the tokens.
    """
    number = as_int(given)
    if number is not None or isinstance(given, str):
        version = given if isinstance(given, str) else number
        assert version is not None
        return (WeightSpan(*tokens, version),) if tokens[0] < tokens[1] else ()
    spans: tuple[object, ...] = tuple(given) if isinstance(given, Iterable) else (given,)
    for span in spans:
        if not isinstance(span, WeightSpan):
            raise InvalidRecordError(
                f"weight_versions must be one version or a list of WeightSpan, got {shown(given)}",
                hint="a number or a short text for all tokens of the part, or [WeightSpan(start, stop, version), ...]",
            )
    found: tuple[WeightSpan, ...] = spans  # type: ignore[assignment]
    check_spans(found, tokens)
    return found


def check_spans(spans: tuple[WeightSpan, ...], tokens: tuple[int, int]) -> None:
    """Checks that weight-version spans, if any, cover the tokens once, without gaps.

    Raises:
        InvalidRecordError: they do not.
    """
    if not spans:
        return
    edges = [tokens[0], *[span.stop for span in spans]]
    if edges[-1] != tokens[1] or any(
        span.start != begin or span.stop <= span.start for span, begin in zip(spans, edges, strict=False)
    ):
        shown = ", ".join(f"{s.start}:{s.stop}" for s in spans)
        raise InvalidRecordError(
            f"weight-version spans {shown} do not cover tokens {tokens[0]}:{tokens[1]} once",
            hint="they are absolute, half-open, in order and without gaps; one version alone is that of all tokens",
        )


def spans_within(spans: Iterable[WeightSpan], tokens: tuple[int, int]) -> tuple[WeightSpan, ...]:
    """Returns the spans of several parts cut to a range of tokens, in order, each once."""
    cut = {
        WeightSpan(max(span.start, tokens[0]), min(span.stop, tokens[1]), span.version)
        for span in spans
        if span.start < tokens[1] and span.stop > tokens[0]
    }
    return tuple(sorted(cut, key=lambda span: (span.start, span.stop, str(span.version))))


def merged(spans: Iterable[WeightSpan]) -> list[WeightSpan]:
    """Returns spans, which are in order, with neighbours of one version as one span."""
    found: list[WeightSpan] = []
    for span in spans:
        last = found[-1] if found else None
        if last is not None and (last.stop, type(last.version), last.version) == (
            span.start, type(span.version), span.version
        ):  # fmt: skip
            found[-1] = WeightSpan(last.start, span.stop, span.version)
        else:
            found.append(span)
    return found


class RoutingRecord(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Routing as a reader gets it. ``numpy.asarray(record)`` works; no method shows the data in logs.

    It is a ``msgspec.Struct``: ``msgspec.structs.replace(record, …)``, or ``copy.replace`` from Python 3.13 on, makes
    another one. Records are compared by identity.

    Attributes:
        routing: ``[layers, tokens, top_k]``, logical expert ids, read-only, uint8, uint16 or uint32 by ``schema``.
            It may be a view of the store's memory; ``routing.copy()`` is yours.
        key: Which sample.
        schema: The model's schema; ``schema.layer_ids`` names all recorded layers.
        part: Which layers (positions) and tokens ``routing`` holds; absolute.
        total_tokens: Recorded tokens of the whole rollout, or None if a range was read before that was known.
        attempt: The attempt that was read.
        weight_versions: Spans of weight versions over the tokens read, as far as the producer stated them.
        producers: Who wrote it.
        unstated: Ranges of tokens, absolute, of which some layers' producer stated no weights while others did.
    """

    routing: IntArray
    key: RoutingKey
    schema: RoutingSchema
    part: Part
    total_tokens: int | None
    attempt: int
    weight_versions: tuple[WeightSpan, ...] = ()
    producers: tuple[str, ...] = ()
    unstated: tuple[tuple[int, int], ...] = ()

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model's layer index of each row of ``routing``."""
        return self.schema.layer_ids[slice(*self.part.layers)]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in ``routing``."""
        return self.part.num_tokens

    def layer(self, layer_id: int) -> IntArray:
        """Returns ``[tokens, top_k]`` of one model layer, by the model's own index.

        Raises:
            InvalidRecordError: that layer was not recorded or not read.
        """
        row = self.schema.position(layer_id) - self.part.layers[0]
        if not 0 <= row < self.part.num_layers:
            raise InvalidRecordError(f"layer {layer_id} was not read, only {self.layer_ids}")
        layer: IntArray = self.routing[row]
        return layer

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False and dtype is not None and np.dtype(dtype) != self.routing.dtype:
            raise ValueError("a conversion of dtype needs a copy")
        return np.array(self.routing, dtype=dtype, copy=True) if copy else np.asarray(self.routing, dtype=dtype)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = ("key", "part", "total_tokens", "attempt", "schema")
        return [("shape", self.routing.shape), *[(name, getattr(self, name)) for name in names]]

    def __repr__(self) -> str:
        return (
            f"RoutingRecord({self.key}, shape={self.routing.shape}, dtype={self.routing.dtype}, "
            f"attempt={self.attempt}, {self.part} of {self.total_tokens}, {self.schema})"
        )
