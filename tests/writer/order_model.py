"""What a store must hold after a sequence of operations: the model of ``test_order``, and random sequences for it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdeploy_routing_plugins import RoutingSchema, RoutingWriter
from fastdeploy_routing_plugins.writer.tickets import Ticket

LAYERS, TOKENS, TOP_K = 2, 6, 2
SCHEMA = RoutingSchema(100, TOP_K, range(LAYERS))
TRAJECTORIES, TURNS, ATTEMPTS = 8, 4, 3
WHOLE, FIRST, SECOND = (0, TOKENS), (0, TOKENS // 2), (TOKENS // 2, TOKENS)

Span = tuple[int, int]
Step = tuple[Any, ...]


def routing(key: str, attempt: int, variant: int) -> npt.NDArray[np.uint8]:
    """Returns a whole rollout's routing; two variants differ in every cell."""
    first = hash_of(f"{key} {attempt}") + 50 * variant
    cells = np.arange(LAYERS * TOKENS).reshape(LAYERS, TOKENS, 1)
    return ((first + 2 * cells + np.arange(TOP_K)) % 100).astype(np.uint8)


def hash_of(text: str) -> int:
    return sum(index * byte for index, byte in enumerate(text.encode(), 1)) % 50


@dataclass
class Attempt:
    """One attempt: its parts' variants by tokens, the totals stated, whether it was given up."""

    parts: dict[Span, int] = field(default_factory=dict)
    totals: set[int] = field(default_factory=set)
    aborted: bool = False

    @property
    def state(self) -> str:
        if self.aborted:
            return "aborted"
        if not self.parts:
            return "pending"
        whole = WHOLE in self.parts or {FIRST, SECOND} <= set(self.parts)
        return "complete" if whole else "incomplete"


class Model:
    """All rollouts. Methods return what an operation ends with: ``ok``, a number, or an error's code.

    Args:
        only_last_turn: Whether a complete turn makes the one before go.
    """

    def __init__(self, *, only_last_turn: bool) -> None:
        self.rollouts: dict[str, dict[int, Attempt]] = {}
        self._only_last_turn = only_last_turn

    def do(self, step: Step) -> Any:
        return getattr(self, step[0])(*step[1:])

    def put(self, key: str, attempt: int, tokens: Span, variant: int) -> str:
        attempts = self.rollouts.get(key, {})
        found = attempts.get(attempt, Attempt())
        if max(attempts, default=0) > attempt:
            return "superseded"
        if found.aborted:
            return "aborted"
        meeting = [other for span, other in found.parts.items() if span[0] < tokens[1] and tokens[0] < span[1]]
        if found.totals - {TOKENS} or any(other != variant for other in meeting):
            return "conflict"
        found.parts[tokens] = variant
        found.totals.add(TOKENS)
        self._keep(key, attempt, found)
        self._drop_last_turn(key)
        return "ok"

    def seal(self, key: str, attempt: int, total: int) -> str:
        attempts = self.rollouts.get(key, {})
        found = attempts.get(attempt, Attempt())
        if max(attempts, default=0) > attempt:
            return "superseded"
        if found.aborted:
            return "aborted"
        if found.totals - {total}:
            return "conflict"
        found.totals.add(total)
        self._keep(key, attempt, found)
        self._drop_last_turn(key)
        return "ok"

    def abort(self, key: str, attempt: int) -> str:
        attempts = self.rollouts.get(key, {})
        found = attempts.get(attempt, Attempt())
        if max(attempts, default=0) > attempt:
            return "superseded"
        if found.state == "complete":
            return "conflict"
        found.aborted = True
        self._keep(key, attempt, found)
        return "ok"

    def delete(self, key: str) -> int:
        return int(self.rollouts.pop(key, None) is not None)

    def delete_prefix(self, prefix: str) -> int:
        gone = [key for key in self.rollouts if key == prefix or key.startswith(f"{prefix}:")]
        return sum(self.delete(key) for key in gone)

    def clear(self, everything: bool) -> int:
        return sum(self.delete(key) for key in list(self.rollouts))

    def _keep(self, key: str, attempt: int, found: Attempt) -> None:
        attempts = self.rollouts.setdefault(key, {})
        attempts[attempt] = found
        if found.state == "complete":
            for older in [number for number in attempts if number < attempt]:
                del attempts[older]

    def _drop_last_turn(self, key: str) -> None:
        trajectory, turn, segment = key.rsplit(":", 2)
        if not self._only_last_turn:
            return
        before, after = (f"{trajectory}:{int(turn) + step}:{segment}" for step in (-1, 1))
        if self._is_followed(key, by=after):
            self.delete(key)
        elif self._is_followed(before, by=key):
            self.delete(before)

    def _is_followed(self, key: str, *, by: str) -> bool:
        """Whether the next turn is complete, and not one of a run before this turn's."""
        attempts, later = self.rollouts.get(key, {}), self.rollouts.get(by, {})
        return max(later, default=-1) >= max(attempts, default=0) and later[max(later)].state == "complete"

    def seen(self) -> dict[str, Any]:
        """Returns what ``list`` and ``get`` must show: state, attempts, and the content of what is complete."""
        found: dict[str, Any] = {}
        for key, attempts in self.rollouts.items():
            highest = max(attempts)
            latest = attempts[highest]
            content = b""
            if latest.state == "complete":
                grid = np.empty((LAYERS, TOKENS, TOP_K), np.uint8)
                for (start, stop), variant in latest.parts.items():
                    grid[:, start:stop] = routing(key, highest, variant)[:, start:stop]
                content = grid.tobytes()
            found[key] = latest.state, tuple(sorted(attempts)), tuple(sorted(latest.parts)), content
        return found


