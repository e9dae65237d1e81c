"""Memory that somebody gets back when nobody looks at it any more."""

from __future__ import annotations

import gc
import mmap
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins.arena.lent import lend

MEMORY = mmap.mmap(-1, 4096)
ADDRESS: int = np.frombuffer(MEMORY, np.uint8).ctypes.data


def lent(back: list[Any], **options: Any) -> memoryview:
    return lend(ADDRESS, 100, back.append, "token", **options)


def test_it_comes_back_once_when_the_view_is_gone() -> None:
    back: list[Any] = []
    view = lent(back)
    before = list(back)
    del view
    assert (before, back) == ([], ["token"])


def test_it_does_not_come_back_while_something_made_of_the_view_is_there() -> None:
    back: list[Any] = []
    made = np.frombuffer(lent(back)[10:20], np.uint8)[2:]
    before = list(back)
    del made
    assert (before, back) == ([], ["token"])


def test_it_does_not_come_back_before_a_cycle_that_looks_at_it_is_finalised() -> None:
    back: list[Any] = []
    seen: list[Any] = []

    class Late:
        def __init__(self) -> None:
            self.me = self
            self.view = lent(back)

        def __del__(self) -> None:
            seen.append((list(back), len(self.view)))

    Late()
    gc.collect()
    assert (seen, back) == ([([], 100)], ["token"])


def test_it_does_not_come_back_while_a_cycle_was_brought_back_to_life() -> None:
    back: list[Any] = []
    kept: list[Any] = []

    class Phoenix:
        def __init__(self) -> None:
            self.me = self
            self.view = lent(back)

        def __del__(self) -> None:
            kept.append(self)

    Phoenix()
    gc.collect()
    before = list(back)
    kept.clear()
    gc.collect()
    assert (before, back) == ([], ["token"])


def test_what_has_to_live_as_long_does() -> None:
    class Kept:
        pass

    dead: list[bool] = []
    Kept.__del__ = lambda self: dead.append(True)  # type: ignore[attr-defined]
    view = lent([], keep=Kept())
    before = list(dead)
    del view
    assert (before, dead) == ([], [True])


def test_it_can_be_written_to_only_if_that_was_said() -> None:
    writable = lent([], writable=True)
    writable[0] = 7
    with pytest.raises(TypeError):
        lent([])[0] = 1
    assert MEMORY[0] == 7
