"""``--plot FILE.png``: what commands show, as a picture. Matplotlib is imported when a picture is asked for."""

from __future__ import annotations

import functools
import logging
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.files import check_target, write_whole
from fastdeploy_routing_plugins.cli.output import show_id
from fastdeploy_routing_plugins.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

_DPI = 144
_TITLE = 60  # characters of a rollout id


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture that was asked for, and can be made: its place is free, and Matplotlib is there.

    Attributes:
        path: Where it goes.
        force: Whether an existing file is replaced.
    """

    path: Path
    force: bool

    def save(self, draw: Callable[[Any], None], *, width: float, height: float) -> None:
        """Draws the picture and writes its file, whole or not at all.

        Args:
            draw: Draws into a Matplotlib ``Figure``.
            width: In inches.
            height: In inches.

        Raises:
            UsageProblem: the file exists by now.
            Failure: it cannot be written.
        """
        matplotlib, make_figure, make_canvas = _matplotlib()
        # Neither a display nor what a user's own settings say has a part in this.
        with matplotlib.rc_context(), warnings.catch_warnings():
            matplotlib.rcdefaults()
            warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # ids may be of any script
            figure = make_figure(figsize=(width, height), layout="constrained")
            make_canvas(figure)
            draw(figure)
            write_whole(self.path, self.force, lambda file: figure.savefig(file, format="png", dpi=_DPI))


def plot_option(function: Callable[..., int]) -> Callable[..., int]:
    """Adds ``--plot`` and ``--force``; the command gets them as ``plot``, a ``Plot`` or None, checked."""

    @functools.wraps(function)
    def wrapped(*args: Any, plot: Path | None, force: bool, **kwargs: Any) -> int:
        if plot is None:
            if force:
                raise UsageProblem("--force goes with --plot")
            return function(*args, plot=None, **kwargs)
        check_target(plot, force, (".png",))
        _matplotlib()
        return function(*args, plot=Plot(plot, force), **kwargs)

    for option in (
        click.option("--force", is_flag=True, help="Overwrite the picture."),
        click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw it, too."),
    ):
        wrapped = option(wrapped)
    return wrapped


def _matplotlib() -> tuple[Any, Any, Any]:
    """Returns Matplotlib and what makes a figure and its canvas."""
    try:
        matplotlib = import_module("matplotlib")
    except ModuleNotFoundError as err:
        if err.name != "matplotlib":
            raise
        raise MissingDependencyError(
            "--plot needs matplotlib, which is not installed",
            hint="pip install 'fastdeploy-routing-plugins[bench]'",
            module="matplotlib",
        ) from err
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # --debug is not about how it finds its fonts
    canvas = import_module("matplotlib.backends.backend_agg").FigureCanvasAgg
    return matplotlib, import_module("matplotlib.figure").Figure, canvas


def title(axes: Any, text: str) -> None:
    """Writes a title; a dollar sign in it is one, and no formula."""
    axes.set_title(text, loc="left", fontsize="medium", parse_math=False)


def short_id(rollout_id: str, choice: int = 0) -> str:
    """Returns a rollout id for a title."""
    return show_id(rollout_id, choice, limit=_TITLE)
