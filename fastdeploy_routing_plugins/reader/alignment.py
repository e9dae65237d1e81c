"""Which recorded row belongs to which token of the trainer: stated by the caller, checked by counting, never guessed.

An engine records a row when it runs a token through the model. The token that it samples last is never run, so a
rollout of ``n`` tokens usually has ``n - 1`` rows, and some engines record ``n``. A trainer indexes rows by the token
that is run, or by the token that is predicted from it. ``align`` takes the caller's word for which of these it is,
refuses a count that does not fit, and marks the position that has no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from ..arrays import as_numpy, layer_first
from ..errors import InvalidRecordError
from ..keys import as_int, shown
from ..names import MAX_TOKENS
from ..record import RoutingRecord
from .padding import check_fill, spread_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..schema import RoutingSchema

Rows = Literal["n", "n-1", "shifted"]
ROWS = ("n", "n-1", "shifted")


@dataclass(frozen=True, slots=True, eq=False)
class AlignedRows:
    """Rows by position. No method shows the data in logs.

    Attributes:
        routing: ``[layers, positions, top_k]`` in the dtype of what was aligned. A read-only view of it if every
            position has a row, else a copy.
        mask: bool ``[positions]``, True where a recorded row lies; what lies elsewhere is padding.
        start: The trainer's token that position 0 is.
    """

    routing: npt.NDArray[Any]
    mask: npt.NDArray[np.bool_]
    start: int

    def __repr__(self) -> str:
        recorded = int(self.mask.sum())
        return f"AlignedRows(shape={self.routing.shape}, start={self.start}, recorded={recorded})"


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where rows go, as plain numbers.

    Attributes:
        start: The trainer's token that position 0 is.
        length: Number of positions.
        rows: ``(first, last + 1)`` of the rollout's rows that are needed; equal if none is.
        offset: The position of the first of them; 0 without any.
    """

    start: int
    length: int
    rows: tuple[int, int]
    offset: int

    @property
    def count(self) -> int:
        """Number of rows that are needed."""
        return self.rows[1] - self.rows[0]


def place(
    have: tuple[int, int], total: int | None, num_tokens: int, rows: Rows, tokens: slice | None = None
) -> Placement:
    """Computes where rows go; ``align`` says what the arguments mean.

    Args:
        have: The rollout's rows that are at hand, ``(first, last + 1)``, absolute.
        total: Rows of the whole rollout, or None if that is not known; then ``have`` alone has to fit.
        num_tokens: The rollout's tokens as the trainer counts them, before it cuts any off.
        rows: The rule.
        tokens: Which of these tokens the trainer keeps.

    Raises:
        InvalidRecordError: The counts do not fit the rule, or rows that are needed are not at hand.
    """
    number = as_int(num_tokens)
    if number is None or not 0 <= number <= MAX_TOKENS:
        raise InvalidRecordError(f"num_tokens must be a count of tokens, got {shown(num_tokens)}")
    given: object = rows
    if not isinstance(given, str) or given not in ROWS:
        raise InvalidRecordError(f"rows must be one of {', '.join(ROWS)}, got {shown(rows)}")
    expected = number if rows == "n" else max(number - 1, 0)
    if have[1] > expected or total not in (None, expected):
        recorded = have[1] if total is None else total
        raise InvalidRecordError(
            f"{recorded} rows were recorded for {number} tokens; rows={rows!r} means {expected} rows",
            hint=_why(recorded, number),
        )
    start, stop = kept(tokens, number)
    shift = 1 if rows == "shifted" else 0
    first = max(start - shift, 0)
    last = max(min(stop - shift, expected), first)
    if first < last and not have[0] <= first <= last <= have[1]:
        raise InvalidRecordError(
            f"tokens {start}:{stop} need the rows {first}:{last}; read were the rows {have[0]}:{have[1]}",
            hint="read that range, or state with tokens= which tokens are kept",
        )
    return Placement(start, stop - start, (first, last), first + shift - start if first < last else 0)


def _why(recorded: int, num_tokens: int) -> str:
    if recorded == num_tokens - 1:
        return "the token that was sampled last has no row: rows='n-1'"
    if recorded == num_tokens:
        return "every token has a row: rows='n'"
    return "num_tokens counts prompt and response, before the trainer cuts any off; tokens= says what it keeps"


