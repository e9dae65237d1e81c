"""What ``replay_topk`` has to compute, in NumPy and float64, and the inputs that both frameworks are tried with.

Gradients come from the complex step: for an analytic function, ``imag(f(x + ih)) / h`` is its derivative to all digits
of float64 (Squire and Trapp, SIAM Review 40, 1998), so no formula of a gradient has to be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

STEP = 1e-30


def _softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def _scored(scores: np.ndarray, scoring: str) -> np.ndarray:
    if scoring == "softmax":
        return _softmax(scores)
    return 1 / (1 + np.exp(-scores)) if scoring == "sigmoid" else scores


@dataclass(frozen=True)
class Case:
    """Arguments of ``replay_topk`` as NumPy arrays, and the gradient that arrives at the weights."""

    scores: np.ndarray
    ids: np.ndarray
    upstream: np.ndarray
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None
    live_ids: np.ndarray | None = None
    norm: str = "none"
    scoring: str = "softmax"
    scale: float = 1.0

    def options(self) -> dict[str, Any]:
        return {"norm": self.norm, "scoring": self.scoring, "scale": self.scale}

    def chosen(self) -> np.ndarray:
        """Returns the experts that have to be used."""
        if self.mask is None:
            return self.ids
        live = self.live_ids
        if live is None:
            ranked = _scored(self.scores.astype(np.float64), self.scoring)
            ranked = ranked if self.bias is None else ranked + self.bias
            live = np.argsort(-ranked, axis=-1, kind="stable")[..., : self.ids.shape[-1]]
        return np.where(self.mask[..., None], self.ids, live)

    def weights(self, scores: np.ndarray | None = None) -> np.ndarray:
        """Returns the weights by the words of the documentation, for real or complex scores."""
        scores = self.scores.astype(np.float64) if scores is None else scores
        if self.norm == "softmax":
            return self.scale * _softmax(np.take_along_axis(scores, self.chosen(), axis=-1))
        picked = np.take_along_axis(_scored(scores, self.scoring), self.chosen(), axis=-1)
        return self.scale * (picked / picked.sum(axis=-1, keepdims=True) if self.norm == "sum" else picked)

    def gradient(self) -> np.ndarray:
        """Returns the derivative of ``sum(upstream * weights)`` by each score. Tokens do not touch each other."""
        gradient = np.empty(self.scores.shape)
        for expert in range(self.scores.shape[-1]):
            moved = self.scores.astype(complex)
            moved[..., expert] += 1j * STEP
            gradient[..., expert] = (self.upstream * self.weights(moved)).sum(axis=-1).imag / STEP
        return gradient


def case(shape: tuple[int, ...] = (96,), experts: int = 64, top_k: int = 8, seed: int = 0, **options: Any) -> Case:
    """Returns random scores of a live router, and a recording that differs from what it would choose.

    Args:
        shape: Of the tokens.
        experts: Number of experts.
        top_k: Experts of a token.
        seed: Of everything random.
        options: ``masked`` and ``biased`` (bool), and fields of ``Case``.
    """
    rng = np.random.default_rng([seed, experts, top_k])
    scores = 2 * rng.standard_normal((*shape, experts))
    if options.get("scoring") == "none":
        scores = 0.1 + np.abs(scores)
    recorded = np.argsort(-scores - rng.standard_normal(scores.shape), axis=-1)[..., :top_k]
    masked, biased = options.pop("masked", False), options.pop("biased", False)
    return Case(
        scores=scores.astype(np.float32),
        ids=recorded,
        upstream=rng.standard_normal(recorded.shape).astype(np.float32),
        mask=rng.random(shape) < 0.7 if masked else None,
        bias=0.2 * rng.standard_normal(experts).astype(np.float32) if biased else None,
        **options,
    )


def error(got: Any, wanted: np.ndarray) -> float:
    """Returns the distance of two arrays relative to the size of the second one."""
    return float(np.linalg.norm(np.asarray(got, np.float64) - wanted) / np.linalg.norm(wanted))


def _named(**how: Any) -> Any:
    import pytest

    return pytest.param(case(**how), id="-".join(f"{name}={value}" for name, value in how.items()))


CASES = [
    *[
        _named(scoring=scoring, norm=norm, masked=masked, scale=2.5 if masked else 1.0, biased=masked)
        for scoring, norm, masked in product(("softmax", "sigmoid", "none"), ("none", "sum", "softmax"), (False, True))
    ],
    _named(scoring="softmax", norm="sum", shape=(512,), experts=256),
    _named(scoring="sigmoid", norm="sum", shape=(512,), experts=256, masked=True, biased=True, scale=2.5),
    _named(scoring="softmax", norm="none", shape=(3, 5), experts=8, top_k=8),
    _named(scoring="softmax", norm="none", shape=(2, 3, 4), experts=9, top_k=1, masked=True),
    _named(scoring="sigmoid", norm="none", shape=(7,), experts=1, top_k=1),
]


def unlikely() -> Case:
    """Returns scores that give the recorded experts almost no probability: in float32 it is zero."""
    made = case(shape=(4,), experts=16, top_k=4, norm="sum")
    scores = made.scores.copy()
    np.put_along_axis(scores, made.ids, np.float32(-200) + np.take_along_axis(scores, made.ids, -1), -1)
    return replace(made, scores=scores)
