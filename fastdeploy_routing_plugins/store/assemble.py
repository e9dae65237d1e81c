"""From a rollout's names to what can be read: attempts, totals, coverage, conflicts. Reads nothing, needs no NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import ConflictError, IncompleteError, InvalidKeyError, NotFoundError, PendingError
from ..keys import decode_component
from ..names import AbortName, ObjectName, Part, PartName, SealName, is_attempt, parse_object
from ..status import RolloutStatus, State
from ..wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..keys import RoutingKey


@dataclass(frozen=True, slots=True)
class Attempts:
    """A rollout's objects by attempt, as its names tell.

    Attributes:
        prefix: The key's prefix, which every name begins with.
        objects: Attempt number -> objects, ascending.
    """

    prefix: str
    objects: dict[int, tuple[ObjectName, ...]]

    @classmethod
    def parse(cls, prefix: str, names: Iterable[str]) -> Attempts:
        """Sorts names under ``prefix`` into attempts; names that this version cannot read are left out."""
        found: dict[int, list[ObjectName]] = {}
        for name in names:
            attempt, _, text = name[len(prefix) :].partition("/")
            try:
                what = parse_object(text)
            except InvalidKeyError:
                continue
            if is_attempt(attempt):
                found.setdefault(int(attempt), []).append(what)
        return cls(prefix, {number: tuple(found[number]) for number in sorted(found)})

    @staticmethod
    def sole(prefix: str, names: Sequence[str]) -> tuple[int, PartName] | None:
        """Returns attempt and part if a rollout is one part that covers it, the usual case; None otherwise."""
        if len(names) != 1 or not names[0].startswith(prefix):
            return None
        return _as_sole(names[0][len(prefix) :])

    @property
    def highest(self) -> int:
        """The attempt that counts; -1 if there is none."""
        return max(self.objects, default=-1)

    def names(self, *, below: int | None = None) -> list[str]:
        """Returns the full names of all objects, or of those of attempts below a number."""
        return [
            f"{self.prefix}{number:019d}/{what}"
            for number, objects in self.objects.items()
            if below is None or number < below
            for what in objects
        ]

    def parts(self, attempt: int) -> tuple[PartName, ...]:
        """The parts of one attempt, in order."""
        return tuple(what for what in self.objects.get(attempt, ()) if isinstance(what, PartName))

    def aborted(self, attempt: int) -> bool:
        """Whether the attempt carries an abort mark."""
        return any(isinstance(what, AbortName) for what in self.objects.get(attempt, ()))

    def totals(self, attempt: int) -> tuple[int, int | None]:
        """Returns ``(total_layers, total_tokens)``; 0 and None where nothing says so yet.

        Raises:
            ConflictError: the attempt's objects disagree.
        """
        total_layers = 0
        total_tokens: int | None = None
        first: PartName | None = None
        stop = 0
        for what in self.objects.get(attempt, ()):
            if isinstance(what, AbortName):
                continue
            if isinstance(what, PartName):
                if first is not None and first.schema != what.schema:
                    raise ConflictError(
                        f"parts follow different schemas ({first.total_layers} layers of {first.row_bytes} bytes a "
                        f"token, {what.total_layers} of {what.row_bytes}; fingerprints {first.schema}, {what.schema})",
                        hint="one rollout has one schema: the model's",
                    )
                first, total_layers = what, what.total_layers
                stop = max(stop, what.part.tokens[1])
            if what.total_tokens is not None:
                if total_tokens not in (None, what.total_tokens):
                    raise ConflictError(f"two totals are stated: {total_tokens} and {what.total_tokens} tokens")
                total_tokens = what.total_tokens
        if total_tokens is not None and stop > total_tokens:
            raise ConflictError(f"a part reaches token {stop}, the total is {total_tokens}")
        return total_layers, total_tokens

    def status(self, key: RoutingKey, *, min_attempt: int = 0) -> RolloutStatus:
        """Returns the state of the highest attempt.

        Raises:
            NotFoundError: there is no attempt, or none from ``min_attempt`` on.
        """
        number = self.highest
        if number < 0:
            namespace = decode_component(self.prefix.partition("/")[0])
            raise NotFoundError(
                f"nothing is stored for {key} in namespace {namespace!r}",
                hint="is the producer using this store and namespace?",
            )
        if number < min_attempt:
            raise NotFoundError(f"only attempt {number} of {key} is stored, at least {min_attempt} is asked for")
        parts = self.parts(number)
        total_layers, total_tokens, problem = 0, None, ""
        missing: tuple[Part, ...] = ()
        state: State = "pending"
        try:
            total_layers, total_tokens = self.totals(number)
        except ConflictError as err:
            problem = err.message
        if self.aborted(number):
            state = "aborted"
        elif problem:
            state = "conflict"
        elif total_tokens is not None and total_layers:
            missing = uncovered(parts, Part((0, total_tokens), (0, total_layers)))
            state = "incomplete" if missing else "complete"
        elif total_tokens == 0:
            state = "complete" if parts else "pending"
        nbytes = sum(part.nbytes for part in parts)
        return RolloutStatus(
            key, state, number, parts, total_layers, total_tokens, missing, nbytes, tuple(self.objects), problem
        )

    def check_new(self, key: RoutingKey, attempt: int, what: PartName | SealName | None) -> None:
        """Raises ConflictError if the attempt's objects, and a new one if given, contradict each other."""
        objects = self.objects.get(attempt, ())
        if objects:
            new = () if what is None or what in objects else (what,)
            try:
                Attempts(self.prefix, {attempt: (*objects, *new)}).totals(attempt)
            except ConflictError as err:
                raise ConflictError(f"{key}, attempt {attempt}: {err.message}", hint=err.hint) from None


