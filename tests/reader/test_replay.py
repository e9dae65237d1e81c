"""What both frameworks' ``replay_topk`` refuses, and that the reference they are held against is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins.errors import InvalidRecordError
from fastdeploy_routing_plugins.reader.replay import check_arguments, check_range

from .replay_reference import CASES, Case, error

GOOD: dict[str, Any] = {
    "scores": np.zeros((5, 8), np.float32),
    "ids": np.zeros((5, 2), np.int64),
    "mask": np.ones(5, np.bool_),
    "live_ids": np.zeros((5, 2), np.int32),
    "bias": np.zeros(8, np.float32),
    "norm": "sum",
    "scoring": "sigmoid",
    "scale": 2.5,
    "tensor": np.ndarray,
    "integers": ("int64", "int32", "uint8"),
}


def check(**other: Any) -> None:
    check_arguments(**{**GOOD, **other})


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"mask": None, "live_ids": None, "bias": None},
        {"scale": 2, "norm": "none", "scoring": "none"},
        {"ids": np.zeros((5, 2), np.uint8)},
        {"scores": np.zeros((5, 2), np.float64), "bias": np.zeros(2, np.float64)},
        {"scores": np.zeros((0, 8), np.float32), "ids": np.zeros((0, 2), np.int64), "mask": None, "live_ids": None},
        {"scores": np.zeros(8, np.float32), "ids": np.zeros(2, np.int64), "mask": None, "live_ids": None},
    ],
    ids=["all", "none", "integer scale", "uint8", "k = E", "no token", "one token"],
)
def test_what_fits_is_let_through(other: Any) -> None:
    assert check(**other) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"norm": "l2"}, "norm must be one of none, sum, softmax"),
        ({"norm": None}, "norm must be one of"),
        ({"scoring": "relu"}, "scoring must be one of"),
        ({"scale": "2"}, "scale must be a finite number"),
        ({"scale": True}, "scale must be a finite number"),
        ({"scale": float("nan")}, "scale must be a finite number"),
        ({"scale": float("-inf")}, "scale must be a finite number"),
        ({"scores": [[0.5]]}, "scores must be a numpy tensor, got list"),
        ({"scores": None}, "scores must be a numpy tensor, got NoneType"),
        ({"ids": None}, "ids must be a numpy tensor"),
        ({"mask": [True] * 5}, "mask must be a numpy tensor"),
        (
            {"scores": np.zeros((5, 8), np.int64)},
            "scores must be float16 or bfloat16 or float32 or float64, got int64",
        ),
        ({"ids": np.zeros((5, 2), np.float32)}, "ids must be int64 or int32 or uint8, got float32"),
        ({"ids": np.zeros((5, 2), np.uint16)}, "Paddle's uint16 is bfloat16"),
        ({"ids": np.zeros((5, 2), np.bool_)}, "ids must be int64"),
        ({"ids": np.zeros((4, 2), np.int64)}, r"ids \[4, 2\] do not fit scores \[5, 8\]"),
        ({"ids": np.zeros((2, 5), np.int64)}, "do not fit"),
        ({"ids": np.zeros((5, 9), np.int64)}, "do not fit"),
        ({"ids": np.zeros((5, 0), np.int64)}, "do not fit"),
        ({"ids": np.zeros(5, np.int64)}, "do not fit"),
        ({"ids": np.zeros((1, 5, 2), np.int64)}, "do not fit"),
        ({"scores": np.zeros((), np.float32)}, "do not fit"),
        ({"ids": np.zeros((), np.int64)}, "do not fit"),
        ({"mask": np.ones(5, np.int64)}, "mask must be bool, got int64"),
        ({"mask": np.ones((5, 2), np.bool_)}, r"mask has shape \[5, 2\], expected \[5\]"),
        ({"live_ids": np.zeros((5, 3), np.int64)}, r"live_ids has shape \[5, 3\], expected \[5, 2\]"),
        ({"live_ids": np.zeros((5, 2), np.float32)}, "live_ids must be int64"),
        ({"bias": np.zeros(7, np.float32)}, r"bias has shape \[7\], expected \[8\]"),
        ({"bias": np.zeros(8, np.int64)}, "bias must be float16"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides(other: Any, text: str) -> None:
    with pytest.raises(InvalidRecordError, match=text):
        check(**other)


@pytest.mark.parametrize(("low", "high", "wrong"), [(-1, 3, -1), (0, 8, 8), (0, 255, 255)])
def test_an_id_that_is_no_expert_is_named(low: int, high: int, wrong: int) -> None:
    with pytest.raises(InvalidRecordError, match=f"id {wrong} is not in 0..7"):
        check_range(low, high, 8)


def test_the_first_and_the_last_expert_are_let_through() -> None:
    assert check_range(0, 7, 8) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("case", CASES[:18])
def test_the_reference_gradient_is_that_of_finite_differences(case: Case) -> None:
    step = 1e-5
    numeric = np.empty(case.scores.shape)
    for expert in range(case.scores.shape[-1]):
        moved = np.zeros(case.scores.shape)
        moved[..., expert] = step
        up, down = (case.weights(case.scores.astype(np.float64) + sign * moved) for sign in (1, -1))
        numeric[..., expert] = (case.upstream * (up - down)).sum(axis=-1) / (2 * step)
    assert error(case.gradient(), numeric) < 1e-8


def test_the_recordings_differ_from_what_the_live_router_would_choose() -> None:
    recorded = np.sort(CASES[0].values[0].ids, axis=-1)
    live = np.sort(np.argsort(-CASES[0].values[0].scores, axis=-1)[:, :8], axis=-1)
    assert (recorded != live).any(axis=-1).mean() > 0.5
