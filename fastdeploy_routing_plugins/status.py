"""What is known of a rollout from names alone: ``RolloutStatus``. Free of NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .keys import RoutingKey
    from .names import Part, PartName

State = Literal["complete", "incomplete", "pending", "aborted", "conflict"]


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """The state of one rollout's highest attempt.

    Attributes:
        key: Which sample.
        state: ``complete``: parts cover the grid; ``incomplete``: the total is known, parts are missing; ``pending``:
            the total is not known yet; ``aborted``: the producer gave up; ``conflict``: parts contradict each other.
        attempt: The highest attempt with any object.
        parts: The parts of that attempt.
        total_layers: MoE layers of the whole rollout; 0 if no part is there.
        total_tokens: Recorded tokens of the whole rollout, if known.
        missing: What is not covered, as far as the total tells; empty when complete.
        nbytes: Payload bytes stored for that attempt.
        attempts: All attempts that have objects, ascending.
        problem: What contradicts what, if the state is ``conflict``.
    """

    key: RoutingKey
    state: State
    attempt: int
    parts: tuple[PartName, ...]
    total_layers: int
    total_tokens: int | None
    missing: tuple[Part, ...]
    nbytes: int
    attempts: tuple[int, ...]
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {
            "id": self.key.rollout_id,
            "choice": self.key.choice,
            "kind": self.key.kind,
            "state": self.state,
            "attempt": self.attempt,
            "attempts": list(self.attempts),
            "parts": len(self.parts),
            "total_layers": self.total_layers,
            "total_tokens": self.total_tokens,
            "missing": [{"layers": list(p.layers), "tokens": list(p.tokens)} for p in self.missing],
            "bytes": self.nbytes,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """What a put did.

    Attributes:
        name: The stored object's name.
        duplicate: True if the same routing was already there and nothing was written.
        nbytes: Payload bytes.
        listed: Whether the store listed the object right after the put. False: somebody deleted it at once, or the
            backend does not keep what it takes. True as well where the store cannot list.
    """

    name: str
    duplicate: bool
    nbytes: int
    listed: bool = True
