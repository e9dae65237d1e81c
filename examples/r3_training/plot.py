"""Plots the curves: ``python plot.py curves.json r3_training.png`` with what ``main.py --json`` printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

PANELS = (
    ("disagreement", "router decisions that disagree", "linear"),
    ("kl", "KL(engine || trainer), nats per token", "log"),
    ("reward", "reward", "linear"),
)
ARMS = (("plain", "without replay", "#d1495b"), ("replay", "with replay", "#00798c"))


def plot(document: dict, path: str) -> bool:
    """Writes the picture: thin lines are seeds, thick ones their mean. Returns False if matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        print("no plot: it needs matplotlib, pip install 'fastdeploy-routing-plugins[bench]'", file=sys.stderr)
        return False
    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import PercentFormatter

    runs = document["seeds"]
    steps = [each["step"] for each in runs[0]["plain"]]
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(10, 3.1), layout="constrained")
    for axis, (field, title, scale) in zip(axes, PANELS, strict=True):
        for arm, label, color in ARMS:
            curves = [[each[field] for each in run[arm]] for run in runs]
            for curve in curves:
                axis.plot(steps, curve, color=color, linewidth=0.7, alpha=0.4)
            mean = [sum(column) / len(column) for column in zip(*curves, strict=True)]
            axis.plot(steps, mean, color=color, linewidth=2, label=label)
        axis.set_yscale(scale)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
    axes[0].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    return True


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python plot.py curves.json picture.png")
    raise SystemExit(0 if plot(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]) else 1)
