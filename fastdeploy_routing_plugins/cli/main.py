"""The command ``fd-routing``: finds the command's module, and turns every outcome into an exit code.

Exit codes: 0 fine; 1 the answer is bad (absent, damaged, a failed check) or an internal error; 2 wrong usage or
configuration; 130 interrupted; 141 the reader of our output went away. In ``diff`` 1 is an answer, and 2 is whatever
keeps it from one.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import traceback
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from fastdeploy_routing_plugins.cli.failures import Failure, UsageProblem
from fastdeploy_routing_plugins.cli.output import Output, UnwritableError
from fastdeploy_routing_plugins.errors import (
    InvalidKeyError,
    InvalidRecordError,
    ResolveError,
    RoutingError,
    SchemaMismatchError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "fd-routing"
DISTRIBUTION = "fastdeploy-routing-plugins"
INTERRUPTED = 130
PIPE_CLOSED = 141
_COMPLETE = "_FD_ROUTING_COMPLETE"
# Each command is a module of its own, ``cmd_NAME``, imported when the command is called.
_COMMANDS = {
    "list": "Show the stores that installed packages offer.",
    "show": "Load one store's plugin and show what it declares.",
    "check": "Find out, step by step, why a store does not work.",
    "doctor": "Look at everything that routing needs here, with the cure for what is wrong.",
    "try": "Put, find, get and delete made-up routing, with timings.",
    "ls": "List the rollouts in a store.",
    "stat": "Describe one rollout: shape, coverage, expert use, digests.",
    "get": "Save a rollout's routing as .npy or .safetensors.",
    "diff": "Compare two recorded routings layer by layer.",
    "convert": "Take routing over from SGLang, vLLM, FastDeploy or p2pstore.",
    "verify": "Read rollouts and check every byte.",
    "rm": "Delete rollouts.",
    "serve": "Run the metadata service of the store rdma, or ask one how it is.",
    "keygen": "Make CURVE keys for a metadata service and its clients.",
    "clean": "Store what dead engines left in shared memory, and remove it.",
    "bench": "Measure puts and gets: stores beside other ways to the same end.",
    "demo": "Run rollout and training with a small model, with and without replay.",
}
_EPILOG = f"""\b
Tab completion: add this line to ~/.bashrc (zsh: zsh_source, fish: fish_source)
  eval "$({_COMPLETE}=bash_source {PROGRAM})"
"""


_ELSEWHERE = {"delete": "rm", "remove": "rm", "export": "get", "import": "convert", "status": "stat"}


class _Commands(click.Group):
    """A group that imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"fastdeploy_routing_plugins.cli.cmd_{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            near = [_ELSEWHERE[name]] if name in _ELSEWHERE else difflib.get_close_matches(name, _COMMANDS, n=1)
            raise UsageProblem(
                f"there is no command {name!r}",
                f"did you mean {near[0]!r}?" if near else f"{PROGRAM} --help lists the commands",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def main(
        self, args: Sequence[str] | None = None, *_: Any, document_stream: TextIO | None = None, **__: Any
    ) -> NoReturn:
        """Runs the command line and exits the process.

        Args:
            args: The command line; ``sys.argv`` unless given.
            document_stream: Where JSON goes, unless to stdout.
        """
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        if instruction := os.environ.get(_COMPLETE):
            from click.shell_completion import shell_complete  # noqa: PLC0415 - only the shell asks for it

            sys.exit(shell_complete(self, {}, PROGRAM, _COMPLETE, instruction))
        json, debug = _has_flag(arguments, "--json"), _has_flag(arguments, "--debug")
        out = Output(document_stream or sys.stdout, json=json, debug=debug)
        with redirect_stdout(sys.stderr if json else sys.stdout):
            code = _run(self, arguments, out)
        if out.abandoned:
            os._exit(code)
        sys.exit(code)


def _has_flag(arguments: Sequence[str], flag: str) -> bool:
    """Whether a flag is set; read before parsing, since parsing may fail and has to say so in the right form."""
    return flag in arguments[: arguments.index("--") if "--" in arguments else len(arguments)]


def _run(group: click.Group, arguments: list[str], out: Output) -> int:
    try:
        try:
            code = _outcome(group, arguments, out)
        except KeyboardInterrupt:
            code = INTERRUPTED
        out.flush()
    except BrokenPipeError as err:
        return PIPE_CLOSED if out.discard(only_if_unread=True) else _internal(err, out)
    except UnwritableError as err:
        out.discard()
        out.note(f"error: {err}")
        return out.trouble
    return code


def _outcome(group: click.Group, arguments: list[str], out: Output) -> int:
    try:
        if out.debug:
            _log_everything()
        with group.make_context(PROGRAM, arguments, obj=out) as ctx:
            return int(group.invoke(ctx) or 0)
    except click.exceptions.Exit as err:
        return err.exit_code
    except click.ClickException as err:
        hint = getattr(err, "hint", "")
        where: click.Context | None = getattr(err, "ctx", None)
        if not hint and where is not None:
            hint = f"{where.command_path} --help"
        out.error("usage", err.format_message(), hint)
        return 2
    except RoutingError as err:
        if out.debug:
            traceback.print_exc()
        out.error(err.code, err.message, err.hint, problems=err.facts.get("problems"))
        wrong_input = isinstance(err, (ResolveError, InvalidKeyError, InvalidRecordError, SchemaMismatchError))
        return 2 if wrong_input else out.trouble
    except Failure as err:
        if out.debug:
            traceback.print_exc()
        out.error(err.code, err.message, err.hint)
        return out.trouble
    except (BrokenPipeError, UnwritableError):
        raise
    except Exception as err:  # noqa: BLE001 - the last resort: a line for people instead of a traceback
        return _internal(err, out)


def _internal(err: Exception, out: Output) -> int:
    if out.debug:
        traceback.print_exception(err)
    text = " ".join(str(err).split())[:200]
    hint = "" if out.debug else "run with --debug"
    out.error("internal", f"internal error: {type(err).__name__}: {text}" + (f" ({hint})" if hint else ""), "")
    return out.trouble


def _log_everything() -> None:
    import logging  # noqa: PLC0415 - only with --debug

    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - costs every other command 10 ms

    try:
        number: str | None = version(DISTRIBUTION)
    except (PackageNotFoundError, KeyError):
        number = None
    out = ctx.find_object(Output)
    assert out is not None
    if not out.document({"name": DISTRIBUTION, "version": number}):
        out.line(f"{PROGRAM} {number or 'of unknown version (no metadata installed)'}")
    ctx.exit(0)


cli = _Commands(
    name=PROGRAM,
    help="Moves Mixture-of-Experts routing from the rollout engine to the trainer.",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
                     help="Show the version and exit."),
        click.Option(["--json"], is_flag=True, expose_value=False, help="Print one JSON document."),
        click.Option(["--debug"], is_flag=True, expose_value=False, help="Log everything; show tracebacks."),
    ],
)  # fmt: skip


def main() -> NoReturn:
    """Entry point of the console script: runs the command line and exits the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if _has_flag(sys.argv[1:], "--json") and sys.stdout is not None and sys.stderr is not None:
        # Everything but the document goes to stderr, even what a library in C prints, and to the last moment.
        with open(os.dup(1), "w", encoding="ascii") as document_stream:
            os.dup2(2, 1)
            sys.stdout = sys.stderr
            cli.main(document_stream=document_stream)
    cli.main()
