"""Which transports a store's handle uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...store.sync import SyncStore


def transports_of(store: SyncStore) -> tuple[str, ...]:
    """Returns by which transports a handle fetches from producers, for people: ``shm``, ``tcp`` or ``rdma``.

    Empty for a handle that fetched nothing, and for stores without producers.
    """
    backend = getattr(store._store._objects._backend, "blocking", None)
    kinds = sorted(getattr(getattr(backend, "_sources", None), "kinds", dict)())
    if getattr(getattr(backend, "_endpoint", None), "protocol", "rdma") != "rdma":
        kinds = ["rdma (Mooncake's TCP mode)" if kind == "rdma" else kind for kind in kinds]
    return tuple(kinds)
