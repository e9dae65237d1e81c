"""``--plot``: pictures show the numbers that the commands show, and fail early, in words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib.figure import Figure
from matplotlib.image import imread

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.cli import figures
from fastdeploy_routing_plugins.comparison import compare
from fastdeploy_routing_plugins.demo.run import DemoReport

from .helpers import environment, invoke, invoke_json, routing, run

if TYPE_CHECKING:
    from fastdeploy_routing_plugins import SyncStore

REPORT = DemoReport(
    ok=True,
    failures=(),
    run="r",
    requests=2,
    num_experts=8,
    top_k=2,
    layer_ids=(1, 2, 3),
    wall_s=1.0,
    intact=2,
    sampled_tokens=100,
    disagreement=0.02,
    disagreement_per_layer=(0.01, 0.02, 0.03),
    logprob_mismatch_without_replay=0.04,
    logprob_mismatch_with_replay=0.004,
    kl_without_replay=0.01,
    kl_with_replay=0.00001,
)


@pytest.fixture
def two(filled: SyncStore) -> SyncStore:
    """The store with a ``trainer`` that has a part of the experts of ``x:1``."""
    array = routing(20, 1)
    array[3, :10] = routing(20, 2)[3, :10]
    filled.put("trainer", array)
    return filled


def pixels(path: Path) -> np.ndarray:
    array: np.ndarray = imread(path)
    return array


@pytest.mark.parametrize("command", [["diff", "x:1", "trainer"], ["stat", "x:1"]])
def test_a_picture_is_a_png_with_something_in_it(
    two: SyncStore, here: list[str], tmp_path: Path, command: list[str]
) -> None:
    invoke(*command, "--plot", str(tmp_path / "p.png"), *here)

    assert len(np.unique(pixels(tmp_path / "p.png").reshape(-1, 4), axis=0)) > 10


def test_the_demo_draws_what_replay_changes(tmp_path: Path) -> None:
    ended = run("demo", "--requests", "2", "--tokens", "16", "--plot", str(tmp_path / "p.png"))

    assert (ended.returncode, ended.stdout.splitlines()[-1], pixels(tmp_path / "p.png").ndim) == (
        0,
        f"plot -> {tmp_path / 'p.png'}",
        3,
    ), ended.stderr


def test_a_difference_is_still_a_difference(two: SyncStore, here: list[str], tmp_path: Path) -> None:
    assert invoke("diff", "x:1", "trainer", "--plot", str(tmp_path / "p.png"), *here).exit_code == 1


def test_json_stays_one_document(two: SyncStore, here: list[str], tmp_path: Path) -> None:
    document = invoke_json("stat", "x:1", "--plot", str(tmp_path / "p.png"), *here)

    assert (document["id"], (tmp_path / "p.png").exists()) == ("x:1", True)


@pytest.mark.parametrize("name", ["$x^{$", "日本", "a\nb", "\\frac", "y" * 300])
def test_ids_of_any_text_are_titles(store: SyncStore, here: list[str], tmp_path: Path, name: str) -> None:
    store.put(name, routing(5))

    assert (
        invoke("stat", name, "--plot", str(tmp_path / "s.png"), *here).exit_code,
        invoke("diff", name, name, "--plot", str(tmp_path / "d.png"), *here).exit_code,
    ) == (0, 0)


def test_neither_display_nor_settings_of_the_user_matter(two: SyncStore, here: list[str], tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nbackend: tkagg\nfigure.dpi: 7\n")
    env = {"MATPLOTLIBRC": str(tmp_path), "MPLBACKEND": "tkagg", "DISPLAY": ""}
    ended = run("diff", "x:1", "trainer", "--plot", str(tmp_path / "p.png"), *here, env=env)
    invoke("diff", "x:1", "trainer", "--plot", str(tmp_path / "q.png"), *here)

    assert (ended.returncode, np.array_equal(pixels(tmp_path / "p.png"), pixels(tmp_path / "q.png"))) == (1, True)


# --- where it goes ------------------------------------------------------------------------------------------------


def test_a_file_is_not_overwritten(two: SyncStore, here: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.png").write_text("mine")
    result = invoke("stat", "x:1", "--plot", str(tmp_path / "p.png"), *here)

    assert (result.exit_code, result.stdout, (tmp_path / "p.png").read_text()) == (2, "", "mine")


def test_force_overwrites(two: SyncStore, here: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.png").write_text("mine")
    invoke("stat", "x:1", "--plot", str(tmp_path / "p.png"), "--force", *here)

    assert pixels(tmp_path / "p.png").ndim == 3


def test_force_alone_means_nothing(two: SyncStore, here: list[str]) -> None:
    assert invoke("stat", "x:1", "--force", *here).exit_code == 2


@pytest.mark.parametrize("name", ["p.pdf", "p", "missing/p.png", "folder.png"])
@pytest.mark.parametrize("command", [["diff", "x:1", "trainer"], ["stat", "x:1"], ["demo"]])
def test_a_place_that_cannot_be_is_found_out_first(
    two: SyncStore, here: list[str], tmp_path: Path, command: list[str], name: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    result = invoke(*command, "--plot", str(tmp_path / name), *here)

    assert (result.exit_code, result.stdout) == (2, "")


def test_no_temporary_file_is_left(two: SyncStore, here: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    invoke("stat", "x:1", "--plot", str(out / "p.png"), *here)

    assert os.listdir(out) == ["p.png"]


@pytest.mark.parametrize(("command", "code"), [(["diff", "x:1", "x:1"], 2), (["stat", "x:1"], 1)])
def test_results_are_shown_even_if_the_picture_cannot_be_written(
    two: SyncStore, here: list[str], tmp_path: Path, command: list[str], code: int
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    full = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    full += "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "  # stands in for a full disk
    full += "from fastdeploy_routing_plugins.cli.main import main; main()"
    env = {name: value for name, value in environment(MPLCONFIGDIR=str(tmp_path)).items() if name[:3] != "COV"}
    run("stat", "x:1", "--plot", str(tmp_path / "warm.png"), *here, env=env)  # Matplotlib keeps a list of fonts
    line = [sys.executable, "-c", full, *command, "--plot", str(out / "p.png"), *here]
    ended = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120)

    assert (ended.returncode, bool(ended.stdout), "File too large" in ended.stderr, os.listdir(out)) == (
        code,
        True,
        True,
        [],
    )


# --- what there is to draw ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["diff", "x:1", "trainer"], ["stat", "x:1"], ["demo"]])
def test_without_matplotlib_the_command_says_so_before_it_works(
    two: SyncStore, here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    result = invoke(*command, "--plot", str(tmp_path / "p.png"), *here)

    assert (result.exit_code, result.stdout, result.stderr) == (
        2,
        "",
        "error: --plot needs matplotlib, which is not installed\n"
        "hint: pip install 'fastdeploy-routing-plugins[bench]'\n",
    )


def test_without_plot_nothing_of_matplotlib_is_loaded(two: SyncStore, here: list[str]) -> None:
    look = "import sys; from fastdeploy_routing_plugins.cli.main import cli\n"
    look += "try:\n cli.main(sys.argv[1:])\nexcept SystemExit:\n print([m for m in sys.modules if 'matplotlib' in m])"
    line = [sys.executable, "-c", look, "diff", "x:1", "trainer", *here]
    ended = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=60)

    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_quick_reads_nothing_to_draw(two: SyncStore, here: list[str], tmp_path: Path) -> None:
    assert invoke("stat", "x:1", "--quick", "--plot", str(tmp_path / "p.png"), *here).exit_code == 2


def test_a_rollout_without_tokens_has_nothing_to_draw(store: SyncStore, here: list[str], tmp_path: Path) -> None:
    store.put("none", routing(0))
    result = invoke("stat", "none", "--plot", str(tmp_path / "p.png"), *here)

    assert (result.exit_code, "nothing" in result.stderr or "no use" in result.stderr) == (1, True)


# --- the numbers --------------------------------------------------------------------------------------------------


def agreement(two: SyncStore) -> tuple[Figure, Any]:
    found = compare(two.get("x:1"), two.get("trainer"))
    figure = Figure()
    figures.agreement(figure, found, "x:1", "trainer")
    return figure, found


def test_agreement_is_drawn_in_per_cent_by_layer(two: SyncStore) -> None:
    figure, found = agreement(two)
    line = figure.axes[0].lines[0]

    assert [list(line.get_xdata()), list(line.get_ydata())] == [
        [1, 2, 3, 4, 5, 6],
        [layer.agreement * 100 for layer in found.layers],
    ]


def test_the_shares_of_equal_sets_are_the_second_line(two: SyncStore) -> None:
    figure, found = agreement(two)

    assert list(figure.axes[0].lines[1].get_ydata()) == [layer.same_share * 100 for layer in found.layers]


def test_every_share_is_within_the_axes(two: SyncStore) -> None:
    axes = agreement(two)[0].axes[0]
    low, high = axes.get_ylim()

    assert all(low < value < high for line in axes.lines for value in line.get_ydata())


def load(counts: np.ndarray) -> Figure:
    figure = Figure()
    figures.expert_load(figure, counts, range(3, 3 + len(counts)), "x")
    return figure


def test_the_load_of_experts_is_a_multiple_of_the_even_share() -> None:
    counts = np.array([[10, 10, 10, 10], [40, 0, 0, 0]])

    np.testing.assert_allclose(load(counts).axes[0].images[0].get_array(), [[1, 1, 1, 1], [4, 0, 0, 0]])


def test_a_layer_that_nothing_was_read_of_is_left_out() -> None:
    shown = load(np.array([[10, 10], [0, 0]])).axes[0].images[0].get_array()

    assert np.ma.getmaskarray(shown).tolist() == [[False, False], [True, True]]


def test_many_experts_share_columns() -> None:
    counts = np.zeros((1, 3000), np.int64)
    counts[0, ::2] = 2
    shown = load(counts).axes[0].images[0].get_array()

    assert (shown.shape, round(float(shown.mean()), 1)) == ((1, 1024), 1.0)


def test_layers_are_named_by_the_models_numbers() -> None:
    labels = load(np.ones((2, 4), np.int64)).axes[0].get_yticklabels()

    assert [label.get_text() for label in labels] == ["3", "4"]


def replay(report: DemoReport) -> Any:
    figure = Figure()
    figures.replay(figure, report)
    return figure.axes


def test_disagreement_is_drawn_by_layer() -> None:
    bars = replay(REPORT)[0].patches

    assert [round(bar.get_height(), 6) for bar in bars] == [1.0, 2.0, 3.0]


def test_what_is_off_is_drawn_without_and_with_replay() -> None:
    bars = replay(REPORT)[1].patches

    assert [bar.get_height() for bar in bars] == [0.04, 0.01, 0.004, 0.00001]


def test_a_perfect_replay_is_drawn_too() -> None:
    import dataclasses

    axes = replay(dataclasses.replace(REPORT, kl_with_replay=0.0))[1]

    assert axes.get_yscale() == "linear"


def test_schema_of_one_layer_is_drawn(store: SyncStore, here: list[str], tmp_path: Path) -> None:
    store.put("one", np.array([[[5], [5]]]), schema=RoutingSchema(70_000, 1, [9]))

    assert invoke("stat", "one", "--plot", str(tmp_path / "p.png"), *here).exit_code == 0
