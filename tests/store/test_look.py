"""What a backend gives along with a listing."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.errors import BackendError, CorruptDataError

from .memory import BlockingMemory, Shelf, open_memory

SCHEMA = RoutingSchema(64, 2, range(3))
ARRAY = np.arange(24, dtype=np.uint8).reshape(3, 4, 2)


class Generous(BlockingMemory):
    """Gives a sole object along, and counts what it is asked."""

    asked: ClassVar[list[str]] = []

    def _list(self, prefix: str) -> list[str]:
        self.asked.append("list")
        return super()._list(prefix)

    def _get(self, name: str, ranges: Any = None) -> Blob:
        self.asked.append("get")
        return super()._get(name, ranges)

    def _look(self, prefix: str, view: bool) -> tuple[list[str], Blob | None]:
        self.asked.append("look")
        names = self.shelf.list(prefix)
        return names, self.shelf.get(names[0], None) if len(names) == 1 else None


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    with open_memory(shelf, schema=SCHEMA) as store:
        store.put("one", ARRAY)
        store.put("two", ARRAY[:, :2], tokens=(0, 2), total_tokens=4)
        store.put("two", ARRAY[:, 2:], tokens=(2, 4), total_tokens=4)
    return shelf


def test_a_sole_object_costs_one_question(shelf: Shelf) -> None:
    Generous.asked.clear()
    with open_memory(shelf, form=Generous, schema=SCHEMA) as store:
        np.testing.assert_array_equal(store.get("one").routing, ARRAY)
        assert Generous.asked == ["look"]
        np.testing.assert_array_equal(store.get("one", layers=(1, 2)).routing, ARRAY[1:2])
        np.testing.assert_array_equal(store.get("two").routing, ARRAY)


def test_what_comes_along_is_checked_as_ever(shelf: Shelf) -> None:
    name = next(name for name in shelf if "/one/" in name)
    header, payload = shelf[name]
    shelf[name] = header, payload[:-1] + b"\xff"
    with open_memory(shelf, form=Generous, schema=SCHEMA) as store, pytest.raises(CorruptDataError):
        store.get("one")


@pytest.mark.parametrize("answer", [None, ["a"], ([], None, 1), (None, None), (["elsewhere"], None), ([], "blob")])
def test_another_answer_is_the_backends_fault(shelf: Shelf, answer: Any) -> None:
    class Odd(BlockingMemory):
        def _look(self, prefix: str, view: bool) -> Any:
            return answer

    with (
        open_memory(shelf, form=Odd, schema=SCHEMA) as store,
        pytest.raises(BackendError, match="breaks the contract"),
    ):
        store.get("one")