def kept(tokens: slice | None, num_tokens: int) -> tuple[int, int]:
    """Returns ``(first, last + 1)`` of the tokens that a trainer's slice keeps, as Python itself applies a slice.

    Raises:
        InvalidRecordError: it is no slice of step 1.
    """
    given: object = tokens
    if given is None:
        return 0, num_tokens
    if not isinstance(given, slice):
        raise InvalidRecordError(f"tokens must be a slice, got {shown(tokens)}", hint="slice(-4000, None)")
    try:
        start, stop, step = given.indices(num_tokens)
    except (TypeError, ValueError) as err:
        raise InvalidRecordError(f"tokens must be a slice of integers, got {shown(tokens)}") from err
    if step != 1:
        raise InvalidRecordError(f"tokens must be a slice without gaps, got step {step}")
    return start, max(start, stop)


def align(
    routing: RoutingRecord | Any,
    num_tokens: int,
    rows: Rows,
    *,
    tokens: slice | None = None,
    schema: RoutingSchema | None = None,
    fill: int | None = None,
) -> AlignedRows:
    """Returns one row for each token that the trainer keeps, and a mask that says which of them were recorded.

    Args:
        routing: A record, or the recorded rows as integers ``[layers, rows, top_k]`` (``[rows, top_k]`` for one
            layer) that begin at the rollout's first token.
        num_tokens: Tokens of the rollout, prompt and response, as the trainer counts them before it cuts any off.
        rows: What was recorded, and what the result is indexed by. ``"n"``: a row for every token, row ``i`` is that
            of token ``i``. ``"n-1"``: a row for every token but the last one; row ``i`` is that of token ``i``, the
            last position has none. ``"shifted"``: the same record, indexed by the predicted token; row ``i`` was used
            to predict token ``i``, the first position has none.
        tokens: Which tokens the trainer keeps: the slice that it applies to its list of tokens, with Python's own
            meaning of open, negative and large ends. None: all.
        schema: The model's schema, so that a plain array can be padded; a record has it.
        fill: An id to pad with. None: distinct ids, spread over the experts.

    Raises:
        InvalidRecordError: The number of rows does not fit; or rows that are needed were not read; or ``fill`` does
            not fit the dtype; or ``routing`` is no such array.
    """
    if isinstance(routing, RoutingRecord):
        array: npt.NDArray[Any] = routing.routing
        have, total = routing.part.tokens, routing.total_tokens
        schema = routing.schema
    else:
        array = layer_first(as_numpy(routing), "layer_first")
        have = (0, array.shape[1])
        total = array.shape[1]
    put = place(have, total, num_tokens, rows, tokens)
    first = put.rows[0] - have[0]
    recorded = array[:, first : first + put.count] if put.count else array[:, :0]
    mask = np.zeros(put.length, np.bool_)
    mask[put.offset : put.offset + put.count] = True
    if put.count == put.length:
        recorded = recorded.view()
        recorded.flags.writeable = False
        return AlignedRows(recorded, mask, put.start)
    padded = np.empty((array.shape[0], put.length, array.shape[2]), array.dtype)
    padded[:, mask] = recorded
    padded[:, ~mask] = _padding(put.length - put.count, array, schema, fill)
    return AlignedRows(padded, mask, put.start)


def _padding(count: int, array: npt.NDArray[Any], schema: RoutingSchema | None, fill: int | None) -> Any:
    if fill is not None:
        return check_fill(fill, array.dtype)
    if schema is None:
        raise InvalidRecordError(
            f"{count} positions have no row, and how many experts there are to pad with is not known",
            hint="align(..., schema=RoutingSchema(...)), or fill= with an id",
        )
    if array.shape[2] != schema.top_k:
        raise InvalidRecordError(f"rows have {array.shape[2]} ids; the schema has {schema}")
    if np.iinfo(array.dtype).max < schema.num_experts - 1:
        raise InvalidRecordError(f"{array.dtype} does not hold the ids of {schema.num_experts} experts")
    return spread_rows(count, schema.num_experts, schema.top_k)
