"""Moves Mixture-of-Experts routing from the rollout engine to the trainer, with pluggable stores.

Names load on first use, so that importing the package costs nothing: no NumPy, no framework, no store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import describe
    from .discovery import Candidate, discover
    from .keys import RolloutId, RoutingKey
    from .names import Part
    from .opening import open_reader, open_store, open_store_async, open_writer
    from .reader.batch import RoutingBatch
    from .reader.ranges import ParallelLayout, RankLayout
    from .reader.routing_reader import RoutingReader
    from .reader.share import RoutingShare
    from .reader.staleness import Freshness
    from .reader.turns import Trajectory
    from .record import RoutingRecord, WeightSpan
    from .resolver import ResolvedStore, resolve
    from .schema import RoutingSchema
    from .status import RolloutStatus
    from .store.routing_store import RoutingStore
    from .store.sync import SyncStore
    from .writer.limits import WriterLimits
    from .writer.routing_writer import RoutingWriter
    from .writer.stats import WriterStats
    from .writer.tickets import FlushReport, WriteFailure

_WHERE = {
    "open_reader": "opening",
    "open_store": "opening",
    "open_store_async": "opening",
    "open_writer": "opening",
    "RoutingWriter": "writer.routing_writer",
    "WriterLimits": "writer.limits",
    "WriterStats": "writer.stats",
    "WriteFailure": "writer.tickets",
    "FlushReport": "writer.tickets",
    "RoutingReader": "reader.routing_reader",
    "RoutingBatch": "reader.batch",
    "RoutingShare": "reader.share",
    "ParallelLayout": "reader.ranges",
    "RankLayout": "reader.ranges",
    "Freshness": "reader.staleness",
    "Trajectory": "reader.turns",
    "RoutingStore": "store",
    "SyncStore": "store.sync",
    "RoutingSchema": "schema",
    "RoutingKey": "keys",
    "RolloutId": "keys",
    "Part": "names",
    "RoutingRecord": "record",
    "RolloutStatus": "status",
    "WeightSpan": "record",
    "resolve": "resolver",
    "ResolvedStore": "resolver",
    "discover": "discovery",
    "Candidate": "discovery",
    "describe": "config",
}

__all__ = [
    "Candidate",
    "FlushReport",
    "Freshness",
    "ParallelLayout",
    "Part",
    "RankLayout",
    "ResolvedStore",
    "RolloutId",
    "RolloutStatus",
    "RoutingBatch",
    "RoutingKey",
    "RoutingReader",
    "RoutingRecord",
    "RoutingSchema",
    "RoutingShare",
    "RoutingStore",
    "RoutingWriter",
    "SyncStore",
    "Trajectory",
    "WeightSpan",
    "WriteFailure",
    "WriterLimits",
    "WriterStats",
    "describe",
    "discover",
    "open_reader",
    "open_store",
    "open_store_async",
    "open_writer",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - costs 10 ms that most processes need not pay

        return version("fastdeploy-routing-plugins")
    if name in _WHERE:
        from importlib import import_module  # noqa: PLC0415 - lazy names are this function's purpose

        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
