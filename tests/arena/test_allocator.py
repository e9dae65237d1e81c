"""Free pages against a map with one flag per page."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.arena.allocator import Extents

from ..interrupts import interrupted

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 30)), max_size=120)


class Model:
    """One flag per page; what is taken, by its first page."""

    def __init__(self, first: int, pages: int) -> None:
        self.first = first
        self.free = [True] * pages
        self.taken: dict[int, int] = {}

    def runs(self) -> list[tuple[int, int]]:
        """Returns every free run as ``(first page, pages)``."""
        found: list[tuple[int, int]] = []
        for index, free in enumerate(self.free):
            if free and index and self.free[index - 1]:
                found[-1] = found[-1][0], found[-1][1] + 1
            elif free:
                found.append((self.first + index, 1))
        return found

    def expected(self, pages: int) -> int | None:
        """Returns the lowest place for so many pages."""
        return next((start for start, size in self.runs() if size >= pages), None)

    def set(self, start: int, pages: int, free: bool) -> None:
        """Takes or gives back; nothing may change that is so already."""
        at = start - self.first
        assert at >= 0
        assert self.free[at : at + pages] == [not free] * pages
        self.free[at : at + pages] = [free] * pages


def run(extents: Extents, model: Model, steps: list[tuple[bool, int]]) -> None:
    """Does the same to both, and compares after every step."""
    for give, number in steps:
        if give and model.taken:
            start = sorted(model.taken)[number % len(model.taken)]
            pages = model.taken.pop(start)
            extents.give(start, pages)
            model.set(start, pages, True)
        else:
            pages = 1 + number % (len(model.free) // 2 + 1)
            expected = model.expected(pages)
            found = extents.take(pages)
            assert found == expected
            if found is not None:
                model.set(found, pages, False)
                model.taken[found] = pages
        assert extents.free == sum(model.free)
        assert extents.largest == max((size for _, size in model.runs()), default=0)


@given(st.integers(0, 1000), st.integers(1, 60), STEPS)
def test_takes_the_lowest_place_that_is_free_and_counts_right(
    first: int, pages: int, steps: list[tuple[bool, int]]
) -> None:
    run(Extents(first, pages), Model(first, pages), steps)


@given(st.integers(1, 60), STEPS, st.randoms(use_true_random=False))
def test_everything_given_back_is_one_piece_again(pages: int, steps: list[tuple[bool, int]], order: object) -> None:
    extents, model = Extents(7, pages), Model(7, pages)
    run(extents, model, steps)
    left = list(model.taken.items())
    order.shuffle(left)  # type: ignore[attr-defined]
    for start, size in left:
        extents.give(start, size)
    assert extents.take(pages) == 7


def test_no_pages_at_all_are_none_to_take() -> None:
    assert Extents(5, 0).take(1) is None


def test_an_interrupt_anywhere_leaves_runs_that_fit_each_other() -> None:
    def churn() -> None:
        for _ in range(2000):
            if held and chance.random() < 0.5:
                extents.give(*held.pop(chance.randrange(len(held))))
            else:
                pages = chance.randint(1, 30)
                page = extents.take(pages)
                if page is not None:
                    held.append((page, pages))

    extents, chance, held = Extents(1, 4000), random.Random(3), []
    assert interrupted(churn, after=0.0002)
    used = sorted([*held, *extents._runs])  # pages in the hand of an interrupt are lost, none is there twice
    assert all(start + pages <= after for (start, pages), (after, _) in itertools.pairwise(used))
    assert extents.free + sum(pages for _, pages in held) <= extents.pages
