"""``ForeignRows``: routing that came from elsewhere, brought into the form that stores take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import arrays
from ..errors import InvalidRecordError
from ..keys import as_int, as_key, shown
from ..names import MAX_TOKENS, Part
from ..record import RoutingRecord

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..keys import RoutingKey
    from ..schema import RoutingSchema


MAX_PARTS = 4096
"""Most runs of known rows in one payload; the pages of an engine's cache hold 16 tokens or more."""


@dataclass(frozen=True, slots=True, eq=False)
class ForeignRows:
    """Routing of consecutive tokens. Shape and place are checked, ids are not: ``record`` and every store check them.

    Attributes:
        rows: ``[tokens, layers, top_k]``, integers of any width; the payload's own memory where that is possible.
        schema: The model's schema.
        start: Which token, absolute, the first row is of.
        total_tokens: Recorded tokens of the whole rollout; one less than it has tokens, for the last one, which was
            sampled, never went through the model. None if the payload does not say.
        layers: Which of the schema's layers (positions) the rows hold.
        fill: The id that a row consists of whose routing the engine did not know; None if it marks none.
    """

    rows: npt.NDArray[Any]
    schema: RoutingSchema
    start: int = 0
    total_tokens: int | None = None
    layers: tuple[int, int] | None = None
    fill: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return (
            f"ForeignRows(shape={self.rows.shape}, dtype={self.rows.dtype}, {self.part} of {self.total_tokens}, "
            f"{self.schema})"
        )

    @property
    def part(self) -> Part:
        """Which layers and tokens these are."""
        return Part((self.start, self.start + len(self.rows)), self.layers or (0, self.schema.num_layers))

    @property
    def place(self) -> dict[str, Any]:
        """What ``put`` and ``submit`` have to be told: ``store.put(id, part.rows, **part.place)``."""
        part = self.part
        return {
            "layout": "token_first",
            "layers": part.layers,
            "tokens": part.tokens,
            "total_tokens": self.total_tokens,
        }

    def parts(self) -> list[ForeignRows]:
        """Returns the runs of rows that the engine knew, which alone may be put.

        Missing rows become missing parts, which readers are told of. Nothing is returned if no row is known; ``seal``
        the rollout then, so that readers learn what they wait for.

        Raises:
            InvalidRecordError: there are more than ``MAX_PARTS`` runs, each of which would become an object.
        """
        real = ~filled_with(self.rows, self.fill)
        if real.all():
            return [self]
        edges = np.flatnonzero(np.diff(real, prepend=False, append=False))
        if len(edges) > 2 * MAX_PARTS:
            raise InvalidRecordError(
                f"known and unknown rows alternate {len(edges)} times",
                hint="engines leave out a prefix or a few blocks; this looks like no routing",
            )
        runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        return [replace(self, rows=self.rows[a:b], start=self.start + a) for a, b in runs]

    def unpadded(self) -> ForeignRows:
        """Returns the rows up to the last one that is known, which then are all that the rollout has.

        Raises:
            InvalidRecordError: there are rows, and none is known.
        """
        real = np.flatnonzero(~filled_with(self.rows, self.fill))
        if len(self.rows) and not real.size:
            raise InvalidRecordError(
                f"none of {len(self.rows)} rows was filled", hint="the engine captured no routing for this request"
            )
        stop = int(real[-1]) + 1 if real.size else 0
        return replace(self, rows=self.rows[:stop], total_tokens=self.start + stop)

    def record(self, key: str | RoutingKey, *, attempt: int = 0) -> RoutingRecord:
        """Returns a record as a reader gets it, every id checked.

        Raises:
            InvalidRecordError: an id is out of range or named twice for a token, or rows are missing.
            InvalidKeyError: no rollout can be called so.
        """
        missing = np.flatnonzero(filled_with(self.rows, self.fill)) + self.start
        if missing.size:
            raise InvalidRecordError(
                f"{missing.size} of {len(self)} tokens have no routing, the first is token {int(missing[0])}",
                hint="parts() are the tokens that have; a store takes them as parts and says what is missing",
            )
        array = arrays.canonical(self.rows.transpose(1, 0, 2), self.schema, self.part)
        array = array.view()
        array.flags.writeable = False
        return RoutingRecord(array, as_key(key), self.schema, self.part, self.total_tokens, attempt)


def filled_with(rows: npt.NDArray[Any], fill: int | None) -> npt.NDArray[np.bool_]:
    """Returns, for each row of ``[rows, layers, top_k]``, whether it consists of nothing but ``fill``."""
    if fill is None or not rows.size:
        return np.zeros(len(rows), np.bool_)
    candidates = np.flatnonzero(rows[:, 0, 0] == fill)  # nearly always none, and then all the rest is saved
    result = np.zeros(len(rows), np.bool_)
    result[candidates] = (rows[candidates] == fill).all(axis=(1, 2))
    return result