@lru_cache(maxsize=4096)  # one read asks twice: whether to fetch it, and what came
def _as_sole(text: str) -> tuple[int, PartName] | None:
    attempt, _, rest = text.partition("/")
    try:
        what = parse_object(rest)
    except InvalidKeyError:
        return None
    if not isinstance(what, PartName) or not is_attempt(attempt):
        return None
    whole = what.total_tokens and what.part.tokens == (0, what.total_tokens)
    return (int(attempt), what) if whole and what.part.layers == (0, what.total_layers) else None


def uncovered(parts: Iterable[PartName], want: Part) -> tuple[Part, ...]:
    """Returns the rectangles of ``want`` that no part covers, in order of layers, then tokens."""
    return uncovered_by([name.part for name in parts], want)


def uncovered_by(parts: Iterable[Part], want: Part) -> tuple[Part, ...]:
    """As ``uncovered``, for the rectangles that parts are."""
    rects = [rect for part in parts if (rect := part.intersect(want)) is not None]
    if want.num_tokens == 0 or any(rect == want for rect in rects):
        return ()
    edges = sorted({want.layers[0], want.layers[1], *[edge for rect in rects for edge in rect.layers]})
    gaps: list[tuple[tuple[int, int], list[tuple[int, int]]]] = []
    by_start = sorted(rects, key=lambda rect: rect.tokens)
    for low, high in pairwise(edges):
        spans = [rect.tokens for rect in by_start if rect.layers[0] <= low and high <= rect.layers[1]]
        holes = _holes(spans, want.tokens)
        if gaps and gaps[-1][1] == holes:
            gaps[-1] = ((gaps[-1][0][0], high), holes)
        else:
            gaps.append(((low, high), holes))
    return tuple(Part(hole, layers) for layers, holes in gaps for hole in holes)


def _holes(spans: list[tuple[int, int]], within: tuple[int, int]) -> list[tuple[int, int]]:
    holes = []
    reached = within[0]
    for start, stop in spans:
        if start > reached:
            holes.append((reached, start))
        reached = max(reached, stop)
    if reached < within[1]:
        holes.append((reached, within[1]))
    return holes


def absence(status: RolloutStatus, missing: tuple[Part, ...]) -> PendingError | IncompleteError:
    """Returns the error that says why a rollout, or the range asked of it, cannot be read yet."""
    if status.total_tokens is not None and not status.parts:
        return PendingError(
            f"{status.key} is sealed with {status.total_tokens} tokens, none of its parts is there yet", parts=[]
        )
    if status.total_tokens is None:
        return PendingError(
            f"{status.key} has {counted(len(status.parts), 'part')}, its total number of tokens is not known yet",
            hint="the producer states total_tokens with a part, or calls seal(id, total_tokens)",
            parts=[name.part for name in status.parts],
        )
    shown = "; ".join(str(part) for part in missing[:3]) + (" …" if len(missing) > 3 else "")
    return IncompleteError(f"{status.key} lacks {shown}", missing=list(missing))
