"""Which transports a store's handle uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...store.sync import SyncStore


def transports_of(store: SyncStore) -> tuple[str, ...]:
    """Returns by which transports a handle fetches from producers, ``shm``, ``tcp`` or ``rdma``; none elsewhere."""
    backend = getattr(store._store._objects._backend, "blocking", None)
    kinds = getattr(getattr(backend, "_sources", None), "kinds", dict)
    return tuple(sorted(kinds()))
