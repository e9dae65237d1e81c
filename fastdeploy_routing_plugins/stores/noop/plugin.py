"""The plugin of ``noop``: a store that validates, counts and drops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hookspecs import hookimpl
from ...spec import Capability, StoreContext, StoreSpec

if TYPE_CHECKING:
    from .backend import NoopBackend
    from .config import NoopConfig


def _config() -> type[NoopConfig]:
    from .config import NoopConfig

    return NoopConfig


def _create(context: StoreContext) -> NoopBackend:
    from .backend import NoopBackend

    return NoopBackend()


@hookimpl
def fd_routing_store() -> StoreSpec:
    """Declares ``noop``."""
    return StoreSpec(
        name="noop",
        api_version=(1, 0),
        summary="checks and counts routing, keeps nothing: for measuring and for switching replay off",
        load_config=_config,
        create=_create,
        capabilities=Capability.NONE,
    )
