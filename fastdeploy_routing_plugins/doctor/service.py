"""The metadata service of ``rdma``: whether it is reached, what it says of itself, and who is registered there."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.cli.output import show_time
from fastdeploy_routing_plugins.doctor.case import ANSWERING
from fastdeploy_routing_plugins.doctor.examining import failed
from fastdeploy_routing_plugins.doctor.lines import Line
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient, Security
from fastdeploy_routing_plugins.stores.rdma.metadata.reaching import closed_port, why_silent
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fastdeploy_routing_plugins.doctor.case import Case
    from fastdeploy_routing_plugins.stores.rdma.address import Address

_CONNECTING = 0.15  # share of the check's time for each port
_SKEW = 1.0  # s that clocks may differ: attempts are numbered by the time at which requests arrive
_NAMED = 5  # producers that are named


def check_service(case: Case) -> Iterator[Line]:
    """Looks whether the configured service answers, and who is registered there."""
    config, resolved = case.rdma, case.resolved
    if config is None or resolved is None:
        over_redis = resolved is not None and getattr(resolved.config, "redis", False)
        text = "Redis, which the probe below uses" if over_redis else "not configured: no store rdma"
        yield Line("service", "info", text)
        return
    works, case.works = case.works, False
    if config.address is not None:
        ports = [
            _port(case, config.address, number, keys=bool(config.keys))
            for number in (config.address.sync, config.address.coord)
        ]
        yield from ports
        if any(line.kind == "bad" for line in ports):
            return
    patience = min(config.timeout, case.timeout * ANSWERING / 2)
    security = Security(config.keys, config.secret)
    client = MetadataClient(config.address, resolved.namespace, security, patience)
    try:
        client.open()
        began = time.time()
        figures = client.status()
        took = time.time() - began
    except RoutingError as err:
        client.close()
        look = case.timeout * _CONNECTING
        why = config.address and why_silent(config.address, resolved.namespace, security, look)
        yield Line("service", "bad", *why) if why else failed("service", err)
        return
    finally:
        client.close()
    case.works = works
    yield service_line(figures, took, shared=config.address is None)
    yield producers_line(figures.get("owners", ()))
    yield clock_line(figures, began + took / 2, shared=config.address is None)


def _port(case: Case, address: Address, number: int, *, keys: bool) -> Line:
    """Says whether a port of the service is open."""
    closed = closed_port(address, number, case.timeout * _CONNECTING, keys=keys)
    if closed is not None:
        return Line("service", "bad", *closed)
    return Line("service", "good", f"{address.host}:{number} is open")


def service_line(figures: Mapping[str, Any], took: float, *, shared: bool) -> Line:
    """Says what a service says of itself.

    Args:
        figures: Of the service.
        took: Seconds until they came.
        shared: Whether it is the one of this host and user, which one of the processes that need it runs.
    """
    if shared and figures.get("pid") == os.getpid():
        return Line("service", "info", "no process of this host and user needs one now; the first that does runs it")
    uptime = float(figures.get("uptime", 0.0))
    text = f"answers in {show_time(took)}; epoch {figures.get('epoch', '?')}, pid {figures.get('pid', '?')}, "
    text += f"up for {show_time(uptime)}, {counted(int(figures.get('names', 0)), 'object')}"
    if figures.get("settling"):
        return Line("service", "info", f"{text}; it has just started, producers are telling it what they hold")
    return Line("service", "good", text)


def producers_line(owners: Sequence[Mapping[str, Any]]) -> Line:
    """Says who is registered, and who of them gives no sign."""
    owners = [owner for owner in owners if owner.get("state") != "closed"]  # those ended as they should
    if not owners:
        return Line("producers", "info", "none")
    states = Counter(str(owner.get("state", "?")) for owner in owners)
    silent = [owner for owner in owners if owner.get("state") in ("suspect", "lost")]
    text = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    text += f", with {counted(sum(int(owner.get('names', 0)) for owner in owners), 'object')}"
    if not silent:
        return Line("producers", "good", text)
    named = ", ".join(map(_named, silent[:_NAMED])) + (", ..." if len(silent) > _NAMED else "")
    cure = "look whether these processes live; what a dead one held is lost unless its engine starts another worker"
    return Line("producers", "warn", f"{text}: {named}", cure)


def _named(owner: Mapping[str, Any]) -> str:
    where = f"{owner.get('producer', '?')} (pid {owner.get('pid', '?')} on {owner.get('node', '?')})"
    return f"{where} is {owner.get('state')}, silent for {float(owner.get('age', 0.0)):.1f} s"


def clock_line(figures: Mapping[str, Any], here: float, *, shared: bool) -> Line:
    """Says how far the service's clock is from this host's.

    Args:
        figures: Of the service.
        here: This host's time when they were made, in s since 1970.
        shared: Whether both are this host's.
    """
    if shared:
        return Line("clock", "good", "the service is on this host")
    there = figures.get("time")
    if not isinstance(there, (int, float)):
        return Line("clock", "info", "its skew is not known: this service does not tell its time")
    skew = there - here
    text = f"the service's is {show_time(abs(skew))} {'ahead' if skew > 0 else 'behind'}"
    if abs(skew) > _SKEW:
        cure = "synchronise clocks (chrony, NTP): attempts are numbered by the time at which requests arrive"
        return Line("clock", "warn", text, cure)
    return Line("clock", "good", text)
