"""What a model's routing looks like: ``RoutingSchema``. Free of NumPy, so that engines can build it anywhere."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from .errors import InvalidRecordError, SchemaMismatchError
from .keys import as_int, shown
from .names import MAX_LAYERS

MAX_EXPERTS = 2**32
MAX_TOP_K = 65_535


def canonical_dtype(num_experts: int) -> str:
    """Returns the stored dtype: ``"uint8"`` up to 256 experts, ``"uint16"`` up to 65,536, else ``"uint32"``."""
    return "uint8" if num_experts <= 1 << 8 else "uint16" if num_experts <= 1 << 16 else "uint32"


_ITEMSIZE = {"uint8": 1, "uint16": 2, "uint32": 4}


@dataclass(frozen=True, slots=True, init=False)
class RoutingSchema:
    """What one model's routing looks like; the engine and the trainer state the same.

    Attributes:
        num_experts: Number of logical routed experts of a layer, ids are ``0 .. num_experts - 1``.
        top_k: Experts chosen per token, at most ``num_experts``.
        layer_ids: Indices, in the model, of the layers that have a router: strictly increasing, MoE layers only
            (dense first layers are left out), at least one.
    """

    num_experts: int
    top_k: int
    layer_ids: tuple[int, ...]
    fingerprint: str = field(repr=False, compare=False)
    """Eight hexadecimal digits that differ, in practice, between any two schemas; part of every part's name."""

    def __init__(self, num_experts: int, top_k: int, layer_ids: Iterable[int]) -> None:
        """Checks and stores the fields.

        Raises:
            InvalidRecordError: a field is out of range, or ``layer_ids`` is empty or not strictly increasing.
        """
        num_experts = _whole("num_experts", num_experts, 1, MAX_EXPERTS)
        top_k = _whole("top_k", top_k, 1, min(num_experts, MAX_TOP_K))
        if isinstance(layer_ids, (str, bytes, int)) or not isinstance(layer_ids, Iterable):
            raise InvalidRecordError(
                f"layer_ids must list the model's MoE layers, got {layer_ids!r}", hint="for example range(1, 46)"
            )
        ids = tuple([_whole("a layer id", value, 0, 2**31 - 1) for value in layer_ids])
        if not ids or len(ids) > MAX_LAYERS:
            raise InvalidRecordError(f"layer_ids must list 1 to {MAX_LAYERS} layers, got {len(ids)}")
        if any(b <= a for a, b in itertools.pairwise(ids)):
            raise InvalidRecordError(
                "layer_ids must be strictly increasing", hint="list each MoE layer once, in order"
            )
        object.__setattr__(self, "num_experts", num_experts)
        object.__setattr__(self, "top_k", top_k)
        object.__setattr__(self, "layer_ids", ids)
        object.__setattr__(self, "fingerprint", _fingerprint(num_experts, top_k, ids))

    @property
    def num_layers(self) -> int:
        """Number of MoE layers."""
        return len(self.layer_ids)

    @property
    def dtype(self) -> str:
        """The stored dtype's name; see ``canonical_dtype``."""
        return canonical_dtype(self.num_experts)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return self.top_k * _ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        ids = self.layer_ids
        dense = ids[-1] - ids[0] + 1 == len(ids)
        layers = f"{ids[0]}..{ids[-1]}" if dense else ",".join(map(str, ids))
        return f"{self.num_experts} experts, top-{self.top_k}, {len(ids)} MoE layers ({layers})"

    def position(self, layer_id: int) -> int:
        """Returns the position of a model layer in the recorded layers.

        Raises:
            InvalidRecordError: the layer has no recorded routing.
        """
        try:
            return self.layer_ids.index(_whole("a layer id", layer_id, 0, 2**31 - 1))
        except ValueError as err:
            if isinstance(err, InvalidRecordError):
                raise
            raise InvalidRecordError(f"layer {layer_id} is not recorded: {self}") from None

    def require(self, expected: RoutingSchema) -> None:
        """Checks that this, stored, schema is the one the reader expects.

        Raises:
            SchemaMismatchError: it is not; the message shows both, and where they differ.
        """
        if self != expected:
            raise SchemaMismatchError(
                f"stored routing has {self}; the reader expects {expected}: {_difference(self, expected)}",
                hint="engine and trainer must agree on experts, top_k and the list of MoE layers",
                stored=self,
                expected=expected,
            )


def _difference(stored: RoutingSchema, expected: RoutingSchema) -> str:
    """Says in which numbers two schemas differ, and where their layers part."""
    said = [
        f"{what} is {getattr(stored, name)}, not {getattr(expected, name)}"
        for name, what in (("num_experts", "the number of experts"), ("top_k", "top_k"))
        if getattr(stored, name) != getattr(expected, name)
    ]
    if stored.layer_ids != expected.layer_ids:
        if stored.num_layers != expected.num_layers:
            said.append(f"{stored.num_layers} MoE layers, not {expected.num_layers}")
        pairs = itertools.zip_longest(stored.layer_ids, expected.layer_ids)
        at, (mine, other) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        told = "nothing" if mine is None else f"layer {mine}"
        said.append(f"at position {at} there is {told}, not {'nothing' if other is None else f'layer {other}'}")
    return "; ".join(said)


@lru_cache(maxsize=64)
def _fingerprint(num_experts: int, top_k: int, layer_ids: tuple[int, ...]) -> str:
    text = f"{num_experts} {top_k} {' '.join(map(str, layer_ids))}"
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _whole(what: str, value: object, low: int, high: int) -> int:
    number = as_int(value)
    if number is None or not low <= number <= high:
        raise InvalidRecordError(f"{what} must be an integer from {low} to {high}, got {shown(value)}")
    return number
