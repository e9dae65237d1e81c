"""``fd-routing doctor``: looks at everything that routing needs here, and says what to do about what is wrong.

Light on purpose: it has to start where something cannot be imported, which it then says.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.options import bare_store_options, common_options
from fastdeploy_routing_plugins.cli.signals import cleaning_up
from fastdeploy_routing_plugins.doctor.case import Case
from fastdeploy_routing_plugins.doctor.examining import examine
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins.cli.output import Output
    from fastdeploy_routing_plugins.doctor.examining import Examination
    from fastdeploy_routing_plugins.doctor.lines import Line

# Subject, module and check, in order: later ones build on what the configuration's found.
_CHECKS = (
    ("python", "package", "check_python"),
    ("package", "package", "check_package"),
    ("configuration", "store", "check_configuration"),
    ("fastdeploy", "engine", "check_fastdeploy"),
    ("writer", "engine", "check_writer"),
    ("memory", "memory", "check_memory"),
    ("leftovers", "memory", "check_leftovers"),
    ("rdma devices", "devices", "check_devices"),
    ("memlock", "devices", "check_memlock"),
    ("mooncake", "devices", "check_mooncake"),
    ("service", "service", "check_service"),
    ("store", "store", "check_open"),
    ("probe", "store", "check_probe"),
)
_WORDS = (("good", "good"), ("info", "for information"), ("warn", "warning"), ("bad", "bad"))


@click.command("doctor")
@click.option(
    "--arena-dir",
    "folders",
    multiple=True,
    metavar="PATH",
    help="Where shared memory is looked at; may be repeated. Without it where the configuration says.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.5, 600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each check may take.",
)
@bare_store_options("Merged with FD_ROUTING_STORE_CONFIG.", namespace=True)
@common_options
@click.pass_obj
def command(
    out: Output,
    folders: tuple[str, ...],
    timeout: float,
    store: str | None,
    config: str | None,
    directory: str | None,
    namespace: str | None,
) -> int:  # fmt: skip
    """Look at everything that routing needs here, and say what to do about what is wrong.

    Looks at Python, this package, FastDeploy and the hook in it, shared memory, RDMA, the metadata service and the
    configured store, and makes a round trip through that in a namespace of its own. Exits with 1 if anything is bad.
    """
    case = Case(store, config, directory, namespace, folders, timeout)
    with cleaning_up() as stop, out.progress(["looking"], len(_CHECKS)) as advance:

        def progress(done: int) -> None:
            stop.check()
            advance(0, done)

        checks = [(subject, _check(module, name)) for subject, module, name in _CHECKS]
        found = examine(case, checks, progress)
    out.abandoned = out.abandoned or found.hung
    counts = {kind: sum(line.kind == kind for line in found.lines) for kind, _ in _WORDS}
    document = {"ok": found.healthy, "counts": counts, "lines": [line.to_dict() for line in found.lines]}
    if not out.document(document):
        _print(out, found)
        said = [counted(counts[kind], word) if kind == "warn" else f"{counts[kind]} {word}" for kind, word in _WORDS]
        out.line(", ".join(text for text, (kind, _) in zip(said, _WORDS, strict=True) if counts[kind]))
    return 0 if found.healthy else 1


def _check(module: str, name: str) -> Callable[[Case], Iterator[Line]]:
    """Returns a check that imports its module when it is made: what cannot be imported is a finding."""

    def check(case: Case) -> Iterator[Line]:
        function: Any = getattr(importlib.import_module(f"fastdeploy_routing_plugins.doctor.{module}"), name)
        yield from function(case)

    return check


def _print(out: Output, found: Examination) -> None:
    rows: list[tuple[str, str, str]] = []
    subject = ""
    for line in found.lines:
        rows.append((line.subject if line.subject != subject else "", line.kind, line.text))
        subject = line.subject
        if line.cure:
            rows.append(("", "cure" if line.kind != "info" else "", line.cure))
    out.table(("SUBJECT", "STATE", "FINDING"), rows)
