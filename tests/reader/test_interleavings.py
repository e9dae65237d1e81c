"""Random interleavings of parts, turns, aborts and resumes against a model that knows every cell, on every store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import Freshness, RoutingReader, RoutingSchema, SyncStore, Trajectory, WeightSpan
from fastdeploy_routing_plugins import errors as e
from fastdeploy_routing_plugins.reader.turns import covered

from .places import NAMES, RDMA, place

SEQUENCES = int(os.environ.get("FD_ROUTING_TEST_SEQUENCES", "500"))  # 10,000 is the long form
BATCHES = 5  # tests over which the sequences of a store are spread
LAYERS, TOKENS = 3, 12
SCHEMA = RoutingSchema(200, 2, range(1, LAYERS + 1))
IDS = ("math:0", "math:1")
KINDS: dict[type[Exception], str] = {
    e.AbortedError: "aborted",
    e.ConflictError: "conflict",
    e.PendingError: "pending",
    e.IncompleteError: "incomplete",
    e.NotFoundError: "absent",
    e.DeletedError: "absent",
    e.SupersededError: "superseded",
    e.StaleError: "stale",
    e.InvalidKeyError: "invalid",
    e.InvalidRecordError: "invalid",
}

Rect = tuple[tuple[int, int], tuple[int, int]]  # tokens, layers


def cells(version: int) -> np.ndarray:
    """Routing of the whole grid; two versions differ in every cell."""
    grid = np.arange(LAYERS * TOKENS).reshape(LAYERS, TOKENS, 1)
    return ((grid + 40 * version + np.array([0, 1])) % 200).astype(np.uint8)


def meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass
class Attempt:
    """What one attempt holds: parts by place and stated total, with their content and weights."""

    parts: dict[tuple[Rect, int | None], tuple[int, int | None]] = field(default_factory=dict)
    totals: set[int] = field(default_factory=set)
    aborted: bool = False

    @property
    def total(self) -> int | None:
        return max(self.totals, default=None)

    def reach(self) -> int:
        return max([0, *[tokens[1] for (tokens, _), _ in self.parts]])

    def put(self, rect: Rect, total: int | None, content: int, weights: int | None) -> str:
        if self.aborted:
            return "aborted"
        tokens, layers = rect
        stated = self.totals | ({total} if total is not None else set())
        if len(stated) > 1 or (stated and max(tokens[1], self.reach()) > max(stated)):
            return "conflict"
        if tokens[0] == tokens[1]:
            content = 0  # nothing is the same in every version
        for (other, _), (theirs, _) in self.parts.items():
            if theirs != content and meet(tokens, other[0]) and meet(layers, other[1]):
                return "conflict"
        old = self.parts.get((rect, total), (content, weights))
        if old[0] != content or weights not in (None, old[1]):
            return "conflict"
        self.parts[rect, total] = old  # what is there stays, with the weights that were stated first
        self.totals = stated
        return "ok"

    def seal(self, total: int) -> str:
        if self.aborted:
            return "aborted"
        if self.totals - {total} or self.reach() > total:
            return "conflict"
        self.totals = {total}
        return "ok"

    def grid(self, stop: int) -> np.ndarray:
        """``[layers, stop]``: which content is where, -1 for none."""
        found = np.full((LAYERS, stop), -1)
        for ((tokens, layers), _), (content, _) in self.parts.items():
            found[slice(*layers), slice(tokens[0], min(tokens[1], stop))] = content
        return found

    def covered(self) -> int:
        there = (self.grid(self.reach()) >= 0).all(axis=0)
        return int(np.argmin(there)) if not there.all() else len(there)

    def ends(self) -> tuple[int, ...]:
        stops = {tokens[1] for (tokens, _), _ in self.parts}
        return tuple(sorted(stop for stop in stops if 0 < stop <= self.covered()))

    def complete(self) -> bool:
        return self.total is not None and bool(self.parts) and bool((self.grid(self.total) >= 0).all())

    def read(self, tokens: tuple[int, int] | None) -> Any:
        """What a read of a range, or of all, says."""
        if self.aborted:
            return "aborted"
        if not self.parts or (tokens is None and self.total is None):
            return "pending"
        start, stop = (0, self.total or 0) if tokens is None else tokens
        if self.total is not None and stop > self.total:
            return "invalid"
        grid = self.grid(max(stop, self.reach()))[:, start:stop]
        if (grid < 0).any():
            return "pending" if self.total is None else "incomplete"
        return np.stack([cells(version) for version in range(3)])[
            grid, np.arange(LAYERS)[:, None], np.arange(start, stop)
        ].tolist()

    def weights(self, token: int) -> set[int | None]:
        """Which weights are stated for a token; empty if none are."""
        return {
            weights
            for ((tokens, _), _), (_, weights) in self.parts.items()
            if tokens[0] <= token < tokens[1] and weights is not None
        }


class Model:
    """Trajectories by id, attempts by number."""

    def __init__(self) -> None:
        self.held: dict[str, dict[int, Attempt]] = {}

    def last(self, key: str) -> tuple[int, Attempt] | None:
        attempts = self.held.get(key)
        return (max(attempts), attempts[max(attempts)]) if attempts else None

    def change(self, key: str, number: int, how: Any) -> str:
        attempts = self.held.setdefault(key, {})
        if attempts and max(attempts) > number:
            return "superseded"
        fresh = number not in attempts
        result: str = how(attempts.setdefault(number, Attempt()))
        if result != "ok" and fresh:
            del attempts[number]
        elif result == "ok" and attempts[number].complete():
            for older in [other for other in attempts if other < number]:
                del attempts[older]
        if not attempts:
            del self.held[key]
        return result

    def abort(self, key: str, number: int) -> str:
        def how(attempt: Attempt) -> str:
            if attempt.complete() and not attempt.aborted:
                return "conflict"
            attempt.aborted = True
            return "ok"

        return self.change(key, number, how)


# --- the same on both sides -----------------------------------------------------------------------------------------


class Sides:
    """A store, the trajectories that write to it, and the model of both."""

    def __init__(self, store: SyncStore, reader: RoutingReader) -> None:
        self.store, self.reader, self.model = store, reader, Model()
        self.trajectories: dict[str, Trajectory] = {}

    def do(self, step: tuple[Any, ...]) -> tuple[Any, Any]:
        """Takes a step on both sides; returns what each said."""
        verb, key, *rest = step
        return getattr(self, verb)(key, *rest)  # type: ignore[no-any-return]

    def append(self, key: str, length: int, back: int, content: int, weights: int | None) -> tuple[Any, Any]:
        mine = self.trajectories.setdefault(key, Trajectory(self.store, key))
        begin = max(0, mine.tokens - back)
        end = min(begin + length, TOKENS)
        array = cells(content)[:, begin:end]
        number, tokens = mine.attempt, mine.tokens
        versions: Any = () if weights is None else weights
        real = outcome(lambda: mine.append(array, tokens=(begin, end), weight_versions=versions))
        stated = None if begin == end else weights
        said = self.model.change(key, number, lambda a: a.put(((begin, end), (0, LAYERS)), None, content, stated))
        expected = max(tokens, end) if said == "ok" else tokens
        return (real, mine.tokens), (said, expected)

    def put(
        self, key: str, number: int, rect: Rect, total: int | None, content: int, weights: int | None
    ) -> tuple[Any, Any]:
        tokens, layers = rect
        array = cells(content)[slice(*layers), slice(*tokens)]
        versions = [] if weights is None else [WeightSpan(*tokens, weights)]
        real = outcome(
            lambda: self.store.put(
                key, array, tokens=tokens, layers=layers, total_tokens=total, attempt=number, weight_versions=versions
            )
        )
        return real, self.model.change(key, number, lambda a: a.put(rect, total, content, weights))

    def seal(self, key: str) -> tuple[Any, Any]:
        mine = self.trajectories.setdefault(key, Trajectory(self.store, key))
        total = mine.tokens
        return outcome(mine.seal), self.model.change(key, mine.attempt, lambda a: a.seal(total))

    def abort(self, key: str) -> tuple[Any, Any]:
        mine = self.trajectories.setdefault(key, Trajectory(self.store, key))
        return outcome(lambda: mine.abort("why")), self.model.abort(key, mine.attempt)

    def resume(self, key: str, higher: int | None, keep: int | None) -> tuple[Any, Any]:
        """Goes on with the last attempt, or carries some of it over to a higher one."""
        last = self.model.last(key)
        number = None if higher is None else (last[0] if last else 0) + higher
        keep = None if number is None else keep
        made: list[Trajectory] = []
        real = outcome(lambda: made.append(Trajectory.resume(self.store, key, attempt=number, keep=keep)))
        if made:
            self.trajectories[key] = made[0]
            return (real, made[0].attempt, made[0].tokens), self._resumed(key, last, number, keep)
        return real, self._resumed(key, last, number, keep)

    def _resumed(self, key: str, last: Any, number: int | None, keep: int | None) -> Any:
        if last is None:
            return "absent"
        before, attempt = last
        there = attempt.covered()
        if number is None:
            return "aborted" if attempt.aborted else ("ok", before, there)
        if number <= before:
            return "superseded"
        stop = there if keep is None else keep
        if stop > there:
            return "invalid"
        for ((tokens, layers), _), (content, weights) in list(attempt.parts.items()):
            cut = tokens[0], min(tokens[1], stop)
            if cut[0] < cut[1]:
                where = cut, layers
                self.model.change(key, number, lambda a, w=where, c=content, v=weights: a.put(w, None, c, v))
        return "ok", number, stop

    def delete(self, key: str) -> tuple[Any, Any]:
        self.trajectories.pop(key, None)
        return self.store.delete(key), int(self.model.held.pop(key, None) is not None)

    # --- looking --------------------------------------------------------------------------------------------------

    def look(self, chance: random.Random) -> list[str]:
        """Compares everything that a reader can see; returns where it differs."""
        return [*self._batch(), *[wrong for key in IDS for wrong in self._look(key, chance)]]

    def _batch(self) -> Iterator[str]:
        batch = self.reader.get_batch(IDS, on_missing="mask")
        for index, key in enumerate(IDS):
            last = self.model.last(key)
            expected = last[1].read(None) if last else "absent"
            real: Any = batch.routing[index][:, batch.mask[index]].tolist()
            if index in batch.missing:
                real = KINDS[type(batch.missing[index])]
            if real != expected:
                yield f"{key} in a batch: {real}, not {expected}"

    def _look(self, key: str, chance: random.Random) -> Iterator[str]:
        last = self.model.last(key)
        attempt = last[1] if last else None
        start = chance.randint(0, TOKENS - 1)
        tokens = start, chance.randint(start + 1, TOKENS)
        for asked in (None, tokens):
            real = outcome(lambda asked=asked: self.reader.get(key, tokens=asked))
            expected = attempt.read(asked) if attempt else "absent"
            if real != expected:
                yield f"{key}, tokens {asked}: {real}, not {expected}"
        if attempt is None:
            return
        status = self.store.status(key)
        if (covered(status), self.reader.turns(key)) != (attempt.covered(), attempt.ends()):
            yield f"{key}: turns {self.reader.turns(key)}, not {attempt.ends()}"
        for turn, end in enumerate(attempt.ends()):
            real = outcome(lambda turn=turn: self.reader.get_turn(key, turn))
            if real != attempt.read((0, end)):
                yield f"{key}, turn {turn}: {real}, not {attempt.read((0, end))}"
        fresh = Freshness(4, chance.randint(0, 3))
        stale = self.reader.stale([key], fresh).get(key, ())
        old = {token for span in stale for token in range(span.start, span.stop)}
        right = {
            token
            for token in range(attempt.covered())
            if not attempt.weights(token) or any(4 - (v or 0) > fresh.max_staleness for v in attempt.weights(token))
        }
        if old != right:
            yield f"{key}: tokens {sorted(old)} are stale, not {sorted(right)}"


def outcome(call: Any) -> Any:
    try:
        result = call()
    except e.RoutingError as err:
        return KINDS[type(err)]
    return result.routing.tolist() if hasattr(result, "routing") else "ok"


# --- sequences ------------------------------------------------------------------------------------------------------


def sequence(chance: random.Random) -> Iterator[tuple[Any, ...]]:
    """Yields steps: mostly turns, as engines append them; now and then what goes wrong."""
    for _ in range(chance.randint(1, 12)):
        key = chance.choice(IDS)
        weights = chance.choice([None, 1, 2, 3, 4])
        match chance.choices(
            ["append", "back", "put", "seal", "abort", "resume", "renew", "delete"], [9, 2, 4, 2, 2, 2, 4, 1]
        )[0]:
            case "append":
                yield "append", key, chance.randint(0, 4), 0, chance.choice([0, 0, 0, 1]), weights
            case "back":
                yield "append", key, chance.randint(0, 6), chance.randint(1, 4), chance.choice([0, 0, 1]), weights
            case "put":
                start, first = chance.randint(0, TOKENS - 1), chance.randint(0, LAYERS - 1)
                stop, last = chance.randint(start + 1, TOKENS), chance.randint(first + 1, LAYERS)
                total = chance.choice([None, None, None, TOKENS])
                rect = (start, stop), (first, last)
                yield "put", key, chance.choice([0, 0, 1, 2]), rect, total, chance.choice([0, 0, 0, 1]), weights
            case "seal":
                yield "seal", key
            case "abort":
                yield "abort", key
            case "resume":
                yield "resume", key, None, None
            case "renew":
                yield "resume", key, chance.choice([0, 1, 1, 1]), chance.choice([None, None, 0, 2, 5])
            case "delete":
                yield "delete", key


@pytest.fixture(scope="module", params=[*NAMES, *RDMA])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SyncStore, RoutingReader, int]]:
    """A store, its reader, and how many sequences it sees: a fifth if it is one of the tests' own."""
    folder: Path = tmp_path_factory.mktemp("interleavings")
    there = place(request.param, folder)
    with there.store(SCHEMA) as store, there.reader(schema=SCHEMA) as reader:
        yield store, reader, SEQUENCES if request.param in ("local", *RDMA) else SEQUENCES // 5


@pytest.mark.no_cover  # see conftest
@pytest.mark.parametrize("batch", range(BATCHES))
def test_any_interleaving_equals_the_model(opened: tuple[SyncStore, RoutingReader, int], batch: int) -> None:
    store, reader, count = opened
    for seed in range(batch, count, BATCHES):
        store.clear(everything=True)
        chance = random.Random(seed)
        sides = Sides(store, reader)
        done: list[Any] = []
        for step in sequence(chance):
            done.append(step)
            real, expected = sides.do(step)
            wrong = [] if real == expected else [f"said {real}, not {expected}"]
            wrong += sides.look(chance)
            assert not wrong, "\n".join([f"sequence {seed}", *map(str, done), *wrong])
