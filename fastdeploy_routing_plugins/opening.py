"""The way in: a configuration becomes an open store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from .resolver import ResolvedStore, resolve
from .store.bridge import as_async
from .store.routing_store import RoutingStore
from .store.sync import SyncStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .schema import RoutingSchema

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


def _resolved(config: Config) -> ResolvedStore:
    return config if isinstance(config, ResolvedStore) else resolve(config)
