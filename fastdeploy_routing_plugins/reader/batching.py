"""From what a trainer says of a batch to what has to be read of each rollout, and back to the batch: ``Terms``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from ..errors import InvalidKeyError, InvalidRecordError, StoreError, UnsupportedError
from ..keys import MAX_ATTEMPT, as_int, check_int, shown
from ..names import MAX_TOKENS
from ..store.selection import bounds
from .alignment import ROWS, place
from .asking import Ask
from .batch import RoutingBatch
from .building import build
from .places import Places
from .staleness import Freshness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..keys import RoutingKey
    from ..schema import RoutingSchema
    from ..store.selection import Selection
    from .alignment import Rows
    from .asking import Reading
    from .batch import Side
    from .ranges import RankLayout


@dataclass(frozen=True, slots=True)
class Terms:
    """What is read of several rollouts, and what it must be; ``RoutingReader.get_batch`` says what the fields mean.

    Attributes:
        schema: The model's schema.
        rank: What this rank needs; None: everything, or what ``layers`` and ``layer_ids`` say.

    Raises:
        InvalidKeyError: ``layers`` and ``layer_ids`` are both stated, or are no ranges.
        InvalidRecordError: Another argument is none.
        UnsupportedError: A rank with some of the tokens is asked for what only whole samples have.
    """

    schema: RoutingSchema
    rank: RankLayout | None = None
    layers: Selection = None
    layer_ids: Sequence[int] | None = None
    min_attempt: int = 0
    fresh: Freshness | None = None
    verify: bool = True
    view: bool = False
    num_tokens: Sequence[int] | None = None
    rows: Rows = "n"
    tokens: slice | Sequence[slice] | None = None
    pad_to: int | None = None

    def __post_init__(self) -> None:
        if self.layers is not None and self.layer_ids is not None:
            raise InvalidKeyError("layers and layer_ids exclude each other")
        bounds("layers", self.layers)
        self._set("min_attempt", check_int("min_attempt", self.min_attempt, MAX_ATTEMPT))
        if self.layers is not None or self.layer_ids is not None:
            self._set("rank", None)
        rule: object = self.rows
        if not isinstance(rule, str) or rule not in ROWS:
            raise InvalidRecordError(f"rows must be one of {', '.join(ROWS)}, got {shown(rule)}")
        if self.num_tokens is None and (self.rows != "n" or self.tokens is not None):
            raise InvalidRecordError(
                f"rows={self.rows!r} and tokens={shown(self.tokens)} need num_tokens",
                hint="the number of tokens of each sample, before the trainer cuts any off",
            )
        fresh: object = self.fresh
        if fresh is not None and not isinstance(fresh, Freshness):
            raise InvalidRecordError(f"{shown(fresh)} is no Freshness", hint="Freshness(current, max_staleness)")
        for name in ("layer_ids", "num_tokens"):
            if getattr(self, name) is not None:
                self._set(name, _listed(name, getattr(self, name)))
        if self.pad_to is not None:
            self._set("pad_to", _count("pad_to", self.pad_to))
        if self.shared and (self.tokens is not None or self.rows == "shifted"):
            raise UnsupportedError(
                f"a rank with a share of a sample ({self.rank}) cannot cut or shift it",
                hint="cut before you divide: state layers= and tokens= yourself",
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def shared(self) -> bool:
        """Whether what is read is not one range of layers and all tokens, and so comes as ``RoutingShare``."""
        if self.rank is None:
            return False
        return self.rank.splits_tokens or len(self.rank.layer_ranges(self.schema)) != 1

    @property
    def held(self) -> tuple[int, ...]:
        """The layers that are read, by the model's indices."""
        if self.layer_ids is not None:
            return tuple(self.layer_ids)
        if self.rank is not None:
            return self.rank.layer_ids(self.schema)
        return self.schema.layer_ids[slice(*bounds("layers", self.layers))]

    def asks(self, keys: Sequence[RoutingKey]) -> list[Ask]:
        """Returns what to ask for each key.

        Raises:
            InvalidRecordError: There are not as many counts or slices as keys.
        """
        counts: Sequence[int | None] = [None] * len(keys) if self.num_tokens is None else self.num_tokens
        one = self.tokens is None or isinstance(self.tokens, slice)
        keep: Sequence[Any] = [self.tokens] * len(keys) if one else list(self.tokens)  # type: ignore[arg-type]
        for name, given in (("num_tokens", counts), ("tokens", keep)):
            if len(given) != len(keys):
                raise InvalidRecordError(f"{name} has {len(given)} entries for {len(keys)} rollouts")
        return [self._ask(key, count, part) for key, count, part in zip(keys, counts, keep, strict=True)]

    def ask(self, key: RoutingKey, tokens: Selection) -> Ask:
        """Returns what to ask for one key, or for a range of its tokens.

        Raises:
            UnsupportedError: A range is stated, and the rank's layers are none, or several.
        """
        ask = self.asks([key])[0]
        return ask if tokens is None else self._within(ask, tokens)

    def _ask(self, key: RoutingKey, count: int | None, keep: slice | None) -> Ask:
        layer_ids = None if self.layer_ids is None else tuple(self.layer_ids)
        how = self.min_attempt, self.verify, self.view
        ask = Ask(key, self.layers, None, layer_ids, *how, fresh=self.fresh, rank=self.rank)
        if self.shared:
            ask = replace(ask, length=count if self.pad_to is None else self.pad_to)
        if count is None:
            return ask
        recorded = count if self.rows == "n" else max(count - 1, 0)
        ask = replace(ask, recorded=recorded)
        if keep is None:
            return ask
        put = place((0, recorded), recorded, count, self.rows, keep)
        return self._within(ask, put.rows if put.count else (0, 0))  # an empty range may lie beyond the last row

    def _within(self, ask: Ask, tokens: Selection) -> Ask:
        if self.rank is None:
            return replace(ask, tokens=tokens)
        ranges = self.rank.layer_ranges(self.schema)
        if len(ranges) != 1:
            raise UnsupportedError(
                f"this rank ({self.rank}) has {len(ranges)} ranges of layers, not one",
                hint="get(key, layers=…, tokens=…) reads any range",
            )
        layers = None if ranges[0] == (0, self.schema.num_layers) else ranges[0]
        return replace(ask, layers=layers, tokens=tokens, length=None, rank=None)

    def places(self, count: int, side: object) -> Places:
        """Returns where a batch of this will lie, as far as that can be told before it was read."""
        usual = not self.shared and self.tokens is None and self.rows == "n"
        return Places(self.schema, count if usual else 0, len(self.held), self.pad_to, side)

    def batch(
        self,
        items: Sequence[Reading | StoreError],
        keys: Sequence[RoutingKey],
        side: Side,
        fill: int | None,
        fresh: Freshness | None,
        places: Places | None = None,
    ) -> RoutingBatch:
        """Makes the batch of what was read.

        Args:
            items: What became of each ask.
            keys: The keys, in the same order.
            side: See ``RoutingBatch.build``.
            fill: See ``RoutingBatch.build``.
            fresh: Rows of older weights lose their place in the mask.
            places: Where ``items`` may lie already.
        """
        pad_to = self.pad_to
        if self.shared and self.rank is not None:
            pad_to = None if pad_to is None else self.rank.local_length(pad_to)
            how: dict[str, Any] = {"num_tokens": None, "rows": "n", "tokens": None}
        else:
            how = {"num_tokens": self.num_tokens, "rows": self.rows, "tokens": self.tokens}
        # Not RoutingBatch.build, which imports this when it is first called: a fork must not meet it half imported.
        batch = RoutingBatch(
            **build(
                items, keys, schema=self.schema, layer_ids=self.held, pad_to=pad_to, side=side, fill=fill,
                places=places, **how,
            )
        )  # fmt: skip
        for index, item in enumerate(items):
            if fresh is not None and not isinstance(item, StoreError):
                batch.mask[index, np.flatnonzero(batch.mask[index])] = fresh.mask(item)
        return batch


def _listed(what: str, values: object) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidRecordError(f"{what} must be a list of integers, got {shown(values)}")
    return tuple([_count(what, value) for value in values])


def _count(what: str, value: object) -> int:
    number = as_int(value)
    if number is None or not 0 <= number <= MAX_TOKENS:
        raise InvalidRecordError(f"{what} must be integers from 0 on, got {shown(value)}")
    return number
