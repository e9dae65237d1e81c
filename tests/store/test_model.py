"""Random sequences of puts, seals, aborts, deletes and clears against a model that knows every cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingSchema, SyncStore, open_store
from fastdeploy_routing_plugins import errors as e

from .memory import AsyncMemory, BlockingMemory, Shelf, open_memory

LAYERS, TOKENS = 3, 6
SCHEMA = RoutingSchema(200, 2, range(LAYERS))
IDS = ("a", "a:1", "a:10")


def version(number: int) -> np.ndarray:
    """Routing of the whole grid; two versions differ in every cell."""
    cells = np.arange(LAYERS * TOKENS).reshape(LAYERS, TOKENS, 1)
    return ((cells + 20 * number + np.array([0, 1])) % 200).astype(np.uint8)


@dataclass
class Rollout:
    """The model of one attempt."""

    parts: dict[tuple[Any, Any, int | None], int] = field(default_factory=dict)  # (layers, tokens, total) -> version
    totals: set[int] = field(default_factory=set)
    aborted: bool = False

    def put(self, layers: Any, tokens: Any, total: int | None, number: int) -> str:
        if self.aborted:
            return "aborted"
        if tokens[0] == tokens[1]:
            number = 0  # nothing is the same in every version
        stated = self.totals | ({total} if total is not None else set())
        reach = max([tokens[1], *[t[1] for _, t, _ in self.parts]])
        if len(stated) > 1 or (stated and reach > max(stated)):
            return "conflict"
        if self.parts.get((layers, tokens, total), number) != number:
            return "conflict"
        for (other_layers, other_tokens, _), other in self.parts.items():
            if other != number and _meet(layers, other_layers) and _meet(tokens, other_tokens):
                return "conflict"
        self.parts[layers, tokens, total] = number
        self.totals = stated
        return "ok"

    def seal(self, total: int) -> str:
        if self.aborted:
            return "aborted"
        reach = max([0, *[t[1] for _, t, _ in self.parts]])
        if self.totals - {total} or reach > total:
            return "conflict"
        self.totals = {total}
        return "ok"

    def read(self) -> Any:
        if self.aborted:
            return "aborted"
        if not self.totals or not self.parts:
            return "pending"
        total = max(self.totals)
        grid = np.full((LAYERS, total, 2), 255, np.uint8)
        conflict = False
        for (layers, tokens, _), number in self.parts.items():
            where = slice(*layers), slice(*tokens)
            new, old = version(number)[where], grid[where]
            conflict |= bool(((old != 255) & (old != new)).any())
            grid[where] = new
        if (grid == 255).any():
            return "incomplete"
        return "conflict" if conflict else grid


def _meet(one: Any, other: Any) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


KIND = {
    e.AbortedError: "aborted",
    e.ConflictError: "conflict",
    e.PendingError: "pending",
    e.IncompleteError: "incomplete",
    e.NotFoundError: "absent",
    e.SupersededError: "superseded",
}


def outcome(call: Any) -> Any:
    try:
        result = call()
    except e.StoreError as err:
        return KIND[type(err)]
    return result.routing if hasattr(result, "routing") else "ok"


class Model:
    def __init__(self) -> None:
        self.rollouts: dict[str, dict[int, Rollout]] = {}

    def change(self, key: str, attempt: int, how: Any) -> str:
        attempts = self.rollouts.setdefault(key, {})
        if attempts and max(attempts) > attempt:
            return "superseded"
        result: str = how(attempts.setdefault(attempt, Rollout()))
        if result != "ok" and attempts[attempt] == Rollout():
            del attempts[attempt]
        elif isinstance(attempts[attempt].read(), (np.ndarray, str)) and self._complete(attempts[attempt]):
            for older in [number for number in attempts if number < attempt]:
                del attempts[older]
        if not attempts:
            del self.rollouts[key]
        return result

    @staticmethod
    def _complete(rollout: Rollout) -> bool:
        read = rollout.read()
        return isinstance(read, np.ndarray) or read == "conflict"

    def read(self, key: str) -> Any:
        attempts = self.rollouts.get(key)
        return attempts[max(attempts)].read() if attempts else "absent"


def spans(limit: int, *, empty: bool) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, limit), st.integers(0, limit)).map(sorted).map(tuple).filter(
        lambda s: empty or s[0] < s[1]
    )  # fmt: skip


keys = st.sampled_from(IDS)
attempts = st.sampled_from([0, 0, 1, 2])
puts = st.tuples(
    st.just("put"), keys, attempts, spans(LAYERS, empty=False), spans(TOKENS, empty=True),
    st.sampled_from([None, TOKENS, TOKENS, 4]), st.sampled_from([0, 0, 0, 1]),
)  # fmt: skip
whole = st.tuples(
    st.just("put"), keys, attempts, st.just((0, LAYERS)), st.just((0, TOKENS)), st.just(TOKENS), st.integers(0, 1)
)
operations = st.one_of(
    puts, puts, puts, whole,
    st.tuples(st.just("seal"), keys, attempts, st.sampled_from([0, 4, TOKENS, TOKENS])),
    st.tuples(st.just("abort"), keys, attempts),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("delete prefix"), keys),
    st.tuples(st.just("clear")),
)  # fmt: skip


@pytest.fixture(scope="module", params=["local", "blocking memory", "async memory"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    if request.param == "local":
        folder: Path = tmp_path_factory.mktemp("model") / "store"
        opened = open_store({"routing_store_type": "local", "local_store_dir": str(folder)}, schema=SCHEMA)
    else:
        form = BlockingMemory if request.param == "blocking memory" else AsyncMemory
        opened = open_memory(Shelf(), form=form, schema=SCHEMA)
    with opened:
        yield opened


def apply(store: SyncStore, model: Model, operation: Any) -> tuple[Any, Any]:
    """Runs an operation on both; returns what each said."""
    match operation:
        case ("put", key, attempt, layers, tokens, total, number):
            if total is not None and tokens[1] > total:
                total = None
            array = version(number)[slice(*layers), slice(*tokens)]
            real = outcome(
                lambda: store.put(key, array, layers=layers, tokens=tokens, total_tokens=total, attempt=attempt)
            )
            return real, model.change(key, attempt, lambda r: r.put(layers, tokens, total, number))
        case ("seal", key, attempt, total):
            real = outcome(lambda: store.seal(key, total, attempt=attempt))
            return real, model.change(key, attempt, lambda r: r.seal(total))
        case ("abort", key, attempt):

            def abort(rollout: Rollout) -> str:
                if isinstance(rollout.read(), np.ndarray):
                    return "conflict"
                rollout.aborted = True
                return "ok"

            return outcome(lambda: store.abort(key, "why", attempt=attempt)), model.change(key, attempt, abort)
        case ("delete", key):
            return store.delete(key), int(model.rollouts.pop(key, None) is not None)
        case ("delete prefix", prefix):
            gone = [key for key in model.rollouts if key == prefix or key.startswith(prefix + ":")]
            for key in gone:
                del model.rollouts[key]
            return store.delete_prefix(prefix), len(gone)
    count = len(model.rollouts)
    model.rollouts.clear()
    return store.clear(), count


@given(st.lists(operations, max_size=14))
def test_any_sequence_of_operations_equals_the_model(store: SyncStore, sequence: list[Any]) -> None:
    store.clear(everything=True)
    model = Model()
    for operation in sequence:
        real, expected = apply(store, model, operation)
        assert real == expected, operation
        for key in IDS:
            real = outcome(lambda key=key: store.get(key))
            np.testing.assert_array_equal(real, model.read(key), err_msg=f"{key} after {operation}")
    assert [status.key.rollout_id for status in store.list()] == sorted(model.rollouts)
