"""``fd-routing serve``: runs the metadata service of the store ``rdma``, or asks a running one how it is."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.cli.output import Output, show_bytes, show_time
from fastdeploy_routing_plugins.errors import StoreUnavailableError
from fastdeploy_routing_plugins.keys import DEFAULT_NAMESPACE
from fastdeploy_routing_plugins.stores.rdma.address import parse
from fastdeploy_routing_plugins.stores.rdma.metadata.limits import Limits
from fastdeploy_routing_plugins.stores.rdma.metadata.security import Security
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.stores.rdma.address import Address
    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service

_LIMITS = Limits()
_MAX_SECRET = 4096  # bytes


@click.command("serve")
@click.argument("address", metavar="zmq://HOST:SYNC,HOST:COORD")
@click.option("--status", is_flag=True, help="Ask the service that runs there how it is, instead of running one.")
@click.option("--keys", default="", metavar="FILE", help="CURVE keys, see `fd-routing keygen`: server.json to serve.")
@click.option("--secret", default="", metavar="TEXT|@FILE", help="Secret that clients must know.")
@click.option("--insecure", is_flag=True, help="Let anybody who reaches the address use the service, without keys.")
@click.option(
    "--suspect",
    type=click.FloatRange(0.1),
    default=_LIMITS.suspect,
    show_default=True,
    metavar="SECONDS",
    help="Silence after which a producer is not relied on.",
)
@click.option(
    "--lease",
    type=click.FloatRange(0.2),
    default=_LIMITS.lease,
    show_default=True,
    metavar="SECONDS",
    help="Silence after which a producer is lost.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0),
    default=_LIMITS.settle,
    show_default=True,
    metavar="SECONDS",
    help="Time after the start that producers have to say what they hold, before anybody is told it is not there.",
)
@click.option(
    "--tombstones",
    type=click.IntRange(0),
    default=_LIMITS.tombstones,
    show_default=True,
    metavar="BYTES",
    help="Memory for what is gone, and why.",
)
@click.option(
    "--max-names", type=click.IntRange(1), default=_LIMITS.names, show_default=True, help="How many objects at most."
)
@click.option(
    "--max-producers", type=click.IntRange(1), default=_LIMITS.owners, show_default=True, help="How many producers."
)
@click.option(
    "--max-unix",
    type=click.IntRange(0),
    default=_LIMITS.unix,
    show_default=True,
    help="How many connections by unix socket, for clients of this host and user; others use the ports. 0: none.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long --status waits for an answer.",
)
@common_options
@click.pass_obj
def command(
    out: Output,
    address: str,
    status: bool,
    keys: str,
    secret: str,
    insecure: bool,
    suspect: float,
    lease: float,
    settle: float,
    tombstones: int,
    max_names: int,
    max_producers: int,
    max_unix: int,
    timeout: float,
) -> int:
    """Run the metadata service of the store rdma until SIGTERM or SIGINT.

    Producers and readers find each other by it; it keeps nothing on disk, and no routing passes through it. When it is
    started again, producers tell it anew what they hold. Prints one line as soon as it listens.
    """
    where, security = parse(address), Security(keys, _read_secret(secret))
    if status:
        return _show_status(out, where, security, timeout)
    if lease <= suspect:
        raise UsageProblem(f"--lease {lease:g} must be longer than --suspect {suspect:g}")
    if not where.loopback and not keys and not insecure:
        raise UsageProblem(
            f"{where} can be reached from other hosts, where anybody could read, add and delete names",
            "make keys with `fd-routing keygen DIR` and pass --keys DIR/server.json, or accept that with --insecure",
        )
    limits = Limits(
        suspect=suspect,
        lease=lease,
        settle=settle,
        strict=True,  # it may have had a predecessor anywhere
        tombstones=tombstones,
        names=max_names,
        owners=max_producers,
        unix=max_unix,
    )
    if not out.debug:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service  # noqa: PLC0415 - not to ask one

    service = Service(where, security, limits)
    # A full collection looks at every name; there are no cycles among them to be found.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    with _stopped_by_signals(service):
        document = {"listening": str(service.address), "epoch": service.epoch, "curve": bool(keys)}
        if not out.document(document):
            out.line(f"listening on {service.address}")
        out.flush()
        service.run()
    return 0


def _read_secret(text: str) -> str:
    """Returns the secret that an option says or names a file of."""
    if not text.startswith("@"):
        return text
    try:
        with Path(text[1:]).open("rb") as file:
            return file.read(_MAX_SECRET).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise UsageProblem(f"--secret {text}: {err}") from err


@contextmanager
def _stopped_by_signals(service: Service) -> Iterator[None]:
    """Lets the service end in good order when the process is told to."""
    # What is ignored, as under nohup, stays ignored.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) in usual]
    before = {number: signal.signal(number, lambda *_: service.stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- status ----------------------------------------------------------------------------------------------------------


def _show_status(out: Output, address: Address, security: Security, timeout: float) -> int:
    from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient  # noqa: PLC0415 - not to serve
    from fastdeploy_routing_plugins.stores.rdma.metadata.reaching import why_silent  # noqa: PLC0415

    if address.everywhere:
        raise UsageProblem(f"{address} is where a service listens; say a host at which it is reached")
    client = MetadataClient(address, DEFAULT_NAMESPACE, security, timeout)
    try:
        client.open()
        figures = client.status()
    except StoreUnavailableError as err:
        why = why_silent(address, DEFAULT_NAMESPACE, security, timeout / 4)
        if why is None:
            raise
        raise StoreUnavailableError(why[0], hint=why[1]) from err
    finally:
        client.close()
    if not out.document({"address": str(address), **figures}):
        _print(out, figures)
    return 0


def _print(out: Output, figures: dict[str, Any]) -> None:
    owners = figures["owners"]
    states = ["settling" if figures["settling"] else "ready", f"up {show_time(figures['uptime'])}"]
    out.line(f"epoch {figures['epoch']}, pid {figures['pid']}, {', '.join(states)}")
    out.line(
        f"{counted(figures['names'], 'name')} of {counted(figures['producers'], 'producer')}, "
        f"{show_bytes(figures['memory'])} of memory"
    )
    out.line(
        f"{counted(figures['tombstones'], 'tombstone')}, {counted(figures['lost_names'], 'name')} of lost producers "
        f"({show_bytes(figures['gone_bytes'])})"
    )
    out.line(
        f"{figures['connections']} connections, {figures['unix']} by unix socket, {figures['waiting']} wait, "
        f"{figures['followed']} topics followed, "
        f"{figures['asked_per_second']:g} questions/s"
    )
    if figures["refused"]:
        out.line("refused: " + ", ".join(f"{count} {why}" for why, count in sorted(figures["refused"].items())))
    if owners:
        out.line()
        rows = [
            (
                owner["producer"],
                owner["namespace"],
                f"{owner['node']}:{owner['pid']}",
                owner["state"],
                show_time(owner["age"]),
                str(owner["names"]),
                str(owner["to_free"]),
            )
            for owner in owners
        ]
        headers = ("PRODUCER", "NAMESPACE", "PROCESS", "STATE", "LAST SIGN", "NAMES", "TO FREE")
        out.table(headers, rows, right="    rrr")
