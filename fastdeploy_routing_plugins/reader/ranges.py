"""Which layers and tokens a rank of a training job needs: ``ParallelLayout`` and ``RankLayout``. Free of NumPy.

A job splits its model in four ways at once: layers over pipeline stages (``pp``), the tokens of a sample over
context-parallel ranks (``cp``) and, with sequence parallelism, over tensor-parallel ranks (``tp``), samples over
data-parallel ranks (``dp``). Experts that are spread over ranks change nothing here: routers are replicated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

from ..errors import ConfigError, InvalidKeyError
from ..keys import as_int, shown
from ..names import MAX_LAYERS
from .splits import Range, checked, contiguous, even, picked, within, zigzag

if TYPE_CHECKING:
    from ..schema import RoutingSchema

T = TypeVar("T")

_AXES = ("tp", "cp", "dp", "pp")
_SPLITS = ("zigzag", "contiguous")


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How a training job splits one model over its ranks.

    Attributes:
        world_size: All ranks; ``dp`` is what is left of it: ``world_size / (tp * cp * pp)``.
        tp: Tensor-parallel ranks; they share their tokens unless ``sequence_parallel``.
        cp: Context-parallel ranks, which share each sample's tokens.
        pp: Pipeline ranks.
        num_layers: All layers of the model, dense ones included, split evenly over ``pp * virtual`` stages.
        stages: Instead of ``num_layers``: what each stage holds, in the order of the model: how many layers, or their
            indices. ``pp * virtual`` entries; those of dense layers may be stages without a router.
        virtual: Stages of each pipeline rank (interleaved schedule): rank ``p`` has stages ``p``, ``p + pp``, …
        order: Which neighbour ranks share what, fastest axis first. ``"tp-cp-dp-pp"`` is Megatron-LM's default, and
            Paddle's (fleet's ``hybrid_parallel_order``) where data parallelism is its axis ``sharding``;
            ``"tp-cp-pp-dp"`` is Paddle's where it is ``dp``.
        cp_split: ``"zigzag"`` or ``"contiguous"``; see the functions of these names in ``splits``.
        sequence_parallel: Whether the routers of tensor-parallel ranks see different tokens.

    Raises:
        ConfigError: The numbers do not fit each other.
    """

    world_size: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    num_layers: int | None = None
    stages: Sequence[int | Iterable[int]] | None = None
    virtual: int = 1
    order: str = "tp-cp-dp-pp"
    cp_split: str = "zigzag"
    sequence_parallel: bool = False
    _stages: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("world_size", "tp", "cp", "pp", "virtual"):
            number = as_int(getattr(self, name))
            if number is None or number < 1:
                raise _wrong(f"{name} must be an integer from 1 on, got {shown(getattr(self, name))}")
            object.__setattr__(self, name, number)
        if self.world_size % (self.tp * self.cp * self.pp):
            raise _wrong(
                f"world_size {self.world_size} is no multiple of tp * cp * pp = {self.tp} * {self.cp} * {self.pp}"
            )
        order: object = self.order
        if not isinstance(order, str) or sorted(order.split("-")) != sorted(_AXES):
            raise _wrong(f"order must name {', '.join(_AXES)} once each, fastest first, got {order!r}")
        if self.cp_split not in _SPLITS:
            raise _wrong(f"cp_split must be {' or '.join(_SPLITS)}, got {self.cp_split!r}")
        object.__setattr__(self, "_stages", self._split())
        if self.stages is not None:  # a list would make two equal layouts differ, and iterators end
            object.__setattr__(self, "stages", self._stages)

    def _split(self) -> tuple[tuple[int, ...], ...]:
        count = self.pp * self.virtual
        if self.stages is not None:
            if self.num_layers is not None:
                raise _wrong("num_layers and stages exclude each other")
            stages = _explicit(self.stages)
            if len(stages) != count:
                raise _wrong(f"stages has {len(stages)} entries for pp * virtual = {count} stages")
            return stages
        if self.num_layers is None:
            if count > 1:
                raise _wrong(
                    "a pipeline needs num_layers or stages", hint="dense layers count too: RoutingSchema does not know"
                )
            return ()
        total = as_int(self.num_layers)
        if total is None or not 1 <= total <= MAX_LAYERS:
            raise _wrong(f"num_layers must be an integer from 1 to {MAX_LAYERS}, got {shown(self.num_layers)}")
        if total % count:
            raise _wrong(
                f"{total} layers are no multiple of pp * virtual = {count} stages",
                hint="trainers differ in where the remainder goes: say it, stages=[8, 8, 7, …]",
            )
        each = total // count
        return tuple(tuple(range(stage * each, (stage + 1) * each)) for stage in range(count))

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.world_size // (self.tp * self.cp * self.pp)

    def rank(self, rank: int) -> RankLayout:
        """Returns the layout of one rank of ``0 .. world_size - 1``, its place following from ``order``.

        Raises:
            ConfigError: There is no such rank.
        """
        number = as_int(rank)
        if number is None or not 0 <= number < self.world_size:
            raise _wrong(f"rank must be an integer from 0 to {self.world_size - 1}, got {shown(rank)}")
        place = {}
        for axis in self.order.split("-"):
            number, place[axis] = divmod(number, self._size(axis))
        return RankLayout(self, **place)

    def at(self, *, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> RankLayout:
        """Returns the layout of the rank with these places, as the trainer's own groups tell them."""
        return RankLayout(self, tp, cp, dp, pp)

    def _size(self, axis: str) -> int:
        return int(getattr(self, axis))

    def check(self, schema: RoutingSchema) -> None:
        """Checks that each recorded layer is in exactly one stage: no router without data, no data without router.

        Raises:
            ConfigError: Some layers are in none or in several.
        """
        if not self._stages:
            return
        held = [layer for stage in self._stages for layer in stage]
        nowhere = sorted(set(schema.layer_ids) - set(held))
        if nowhere:
            raise _wrong(f"layers {_listed(nowhere)} are in no pipeline stage; recorded are {schema}")
        twice = sorted(layer for layer in schema.layer_ids if held.count(layer) > 1)
        if twice:
            raise _wrong(f"layers {_listed(twice)} are in more than one pipeline stage")


@dataclass(frozen=True, slots=True)
class RankLayout:
    """What one rank of a job needs; ``ParallelLayout.rank`` and ``.at`` make it.

    Attributes:
        layout: The job's layout.
        tp: Place among the tensor-parallel ranks.
        cp: Place among the context-parallel ranks.
        dp: Place among the data-parallel ranks.
        pp: Place in the pipeline.
    """

    layout: ParallelLayout
    tp: int = 0
    cp: int = 0
    dp: int = 0
    pp: int = 0

    def __post_init__(self) -> None:
        for axis in _AXES:
            number, size = as_int(getattr(self, axis)), self.layout._size(axis)
            if number is None or not 0 <= number < size:
                raise _wrong(f"{axis} rank must be from 0 to {size - 1}, got {shown(getattr(self, axis))}")
            object.__setattr__(self, axis, number)

    def __str__(self) -> str:
        places = [f"{axis} {getattr(self, axis)} of {self.layout._size(axis)}" for axis in _AXES]
        return ", ".join(places)

    def layer_ids(self, schema: RoutingSchema) -> tuple[int, ...]:
        """Returns the recorded layers that this rank holds, by the model's indices, in its order; may be empty."""
        if not self.layout._stages:
            return schema.layer_ids
        recorded = set(schema.layer_ids)
        mine = self.layout._stages[self.pp :: self.layout.pp]
        return tuple(layer for stage in mine for layer in stage if layer in recorded)

    def layer_ranges(self, schema: RoutingSchema) -> tuple[Range, ...]:
        """Returns the same as ranges of positions in ``schema.layer_ids``; none for a stage without a router."""
        return _layer_ranges(self, schema)

    @property
    def splits_tokens(self) -> bool:
        """Whether a sample's tokens are divided, so that its length has to be known."""
        return self.layout.cp > 1 or (self.layout.sequence_parallel and self.layout.tp > 1)

    def local_length(self, length: int) -> int:
        """Returns how many tokens each rank has of a sample of ``length``, padding included."""
        return self._padded(length) // (self.layout.cp * self._slices)

    def token_ranges(self, length: int, total: int | None = None) -> tuple[Range, ...]:
        """Returns the tokens of a sample that this rank has, in its own order; may be empty.

        The sample is padded to a multiple of what it is divided into, and what is padding has no routing. Where a rank
        has tokens at all, they come before its padding.

        Args:
            length: Tokens that the trainer divides: those of the sample, with what it pads them to.
            total: Tokens that have routing, the first ones; None: ``length``. The last token of a sample, which was
                never fed to the engine, usually has none.

        Raises:
            InvalidKeyError: A number is negative, or ``total`` is greater than ``length``.
        """
        length = checked("length", length, 0)
        known = length if total is None else checked("total", total, 0)
        if known > length:
            raise InvalidKeyError(f"{known} tokens are recorded, more than the {length} that are to be divided")
        padded = self._padded(length)
        cut = zigzag if self.layout.cp_split == "zigzag" else contiguous
        mine: Sequence[Range] = cut(padded, self.cp, self.layout.cp)
        if self._slices > 1:
            each = self.local_length(length)
            mine = picked(mine, self.tp * each, (self.tp + 1) * each)
        return within(mine, known)

    def _padded(self, length: int) -> int:
        zigzags = self.layout.cp > 1 and self.layout.cp_split == "zigzag"
        multiple = self.layout.cp * self._slices * (2 if zigzags else 1)
        return -(-checked("length", length, 0) // multiple) * multiple

    @property
    def _slices(self) -> int:
        return self.layout.tp if self.layout.sequence_parallel else 1

    def samples(self, items: Sequence[T]) -> Sequence[T]:
        """Returns the rank's own samples: an even share of ``items``, in order. Others' need not be read at all."""
        start, stop = even(len(items), self.dp, self.layout.dp)
        return items[start:stop]


@lru_cache(maxsize=64)
def _layer_ranges(rank: RankLayout, schema: RoutingSchema) -> tuple[Range, ...]:
    place = {layer: position for position, layer in enumerate(schema.layer_ids)}
    return within([(place[layer], place[layer] + 1) for layer in rank.layer_ids(schema)], schema.num_layers)


def _explicit(stages: Sequence[int | Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Returns the layers of each stage, given as counts or as layers."""
    given: object = stages
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise _wrong("stages must list, for each stage, how many layers it has, or all of their indices")
    entries = [as_int(stage) if not isinstance(stage, Iterable) else tuple(stage) for stage in stages]
    counts = [entry for entry in entries if isinstance(entry, int)]
    if len(counts) == len(entries) and all(count >= 0 for count in counts) and sum(counts) <= MAX_LAYERS:
        return tuple(tuple(range(start, stop)) for start, stop in pairwise([0, *accumulate(counts)]))
    listed = []
    for entry in entries:
        layers = [as_int(layer) for layer in entry] if isinstance(entry, tuple) else [None]
        if any(layer is None or layer < 0 for layer in layers):
            raise _wrong("stages must list, for each stage, how many layers it has, or all of their indices")
        listed.append(tuple(layer for layer in layers if layer is not None))
    if any(b <= a for stage in listed for a, b in pairwise(stage)):
        raise _wrong("the layers of a stage must be listed once each, in order")
    return tuple(listed)


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers[:8])) + (" …" if len(layers) > 8 else "")


def _wrong(problem: str, hint: str = "") -> ConfigError:
    return ConfigError(problem, hint=hint, problems=(problem,))
