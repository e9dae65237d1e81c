"""How far two recorded routings of the same tokens agree, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InvalidKeyError, LengthMismatchError, SchemaMismatchError
from .names import MAX_TOKENS
from .store.selection import bounds

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    import numpy.typing as npt

    from .arrays import IntArray
    from .record import RoutingRecord
    from .store.selection import Selection

_PAIRS = 1 << 24  # pairs of ids that are compared at a time, a byte each

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LayerAgreement:
    """How far two routings agree in one layer.

    Attributes:
        layer_id: The model's layer index.
        rows: Tokens compared.
        top_k: Experts chosen for each.
        shared: Experts that both chose for the same token, over all tokens.
        same: Tokens for which both chose the same experts, in whatever order.
    """

    layer_id: int
    rows: int
    top_k: int
    shared: int
    same: int

    @property
    def agreement(self) -> float:
        """Share of agreeing experts, 0 to 1: shared experts of a token / top_k, averaged; 1 without tokens."""
        return self.shared / (self.rows * self.top_k) if self.rows else 1.0

    @property
    def same_share(self) -> float:
        """Share of tokens with the same experts, 0 to 1; 1 without tokens."""
        return self.same / self.rows if self.rows else 1.0


@dataclass(frozen=True, slots=True)
class OnlyOne:
    """What one of two routings has and the other one has not, within what was to be compared.

    Attributes:
        layer_ids: The model's layer indices.
        tokens: Ranges of tokens, absolute.
    """

    layer_ids: tuple[int, ...] = ()
    tokens: tuple[Range, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.layer_ids or self.tokens)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far two routings, A and B, agree.

    Attributes:
        num_experts: Experts of a layer of both.
        top_k: Experts chosen per token in both.
        tokens: Which tokens were compared, absolute.
        layers: Every layer that both have.
        only_a: What only A has.
        only_b: What only B has.
    """

    num_experts: int
    top_k: int
    tokens: Range
    layers: tuple[LayerAgreement, ...]
    only_a: OnlyOne
    only_b: OnlyOne

    @property
    def num_tokens(self) -> int:
        """Number of tokens compared."""
        return _count(self.tokens)

    @property
    def rows(self) -> int:
        """Number of tokens compared, over all layers."""
        return sum(layer.rows for layer in self.layers)

    @property
    def shared(self) -> int:
        """Experts that both chose for the same token, over all layers."""
        return sum(layer.shared for layer in self.layers)

    @property
    def same_rows(self) -> int:
        """Tokens for which both chose the same experts, over all layers."""
        return sum(layer.same for layer in self.layers)

    @property
    def agreement(self) -> float:
        """Share of agreeing experts over all layers, 0 to 1; 1 without tokens."""
        return self.shared / (self.rows * self.top_k) if self.rows else 1.0

    @property
    def same_share(self) -> float:
        """Share of tokens with the same experts over all layers, 0 to 1; 1 without tokens."""
        return self.same_rows / self.rows if self.rows else 1.0

    @property
    def same(self) -> bool:
        """Whether A and B have the same layers and tokens, and the same experts for each."""
        return self.same_rows == self.rows and not self.only_a and not self.only_b