def sequence(chance: random.Random, name: str) -> list[Step]:
    """Returns random operations over eight trajectories, few turns and attempts, so that they meet often."""
    steps: list[Step] = []
    for _ in range(chance.randrange(4, 36)):
        key = f"{name}:{chance.randrange(TRAJECTORIES)}:{chance.randrange(TURNS)}:0"
        attempt = chance.choice([0, 0, *range(ATTEMPTS)])
        verb = chance.choices(
            ["put", "seal", "abort", "delete", "delete_prefix", "clear"], [20, 2, 2, 4, 1, 0.5]
        )[0]  # fmt: skip
        if verb == "put":
            tokens = chance.choice([WHOLE, WHOLE, WHOLE, FIRST, SECOND])
            steps.append(("put", key, attempt, tokens, int(chance.random() < 0.1)))
        elif verb == "seal":
            steps.append(("seal", key, attempt, chance.choice([TOKENS, TOKENS, 9])))
        elif verb == "abort":
            steps.append(("abort", key, attempt))
        elif verb == "delete":
            steps.append(("delete", key))
        elif verb == "delete_prefix":
            steps.append(("delete_prefix", key.rsplit(":", chance.choice([0, 1, 2]))[0]))
        else:
            steps.append(("clear", chance.random() < 0.5))
    return steps


def hand_over(writer: RoutingWriter, step: Step) -> Ticket:
    """Does one step."""
    match step:
        case ("put", key, attempt, tokens, variant):
            array = routing(key, attempt, variant)[:, slice(*tokens)]
            return writer.submit(key, array, tokens=tokens, total_tokens=TOKENS, attempt=attempt)
        case ("seal", key, attempt, total):
            return writer.seal(key, total, attempt=attempt)
        case ("abort", key, attempt):
            return writer.abort(key, "changed my mind", attempt=attempt)
        case ("delete", key):
            return writer.delete(key)
        case ("delete_prefix", prefix):
            return writer.delete_prefix(prefix)
        case ("clear", everything):
            return writer.clear(everything=everything)
    raise AssertionError(step)
