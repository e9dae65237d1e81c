"""What names alone say: coverage, totals, conflicts; checked against a grid filled cell by cell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins import RoutingKey
from fastdeploy_routing_plugins.errors import InvalidKeyError, NotFoundError
from fastdeploy_routing_plugins.names import AbortName, Part, PartName, SealName
from fastdeploy_routing_plugins.store.assemble import Attempts, uncovered

KEY = RoutingKey("a")
PREFIX = KEY.prefix("default")


def names(*objects: object, attempt: int = 0) -> list[str]:
    return [f"{PREFIX}{attempt:019d}/{what}" for what in objects]


def whole(tokens: int = 10, layers: int = 4) -> PartName:
    return PartName(Part((0, tokens), (0, layers)), layers, tokens, 8)


def part(t0: int, t1: int, l0: int = 0, l1: int = 4, total: int | None = None) -> PartName:
    return PartName(Part((t0, t1), (l0, l1)), 4, total, 8)


rects = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 5), st.integers(0, 5)).map(
        lambda v: Part((min(v[0], v[1]), max(v[0], v[1])), (min(v[2], v[3]), max(v[2], v[3]) + 1))
    ),
    max_size=8,
)


@given(rects)
def test_uncovered_names_exactly_the_cells_that_no_part_fills(parts: list[Part]) -> None:
    want = Part((2, 11), (1, 6))
    grid = np.zeros((7, 13), bool)
    for p in parts:
        grid[slice(*p.layers), slice(*p.tokens)] = True
    missing = np.zeros_like(grid)
    for p in uncovered([PartName(p, 7, None, 1) for p in parts], want):
        assert not missing[slice(*p.layers), slice(*p.tokens)].any()
        missing[slice(*p.layers), slice(*p.tokens)] = True
    inside = np.zeros_like(grid)
    inside[slice(*want.layers), slice(*want.tokens)] = True
    np.testing.assert_array_equal(missing, inside & ~grid)


@pytest.mark.parametrize(
    ("objects", "state"),
    [
        ([whole()], "complete"),
        ([whole(0)], "complete"),
        ([part(0, 5)], "pending"),
        ([part(0, 5), SealName(5)], "complete"),
        ([part(0, 5), SealName(6)], "incomplete"),
        ([part(0, 5, total=9)], "incomplete"),
        ([part(0, 5, total=9), part(5, 9)], "complete"),
        ([part(0, 9, 0, 2, total=9)], "incomplete"),
        ([part(0, 9, 0, 2, total=9), part(0, 9, 2, 4)], "complete"),
        ([SealName(6)], "pending"),
        ([SealName(0)], "pending"),
        ([part(5, 5), SealName(5)], "incomplete"),
        ([whole(), AbortName()], "aborted"),
    ],
)
def test_state_follows_from_parts_and_totals(objects: list[object], state: str) -> None:
    assert Attempts.parse(PREFIX, names(*objects)).status(KEY).state == state


def test_attempts_are_never_mixed() -> None:
    found = Attempts.parse(PREFIX, [*names(part(0, 5, total=10)), *names(part(5, 10, total=10), attempt=3)])
    assert found.status(KEY).missing == (Part((0, 5), (0, 4)),)


def test_an_attempt_below_the_demanded_one_does_not_count() -> None:
    with pytest.raises(NotFoundError, match="at least 4"):
        Attempts.parse(PREFIX, names(whole(), attempt=3)).status(KEY, min_attempt=4)


@pytest.mark.parametrize(
    "objects",
    [
        [part(0, 5, total=9), part(5, 9, total=10)],
        [SealName(5), SealName(6)],
        [part(0, 9), SealName(5)],
        [part(0, 9, total=9), SealName(12)],
        [whole(10, 4), PartName(Part((0, 10), (0, 5)), 5, 10, 8, "00000001")],
        [part(0, 5, total=10), PartName(Part((5, 10), (0, 4)), 4, 10, 8, "00000001")],
    ],
)
def test_totals_that_disagree_are_a_conflict(objects: list[object]) -> None:
    status = Attempts.parse(PREFIX, names(*objects)).status(KEY)
    assert (status.state, bool(status.problem)) == ("conflict", True)


@pytest.mark.parametrize("text", ["q-1", "p-", "s-1", "", "x/y", "p-0000000005-0000000001-__________-0-0-0-0"])
def test_objects_of_another_kind_are_left_out(text: str) -> None:
    found = Attempts.parse(PREFIX, [*names(whole()), f"{PREFIX}{0:019d}/{text}"])
    assert found.status(KEY).parts == (whole(),)


@pytest.mark.parametrize(
    ("tokens", "layers"),
    [((3, 2), (0, 1)), ((0, 1), (1, 1)), ((-1, 1), (0, 1)), ((0, 10**10), (0, 1)), ((0, 1), (0, 10**5))],
)
def test_a_part_that_is_no_rectangle_is_refused(tokens: tuple[int, int], layers: tuple[int, int]) -> None:
    with pytest.raises(InvalidKeyError):
        Part(tokens, layers)
