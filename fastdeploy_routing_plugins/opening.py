"""The way in: a configuration becomes an open store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from .reader.handle import PREFETCH_BYTES, PREFETCH_RECORDS
from .reader.routing_reader import RoutingReader
from .resolver import ResolvedStore, resolve
from .store.bridge import as_async
from .store.routing_store import RoutingStore
from .store.sync import SyncStore
from .writer.limits import WriterLimits
from .writer.routing_writer import RoutingWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .reader.ranges import RankLayout
    from .schema import RoutingSchema
    from .writer.tickets import WriteFailure

Config: TypeAlias = "Mapping[str, Any] | str | ResolvedStore | None"


def open_store(config: Config = None, *, schema: RoutingSchema | None = None) -> SyncStore:
    """Opens the store that a configuration names, for plain code.

    Args:
        config: ``{"routing_store_type": NAME, "routing_store_config": {...}}`` as a mapping, JSON text or ``@file``;
            FastDeploy's own ``--routing-replay-config`` works unchanged. None reads ``FD_ROUTING_STORE_CONFIG``.
        schema: The model's schema: puts follow it, and reads of other routing raise ``SchemaMismatchError``.

    Returns:
        An open store, also a context manager::

            with open_store(config) as store:
                record = store.get("data:0:0:0", timeout=60)

    Raises:
        ResolveError: No such store can be used; the subclass and the message say why and what to do.
        StoreUnavailableError: The store does not open now.
    """
    return SyncStore(_resolved(config), schema)


def open_store_async(config: Config = None, *, schema: RoutingSchema | None = None) -> RoutingStore:
    """Returns the store that a configuration names, for asyncio code; ``async with`` opens and closes it.

    Args and errors are those of ``open_store``::

        async with open_store_async(config) as store:
            record = await store.get("data:0:0:0", timeout=60)
    """
    resolved = _resolved(config)
    return RoutingStore(resolved, as_async(resolved.create_backend()), schema)


def open_writer(
    config: Config = None,
    *,
    schema: RoutingSchema,
    limits: WriterLimits | Mapping[str, Any] | str | None = None,
    on_failure: Callable[[WriteFailure], None] | None = None,
) -> RoutingWriter:
    """Opens the engine's side of the store that a configuration names.

    Args:
        config: As for ``open_store``.
        schema: The model's schema.
        limits: Memory, time and checks: ``WriterLimits``, or its options as a mapping, JSON text or ``@file``; options
            in ``FD_ROUTING_WRITER_CONFIG`` are merged in, unless ``WriterLimits`` itself is given.
        on_failure: Called, in a thread of the writer, with each ``WriteFailure``; it is logged as well.

    Returns:
        An open writer, also a context manager::

            with open_writer(config, schema=schema) as writer:
                writer.submit("data:0:0:0", routing)

    Raises:
        ResolveError: No such store can be used; the subclass and the message say why and what to do.
        ArenaRoomError: There is not enough shared memory; the hint says how to make some.
        WorkerError: The store worker cannot be started.
        StoreUnavailableError: The store does not open now.
    """
    loaded = limits if isinstance(limits, WriterLimits) else WriterLimits.load(limits)
    return RoutingWriter(_resolved(config), schema, loaded, on_failure=on_failure)


def open_reader(
    config: Config = None,
    *,
    schema: RoutingSchema,
    layout: RankLayout | None = None,
    prefetch_bytes: int = PREFETCH_BYTES,
    prefetch_records: int = PREFETCH_RECORDS,
) -> RoutingReader:
    """Opens the trainer's side of the store that a configuration names.

    Args:
        config: As for ``open_store``.
        schema: The model's schema: reads of other routing raise ``SchemaMismatchError``.
        layout: What this rank of a parallel job needs, ``ParallelLayout(...).rank(rank)``; None: everything.
        prefetch_bytes: How many bytes of routing ``prefetch`` holds at most.
        prefetch_records: How many rollouts ``prefetch`` waits for, reads and holds at most.

    Returns:
        An open reader, also a context manager::

            with open_reader(config, schema=schema) as reader:
                batch = reader.get_batch(["data:0:0:0", "data:1:0:0"], timeout=60)

    Raises:
        ResolveError: No such store can be used; the subclass and the message say why and what to do.
        StoreUnavailableError: The store does not open now.
    """
    resolved = _resolved(config)
    reader = RoutingReader(
        resolved, schema, layout, prefetch_bytes=prefetch_bytes, prefetch_records=prefetch_records
    )  # fmt: skip
    return reader.open()


def _resolved(config: Config) -> ResolvedStore:
    return config if isinstance(config, ResolvedStore) else resolve(config)
