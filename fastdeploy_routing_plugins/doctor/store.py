"""The configured store: whether it is found and opens, and one round trip through it."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_routing_plugins.cli.choosing import StoreChoice
from fastdeploy_routing_plugins.cli.output import show_time
from fastdeploy_routing_plugins.doctor.case import ANSWERING
from fastdeploy_routing_plugins.doctor.lines import Line
from fastdeploy_routing_plugins.opening import open_store
from fastdeploy_routing_plugins.resolving.sources import CONFIG_VARIABLE
from fastdeploy_routing_plugins.schema import RoutingSchema
from fastdeploy_routing_plugins.spec import Capability
from fastdeploy_routing_plugins.stores.rdma.using import transports_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.doctor.case import Case
    from fastdeploy_routing_plugins.resolver import ResolvedStore
    from fastdeploy_routing_plugins.store.sync import SyncStore

_SCHEMA = RoutingSchema(num_experts=64, top_k=4, layer_ids=range(4))
_TOKENS = 64
_SHELF = 4 << 20  # bytes, enough for the probe
_HOW = f"--store NAME with --config JSON, or {CONFIG_VARIABLE}"


def check_configuration(case: Case) -> Iterator[Line]:
    """Finds the configured store, for this check and the others."""
    stated = (case.store, case.config, case.directory)
    if stated == (None, None, None) and not case.environ.get(CONFIG_VARIABLE):
        yield Line("configuration", "info", "no store is configured here", _HOW)
        return
    resolved = StoreChoice(*stated, case.namespace).resolve()
    case.resolved = resolved
    text = f"{resolved.name} of {resolved.distribution} {resolved.version}: "
    options = ", ".join(f"{name}={value!r}" for name, value in resolved.effective().items() if value not in ("", None))
    yield Line("configuration", "good", text + options)


def check_open(case: Case) -> Iterator[Line]:
    """Opens the configured store, and closes it again."""
    if (reason := _untried(case)) or case.resolved is None:
        yield Line("store", "info", reason)
        return
    case.works = False
    began = time.perf_counter()
    with open_store(_patient(case.resolved, case)) as store:
        took = time.perf_counter() - began
    case.works = True
    yield Line("store", "good", f"{store.resolved.name} opens in {show_time(took)}")


def _untried(case: Case) -> str:
    if case.resolved is None:
        return "not configured, or not found"
    return "" if case.works else "not tried: what it needs does not work, see above"


def _patient(resolved: ResolvedStore, case: Case) -> ResolvedStore:
    """Returns a store that gives up before the check does, and takes nothing that others need."""
    if case.rdma is None:
        return resolved
    changes: dict[str, Any] = {"timeout": min(resolved.config.timeout, case.timeout * ANSWERING / 2)}
    changes |= {"capacity": _SHELF, "port": 0}
    if case.folders:
        changes["arena_dir"] = case.folders[0]
    return replace(resolved, config=replace(resolved.config, **changes), options={**resolved.options, **changes})


def check_probe(case: Case) -> Iterator[Line]:
    """Puts a small rollout into a namespace of its own, gets it by another handle, and deletes it."""
    if (reason := _untried(case)) or case.resolved is None:
        yield Line("probe", "info", reason)
        return
    namespace = f"fd-routing-doctor-{uuid.uuid4().hex[:12]}"
    resolved = _patient(case.resolved, case).with_namespace(namespace)
    with open_store(resolved) as writer, _emptied(writer):
        yield _round_trip(writer, resolved)


def _round_trip(writer: SyncStore, resolved: ResolvedStore) -> Line:
    first = np.arange(_SCHEMA.num_layers * _TOKENS, dtype=np.uint8).reshape(_SCHEMA.num_layers, _TOKENS, 1)
    routing = ((first + 16 * np.arange(_SCHEMA.top_k)) % _SCHEMA.num_experts).astype(_SCHEMA.dtype)
    name = "doctor:0:0:0"
    began = time.perf_counter()
    writer.put(name, routing, schema=_SCHEMA)
    put = show_time(time.perf_counter() - began)
    if Capability.READ | Capability.LIST not in resolved.spec.capabilities:
        return Line("probe", "good", f"put in {put}; {resolved.name} keeps nothing that could be read back")
    # By another handle: what a process put itself, it need not fetch.
    with open_store(resolved) as reader:
        began = time.perf_counter()
        record = reader.get(name)
        got = show_time(time.perf_counter() - began)
        over = " and ".join(transports_of(reader))
    if not np.array_equal(record.routing, routing):
        return Line("probe", "bad", "what came back is not what was put", "fd-routing try shows more")
    if writer.delete(name) != 1:
        return Line("probe", "bad", "what was put was not there to be deleted", "fd-routing try shows more")
    return Line("probe", "good", f"put in {put}, get in {got}{f' over {over}' if over else ''}, deleted")


@contextmanager
def _emptied(store: SyncStore) -> Iterator[None]:
    try:
        yield
    finally:
        if Capability.LIST in store.resolved.spec.capabilities:
            store.clear(everything=True)
