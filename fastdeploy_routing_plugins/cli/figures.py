"""The pictures behind ``--plot``: each function draws one into an empty Matplotlib ``Figure``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_routing_plugins.cli.output import show_share
from fastdeploy_routing_plugins.cli.plotting import title

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from fastdeploy_routing_plugins.comparison import Comparison
    from fastdeploy_routing_plugins.demo.run import DemoReport

_COLUMNS = 1024  # more experts share columns
_LABELS = 24  # layers that an axis names at the most
_BEFORE, _AFTER = "tab:orange", "tab:blue"


def agreement(figure: Any, comparison: Comparison, a: str, b: str) -> None:
    """Draws, for each layer, the share of agreeing experts and of tokens with the same experts, in per cent.

    Args:
        figure: Where to.
        comparison: What was found.
        a: The name of A.
        b: The name of B.
    """
    axes = figure.subplots()
    ids = [layer.layer_id for layer in comparison.layers]
    experts = show_share(comparison.shared, comparison.rows * comparison.top_k)
    shares = [layer.agreement * 100 for layer in comparison.layers]
    axes.plot(ids, shares, "o-", markersize=4, label=f"agreeing experts: {experts}")
    tokens = show_share(comparison.same_rows, comparison.rows)
    shares = [layer.same_share * 100 for layer in comparison.layers]
    axes.plot(ids, shares, "s:", markersize=4, label=f"tokens with the same experts: {tokens}")
    low, high = axes.get_ylim()
    margin = max(0.02 * (high - low), 0.01)
    axes.set_ylim(max(low, -margin), 100 + margin)
    _ids_along(axes.xaxis)
    axes.set_xlabel("layer of the model")
    axes.set_ylabel("share (%)")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    title(axes, f"A: {a}\nB: {b}\ntokens {comparison.tokens[0]}:{comparison.tokens[1]}, top-{comparison.top_k}")


def expert_load(figure: Any, counts: npt.NDArray[np.int64], layer_ids: Sequence[int], name: str) -> None:
    """Draws how often each expert of each layer was chosen, as a multiple of its even share.

    Args:
        figure: Where to.
        counts: ``[layers, experts]``, how often each was chosen.
        layer_ids: The model's index of each layer.
        name: What was counted.
    """
    num_experts = counts.shape[1]
    totals = counts.sum(axis=1, keepdims=True)
    load = np.divide(counts * num_experts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    edges = np.arange(min(_COLUMNS, num_experts)) * num_experts // min(_COLUMNS, num_experts)
    columns = np.add.reduceat(load, edges, axis=1) / np.diff(edges, append=num_experts)
    busiest = load.max(axis=1)
    heat, bars = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    colors = import_module("matplotlib.colors")
    image = heat.imshow(
        columns,
        aspect="auto",
        interpolation="nearest",
        cmap="RdBu_r",
        norm=colors.TwoSlopeNorm(1.0, 0.0, max(2.0, float(np.nanmax(columns, initial=0.0)))),
        extent=(-0.5, num_experts - 0.5, len(layer_ids) - 0.5, -0.5),
    )
    step = -(-len(layer_ids) // _LABELS)
    heat.set_yticks(range(0, len(layer_ids), step), [str(layer_id) for layer_id in layer_ids[::step]])
    heat.set_xlabel("expert")
    heat.set_ylabel("layer of the model")
    title(heat, f"{name}: how often each expert was chosen")
    bars.barh(range(len(layer_ids)), np.nan_to_num(busiest), height=0.8, color="tab:gray")
    bars.axvline(1.0, color="black", linewidth=0.8)
    bars.set_xlabel("busiest expert")
    bars.grid(axis="x", alpha=0.3)
    figure.colorbar(image, ax=[heat, bars], label="load: times the even share", shrink=0.8)


def replay(figure: Any, report: DemoReport) -> None:
    """Draws what a trainer's routers do differently in each layer, and how far it is off without and with replay.

    Args:
        figure: Where to.
        report: What the demo measured; at least one record arrived.
    """
    layers, errors = figure.subplots(1, 2)
    layers.bar(report.layer_ids, [share * 100 for share in report.disagreement_per_layer], color=_BEFORE)
    _ids_along(layers.xaxis)
    layers.set_xlabel("MoE layer")
    layers.set_ylabel("choices that disagree without replay (%)")
    title(layers, f"router decisions: {report.disagreement:.2%} disagree")
    names = ("log-prob mismatch", "KL(rollout || trainer)")
    without = (report.logprob_mismatch_without_replay, report.kl_without_replay)
    replayed = (report.logprob_mismatch_with_replay, report.kl_with_replay)
    for shift, values, label, color in (
        (-0.2, without, "without replay", _BEFORE),
        (0.2, replayed, "with replay", _AFTER),
    ):
        bars = errors.bar([at + shift for at in range(len(names))], values, 0.4, label=label, color=color)
        errors.bar_label(bars, fmt="%.1e", fontsize="small")
    if min(*without, *replayed) > 0:
        errors.set_yscale("log")
    errors.set_xticks(range(len(names)), names)
    errors.set_ylabel("nats")
    errors.margins(y=0.15)
    errors.legend(loc="best")
    title(errors, f"{report.sampled_tokens} sampled tokens of {report.intact} requests")


def _ids_along(axis: Any) -> None:
    """Layers have whole numbers."""
    axis.set_major_locator(import_module("matplotlib.ticker").MaxNLocator(integer=True, nbins=_LABELS // 2))