def recorded_layers(array: npt.NDArray[Any], schema: RoutingSchema, num_hidden_layers: int | None) -> npt.NDArray[Any]:
    """Returns the MoE layers of ``[rows, layers, top_k]``, a view if they stand together.

    Args:
        array: Routing of the schema's layers, or of all hidden layers.
        schema: The model's schema.
        num_hidden_layers: Number of the model's layers, dense ones included; None if only MoE layers are expected.

    Raises:
        InvalidRecordError: it is neither, or has another top_k.
    """
    hidden = check_hidden(schema, num_hidden_layers)
    if array.ndim != 3:
        raise InvalidRecordError(f"routing must have 3 axes [rows, layers, top_k], got shape {array.shape}")
    rows, layers, top_k = array.shape
    if rows == 0:
        return np.empty((0, schema.num_layers, schema.top_k), array.dtype)
    if top_k != schema.top_k:
        raise InvalidRecordError(f"routing of top-{top_k} does not fit {schema}")
    if layers == hidden != schema.num_layers:
        first, last = schema.layer_ids[0], schema.layer_ids[-1] + 1
        together = last - first == schema.num_layers
        return array[:, first:last] if together else array[:, list(schema.layer_ids)]
    if layers != schema.num_layers:
        raise InvalidRecordError(
            f"routing has {layers} layers, the schema has {schema.num_layers}: {schema}",
            hint="" if hidden else "num_hidden_layers says how many there are with the dense ones, which are left out",
        )
    return array


def check_hidden(schema: RoutingSchema, num_hidden_layers: int | None) -> int | None:
    """Returns the number of hidden layers; raises InvalidRecordError if the schema's layers are not among them."""
    if num_hidden_layers is None:
        return None
    number = as_int(num_hidden_layers)
    if number is None or number <= schema.layer_ids[-1]:
        raise InvalidRecordError(
            f"num_hidden_layers={shown(num_hidden_layers)} does not fit {schema}",
            hint=f"the layers are counted from 0, so there are at least {schema.layer_ids[-1] + 1}",
        )
    return number


def placed(
    rows: npt.NDArray[Any],
    schema: RoutingSchema,
    *,
    start: int,
    num_tokens: int | None,
    fill: int | None,
    last_too: bool = False,
    fewer: bool = False,
) -> ForeignRows:
    """Returns rows at their place, after counting them: n tokens have n-1 rows.

    Args:
        rows: ``[rows, MoE layers, top_k]``.
        schema: The model's schema.
        start: Which token the first row is of.
        num_tokens: Tokens of the sequence, prompt and completion; None if not known.
        fill: See ``ForeignRows``.
        last_too: Whether there may be a row for the last token, which is dropped: it never went through the model.
        fewer: Whether rows may be missing at the end.

    Raises:
        InvalidRecordError: there are more or fewer rows than tokens.
    """
    first = _count("start", start, 0)
    if num_tokens is None:
        return ForeignRows(rows, schema, first, _count("start and rows", first + len(rows), 0), None, fill)
    total = _count("num_tokens", num_tokens, 1) - 1
    expected = total - first
    least, most = 0 if fewer else expected, expected + last_too
    if expected < 0 or not least <= len(rows) <= most:
        raise InvalidRecordError(
            f"{len(rows)} rows do not fit {total + 1} tokens: the first row is of token {first}, and the last token "
            f"has none, so there should be {expected}",
            hint="rows must equal tokens; is the start offset the request's, and top_k the model's?",
        )
    return ForeignRows(rows[:expected], schema, first, total, None, fill)


def _count(what: str, value: object, low: int) -> int:
    number = as_int(value)
    if number is None or not low <= number <= MAX_TOKENS:
        raise InvalidRecordError(f"{what} must be an integer from {low} to {MAX_TOKENS}, got {shown(value)}")
    return number


def every_layer(record: RoutingRecord, dtype: str, num_hidden_layers: int | None = None) -> npt.NDArray[Any]:
    """Returns a record as ``[tokens, layers, top_k]``, a copy; dense layers are zeros, as engines have them.

    Args:
        record: Routing of all of the schema's layers.
        dtype: Of the result; it must hold the ids.
        num_hidden_layers: Number of layers with the dense ones; None: the schema's layers alone.

    Raises:
        InvalidRecordError: layers are missing, or the dtype is too narrow.
    """
    schema = record.schema
    hidden = check_hidden(schema, num_hidden_layers)
    if record.part.num_layers != schema.num_layers:
        raise InvalidRecordError(f"a record of {record.part} holds not all layers of {schema}")
    if schema.num_experts - 1 > np.iinfo(dtype).max:
        raise InvalidRecordError(f"{np.dtype(dtype).name} does not hold ids of {schema.num_experts} experts")
    given = record.routing.transpose(1, 0, 2)
    if hidden is None:
        return np.array(given, dtype, order="C")
    result = np.zeros((given.shape[0], hidden, schema.top_k), dtype)
    result[:, list(schema.layer_ids)] = given
    return result
