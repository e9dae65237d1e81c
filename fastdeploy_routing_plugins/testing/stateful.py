"""Random operations against a dict: ``run_stateful``. Needs Hypothesis."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ..errors import AlreadyExistsError
from ..store.bridge import as_async
from .harness import assert_absent, assert_carries_header
from .samples import Sample, content, root, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from ..backend import Backend, BlockingBackend

_IDS = ("x", "x:1", "x:10", "a/b", "a_b", "..", "Run", "run", "\N{SNOWMAN}", "l" * 300)
_ENDS = ("", "b", "/")  # namespaces that are neighbours

What: TypeAlias = "int | tuple[str, str, int]"
WHAT: st.SearchStrategy[What] = st.one_of(
    st.integers(0, 3), st.tuples(st.sampled_from(_ENDS), st.sampled_from(_IDS), st.integers(0, 1))
)
"""An object: a number means one that was put lately, so that the same names come again; else namespace, id, token."""

PERCENT = st.sampled_from((0, 2, 5, 40, 98, 100))
"""How much of a name, after its namespace."""


def run_stateful(
    make_backend: Callable[[], Backend | BlockingBackend],
    namespace: str,
    *,
    settle: Callable[[], Coroutine[Any, Any, None]] | None = None,
    examples: int = 15,
    steps: int = 40,
) -> None:
    """Runs random operations on a store that can read and list, and on a dict, and compares.

    Each example works in a namespace of its own and with two handles. The examples are the same in every run.

    Args:
        make_backend: Makes a backend, not opened yet.
        namespace: The beginning of the namespaces to use.
        settle: What to wait for after each operation, for stores that need a moment.
        examples: How many sequences of operations.
        steps: How many operations in each.
    """
    numbers = itertools.count()
    loop = asyncio.new_event_loop()
    handles = [as_async(make_backend(), bare=True) for _ in range(2)]

    def run(operation: Coroutine[Any, Any, Any]) -> Any:
        try:
            return loop.run_until_complete(asyncio.wait_for(operation, 30.0))
        finally:
            if settle is not None:
                loop.run_until_complete(settle())

    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(handles, run, f"{namespace}-{next(numbers)}-")

    try:
        for handle in handles:
            run(handle._open())
        with _without_collections():
            run_state_machine_as_test(
                Machine,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
    finally:
        for handle in handles:
            run(handle._close())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keeps the garbage collector out of a block.

    Hypothesis parses sources. Up to Python 3.11.7 a collection in the middle of that which finalises a task of an
    earlier test, and so has a traceback printed, makes the parser fail (CPython issue 106905).
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class StoreMachine(RuleBasedStateMachine):
    """One sequence of operations, and what must be stored after each.

    Args:
        handles: Open backends over the same store.
        run: Runs a coroutine.
        namespace: The beginning of the namespaces to use.
    """

    def __init__(self, handles: list[Backend], run: Callable[[Coroutine[Any, Any, Any]], Any], namespace: str) -> None:
        super().__init__()
        self.handles = list(handles)
        self.run_operation = run
        self.namespace = namespace
        self.model: dict[str, Sample] = {}
        self.lately: list[tuple[str, str, int]] = [("", "x", 0)]

    def _place(self, what: What) -> tuple[str, str, int]:
        return self.lately[-1 - what % len(self.lately)] if isinstance(what, int) else what

    def _sample(self, what: What, version: int = 0) -> Sample:
        end, rollout_id, at = self._place(what)
        item = sample(f"{self.namespace}{end}", rollout_id, at=at, size=40)
        return Sample(item.name, b"KIT %d" % version, content(f"{item.name} {version}", 40), item.shape)

    @initialize(whats=st.lists(WHAT, min_size=4, max_size=8))
    def begin(self, whats: list[What]) -> None:
        """Puts some objects, so that there is something to get and to delete."""
        self._put_all(whats, 0, 0)

    @rule(whats=st.lists(WHAT, min_size=1, max_size=3), version=st.integers(0, 3), handle=st.integers(0, 1))
    def put(self, whats: list[What], version: int, handle: int) -> None:
        """Creates objects, or is told which ones are there."""
        self._put_all(whats, version, handle)

    def _put_all(self, whats: list[What], version: int, handle: int) -> None:
        for what in whats:
            item = self._sample(what, version)
            put = self.handles[handle]._put(item.name, item.header, item.buffer())
            if item.name in self.model:
                with pytest.raises(AlreadyExistsError) as caught:
                    self.run_operation(put)
                assert_carries_header(caught.value, self.model[item.name].header)
            else:
                self.run_operation(put)
                self.model[item.name] = item
                self.lately.append(self._place(what))

    @rule(whats=st.lists(WHAT, min_size=1, max_size=3), handle=st.integers(0, 1))
    def get(self, whats: list[What], handle: int) -> None:
        """Gets objects, or is told that there are none."""
        for name in [self._sample(what).name for what in whats]:
            if name in self.model:
                assert self.model[name].equals(self.run_operation(self.handles[handle]._get(name)))
            else:
                self.run_operation(assert_absent(self.handles[handle], name))

    @rule(whats=st.lists(WHAT, max_size=4), handle=st.integers(0, 1))
    def delete(self, whats: list[What], handle: int) -> None:
        """Deletes some objects, known and unknown."""
        names = sorted({self._sample(what).name for what in whats})
        assert self.run_operation(self.handles[handle]._delete(names)) == sum(name in self.model for name in names)
        for name in names:
            self.model.pop(name, None)

    def _prefix(self, what: What, percent: int) -> str:
        """Returns a beginning of a name: its namespace and that much of the rest."""
        name = self._sample(what).name
        start = len(root(f"{self.namespace}{self._place(what)[0]}"))
        return name[: start + (len(name) - start) * percent // 100]

    @rule(what=WHAT, percent=PERCENT, handle=st.integers(0, 1))
    def clear(self, what: What, percent: int, handle: int) -> None:
        """Deletes what begins with some beginning of a name."""
        prefix = self._prefix(what, percent)
        gone = [name for name in self.model if name.startswith(prefix)]
        assert self.run_operation(self.handles[handle]._clear(prefix)) == len(gone)
        for name in gone:
            del self.model[name]

    @rule(what=WHAT, percent=PERCENT, handle=st.integers(0, 1))
    def list_some(self, what: What, percent: int, handle: int) -> None:
        """Lists what begins with some beginning of a name."""
        prefix = self._prefix(what, percent)
        expected = sorted(name for name in self.model if name.startswith(prefix))
        assert self.run_operation(self.handles[handle]._list(prefix)) == expected

    @invariant()
    def all_is_listed(self) -> None:
        """Either handle lists exactly what the dict holds."""
        self.handles.reverse()
        assert self.run_operation(self.handles[0]._list(self.namespace)) == sorted(self.model)