def compare(
    a: RoutingRecord, b: RoutingRecord, *, tokens: Selection = None, layer_ids: Container[int] | None = None
) -> Comparison:
    """Compares two routings: of two engines, of an engine and a trainer, before a change and after it.

    Layers are compared by the model's own layer indices, tokens by their absolute positions. The order of a token's
    experts does not matter.

    Args:
        a: One routing, as ``store.get`` returns it.
        b: The other one.
        tokens: Which tokens to compare, absolute. None: all that both have.
        layer_ids: Which layers to compare, by the model's indices. None: all that both have.

    Raises:
        SchemaMismatchError: They are not of models with the same number of experts and the same top_k, or have no
            layer in common.
        LengthMismatchError: They have no token in common, though one has some.
        InvalidKeyError: ``tokens`` is no range, or neither has any of these layers or tokens.
    """
    if (a.schema.num_experts, a.schema.top_k) != (b.schema.num_experts, b.schema.top_k):
        raise _other_model(f"A is of {a.schema}, B of {b.schema}", a, b)
    ids_a, ids_b = _layers(a, layer_ids), _layers(b, layer_ids)
    if not ids_a and not ids_b:
        raise InvalidKeyError("neither has any of these layers", hint=f"A has {a.layer_ids}, B has {b.layer_ids}")
    common = tuple(layer for layer in ids_a if layer in set(ids_b))
    if not common:
        raise _other_model(f"no layer in common: A has layers {ids_a}, B has {ids_b}", a, b)
    of_a, of_b = _within(a.part.tokens, tokens), _within(b.part.tokens, tokens)
    start, stop = max(of_a[0], of_b[0]), min(of_a[1], of_b[1])
    if start >= stop:
        if not _count(of_a) and not _count(of_b) and tokens is not None:
            held = f"A has {_shown(a.part.tokens)}, B has {_shown(b.part.tokens)}"
            raise InvalidKeyError("neither has any of these tokens", hint=held)
        if _count(of_a) or _count(of_b):
            raise LengthMismatchError(
                f"no token in common: A has tokens {_shown(of_a)}, B has {_shown(of_b)}", stored=of_a, expected=of_b
            )
        stop = start
    layers = [_layer(layer, _rows(a, layer, start, stop), _rows(b, layer, start, stop)) for layer in common]
    return Comparison(
        num_experts=a.schema.num_experts,
        top_k=a.schema.top_k,
        tokens=(start, stop),
        layers=tuple(layers),
        only_a=OnlyOne(tuple(layer for layer in ids_a if layer not in set(ids_b)), _beyond(of_a, (start, stop))),
        only_b=OnlyOne(tuple(layer for layer in ids_b if layer not in set(ids_a)), _beyond(of_b, (start, stop))),
    )


def _other_model(message: str, a: RoutingRecord, b: RoutingRecord) -> SchemaMismatchError:
    hint = "only routing of models with the same experts, top_k and MoE layers can be compared"
    return SchemaMismatchError(message, hint=hint, stored=a.schema, expected=b.schema)


def _layers(record: RoutingRecord, wanted: Container[int] | None) -> tuple[int, ...]:
    return tuple(layer for layer in record.layer_ids if wanted is None or layer in wanted)


def _within(held: Range, wanted: Selection) -> Range:
    """Returns which of the tokens held are wanted; if none, an empty range where the wanted ones would be."""
    start, stop = bounds("tokens", wanted)
    first = min(max(held[0], start), held[1])
    return first, max(first, min(held[1], MAX_TOKENS if stop is None else stop))


def _beyond(held: Range, compared: Range) -> tuple[Range, ...]:
    ends = ((held[0], compared[0]), (compared[1], held[1]))
    return tuple((start, stop) for start, stop in ends if start < stop)


def _count(tokens: Range) -> int:
    return tokens[1] - tokens[0]


def _shown(tokens: Range) -> str:
    return f"{tokens[0]}:{tokens[1]}"


def _rows(record: RoutingRecord, layer_id: int, start: int, stop: int) -> IntArray:
    first = record.part.tokens[0]
    rows: IntArray = record.layer(layer_id)[start - first : stop - first]
    return rows


def _layer(layer_id: int, a: IntArray, b: IntArray) -> LayerAgreement:
    """Compares two arrays ``[tokens, top_k]``."""
    tokens, top_k = a.shape
    shared = same = 0
    step = max(1, _PAIRS // top_k)
    for at in range(0, tokens, step):
        one, other = np.sort(a[at : at + step], axis=-1), np.sort(b[at : at + step], axis=-1)
        different = (one != other).any(axis=-1)
        equal = len(one) - int(np.count_nonzero(different))
        same += equal
        shared += equal * top_k + sum(_common(one[different], other[different]))
    return LayerAgreement(layer_id, tokens, top_k, shared, same)


def _common(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Iterator[int]:
    """Yields how many values rows have in common, block by block; each value of a sorted row counts once."""
    top_k = a.shape[1]
    step = max(1, _PAIRS // (top_k * top_k))
    for at in range(0, len(a), step):
        one, other = a[at : at + step], b[at : at + step]
        found = (one[:, :, None] == other[:, None, :]).any(axis=-1)
        found[:, 1:] &= one[:, 1:] != one[:, :-1]
        yield int(np.count_nonzero(found))
