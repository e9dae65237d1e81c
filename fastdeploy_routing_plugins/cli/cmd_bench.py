"""``fd-routing bench``: what a put and a get take, by stores and by other ways, in two processes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.bench.presets import PRESETS
from fastdeploy_routing_plugins.cli.failures import Failure, UsageProblem
from fastdeploy_routing_plugins.cli.options import F, common_options
from fastdeploy_routing_plugins.cli.plotting import plot_option
from fastdeploy_routing_plugins.cli.signals import cleaning_up, no_orphans
from fastdeploy_routing_plugins.resolving.jsontext import parse_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastdeploy_routing_plugins.bench.candidates import Gets
    from fastdeploy_routing_plugins.bench.presets import Work
    from fastdeploy_routing_plugins.bench.report import Report
    from fastdeploy_routing_plugins.cli.output import Output
    from fastdeploy_routing_plugins.cli.plotting import Plot

_TRANSPORTS = ("auto", "shm", "tcp", "rdma")
_PADDING = 4  # times as many tokens as the rollout has


class _Names(click.ParamType[Any]):
    """Names, parted by commas."""

    name = "NAME,..."

    def __init__(self, among: tuple[str, ...] = ()) -> None:
        self._among = among

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        for name in names:
            if self._among and name not in self._among:
                self.fail(f"{name!r} is not one of {', '.join(self._among)}", param, ctx)
        return names


def _size(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=click.IntRange(1), help=f"{text}, instead of the preset's.")


@click.command("bench")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="paper", show_default=True, help="What is moved.")
@_size("--files", "Arrays in a round")
@_size("--layers", "Of an array")
@_size("--tokens", "Of an array")
@_size("--top-k", "Experts of a token")
@_size("--max-model-len", "Tokens that FastDeploy's way is padded to")
@click.option("--stores", type=_Names(), default="local,rdma", show_default=True, help="See `fd-routing list`.")
@click.option("--config", "configs", multiple=True, metavar="NAME=JSON|@FILE", help="Options of a store. Repeatable.")
@click.option(
    "--peers",
    type=_Names(),
    default="",
    help="Other ways: paddle, numpy, p2pstore, redis, or a PeerKind as module:NAME; left out if not installed.",
)
@click.option(
    "--transport",
    "transports",
    type=_Names(_TRANSPORTS),
    default="shm,tcp",
    show_default=True,
    help="How routing comes from rdma to its reader; several, parted by commas.",
)
@click.option(
    "--get",
    "gets",
    type=click.Choice(("each", "batch", "both")),
    default="both",
    show_default=True,
    help="One by one, all of a round by one get_batch, or both.",
)
@click.option("--rounds", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Rounds that count.")
@click.option("--warm-up", type=click.IntRange(0, 100), default=2, show_default=True, help="Rounds before them.")
@click.option("--folder", metavar="PATH", help="Where files are written; without it where temporary files are.")
@click.option("--insecure", is_flag=True, help="Let p2pstore and Mooncake listen on every interface for the time.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=120.0, show_default=True, metavar="SECONDS", help="For each step."
)
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@plot_option
@common_options
@click.pass_obj
def command(
    out: Output,
    preset: str,
    files: int | None,
    layers: int | None,
    tokens: int | None,
    top_k: int | None,
    max_model_len: int | None,
    stores: tuple[str, ...],
    configs: tuple[str, ...],
    peers: tuple[str, ...],
    transports: tuple[str, ...],
    gets: Gets,
    rounds: int,
    warm_up: int,
    folder: str | None,
    insecure: bool,
    timeout: float,
    markdown: bool,
    plot: Plot | None,
) -> int:
    """Measure puts and gets between two processes: stores, and beside them other ways to the same end.

    The preset paper moves 37 arrays of 1 MiB one by one, as the change did that brought FastDeploy its stores; the
    others move rollouts of the models that they are named after. Candidates take turns within each round. Every byte
    is compared with the original, outside the clock. At the end stands a rollout end to end, as FastDeploy moves it,
    padded and layer by layer, beside how this package does.

    What listens on every interface (p2pstore, Mooncake) is measured in a network of its own, which needs root.

    Exits with 0 whatever the figures are, with 1 if something that was to be measured failed.
    """
    work = _work(preset, files, layers, tokens, top_k, max_model_len)
    if folder is not None and not os.path.isdir(folder):
        raise UsageProblem(f"there is no folder {folder!r}")
    if not transports and "rdma" in stores:
        raise UsageProblem("--transport names none")
    from fastdeploy_routing_plugins.bench.benchmark import Bench, Order  # noqa: PLC0415 - not for a wrong command line

    order = Order(
        work,
        stores,
        _options(configs, stores),
        peers,
        transports,
        gets,
        rounds,
        warm_up,
        timeout,
        folder,
        insecure,
    )
    bench = Bench(order)
    with cleaning_up() as stop, out.progress([f"bench {work.name}"], bench.steps) as bars, no_orphans():

        def progress(done: int) -> None:
            stop.check()
            bars(0, done)

        report = bench.run(progress)
    if not out.document(report.to_dict()):
        _print(out, report, markdown)
    if plot is not None:
        _draw(plot, report)
        out.line(f"plot -> {plot.path}")
    return 1 if report.failed else 0


def _work(
    preset: str,
    files: int | None,
    layers: int | None,
    tokens: int | None,
    top_k: int | None,
    max_model_len: int | None,
) -> Work:
    work = PRESETS[preset]
    if not any((files, layers, tokens, top_k, max_model_len)):
        return work
    try:
        changed = replace(
            work,
            name="custom",
            files=files or work.files,
            layers=layers or work.layers,
            tokens=tokens or work.tokens,
            top_k=top_k or work.top_k,
            rollout_layers=0,
            rollout_tokens=0,
            max_model_len=0,
        )
        # Arrays of one layer are those of a rollout, whose engine has four bytes an id, and four times the room.
        single = changed.layers == 1
        room = max_model_len or (changed.tokens // _PADDING if single else changed.tokens * _PADDING)
        valid = room // _PADDING if single else changed.tokens
        if not 1 <= valid <= room:
            return changed
        depth = changed.files if single else changed.layers
        return replace(changed, rollout_layers=depth, rollout_tokens=valid, max_model_len=room)
    except ValueError as err:
        raise UsageProblem(str(err)) from err


def _options(configs: tuple[str, ...], stores: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for text in configs:
        name, equals, options = text.partition("=")
        if not equals or name not in stores:
            raise UsageProblem(
                f"--config {text!r:.60} is not for one of the stores {', '.join(stores)}",
                "for example --config 'rdma={\"timeout\": 10}'",
            )
        found[name] = {**found.get(name, {}), **parse_text(options, f"--config {name}")[0]}
    return found


def _print(out: Output, report: Report, markdown: bool) -> None:
    if markdown:
        for line in report.markdown().split("\n"):
            out.line(line)
        return
    for table in report.tables():
        out.table([header.upper() for header in table.headers], table.rows, right=table.right)
        out.line()
    for line in report.notes():
        out.line(line)


def _draw(plot: Plot, report: Report) -> None:
    if not report.files:
        raise Failure("plot", "there is nothing to draw: nothing was measured")
    from fastdeploy_routing_plugins.bench import drawing  # noqa: PLC0415 - only for pictures

    plot.save(lambda figure: drawing.draw(figure, report), width=10, height=drawing.height(report))
