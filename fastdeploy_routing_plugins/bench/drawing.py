"""The picture of a run: the median of every put and get, and what 99 of 100 do not exceed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.bench.report import show_ms
from fastdeploy_routing_plugins.cli.plotting import title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.bench.figures import Figures
    from fastdeploy_routing_plugins.bench.report import Report

_COLORS = {"put": "tab:orange", "blocked": "tab:red", "get": "tab:blue", "batch": "tab:green"}


def height(report: Report) -> float:
    """Returns how high the picture has to be, in inches."""
    return 1.6 + 0.28 * (len(report.files) + len(report.rollouts))


def draw(figure: Any, report: Report) -> None:
    """Draws into an empty Matplotlib ``Figure``."""
    singles = [each for each in report.files if each.kind != "batch"]
    rest = [*(each for each in report.files if each.kind == "batch"), *report.rollouts]
    work = report.work
    text = f"{work.files} arrays of {work.nbytes / 2**20:.3g} MiB, one by one: median, and 99 of 100 (line)"
    if not rest:
        _bars(figure.subplots(), singles, text)
        return
    upper, lower = figure.subplots(2, 1, height_ratios=(max(1, len(singles)), len(rest)))
    _bars(upper, singles, text)
    _bars(lower, rest, "all at once, and a rollout end to end")


def _bars(axes: Any, figures: Sequence[Figures], text: str) -> None:
    places = range(len(figures))
    medians = [each.p50 * 1e3 for each in figures]
    above = [max(0.0, each.p99 - each.p50) * 1e3 for each in figures]
    bars = axes.barh(places, medians, color=[_COLORS[each.kind] for each in figures])
    axes.errorbar(medians, places, xerr=[[0] * len(figures), above], fmt="none", ecolor="black", linewidth=0.8)
    axes.bar_label(bars, [f" {show_ms(each.p50)}" for each in figures], label_type="center", fontsize="x-small")
    axes.set_yticks(places, [each.name for each in figures], fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("ms")
    axes.grid(axis="x", alpha=0.3)
    title(axes, text)
