"""The plugin of ``rdma``: routing stays with the engine's store worker, readers pull it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hookspecs import hookimpl
from ...spec import Capability, StoreContext, StoreSpec

if TYPE_CHECKING:
    from .backend import RdmaBackend
    from .config import RdmaConfig
    from .p2pstore.backend import P2pBackend


def _config() -> type[RdmaConfig]:
    from .config import RdmaConfig

    return RdmaConfig


def _create(context: StoreContext) -> RdmaBackend | P2pBackend:
    if context.config.redis:
        from .p2pstore.backend import P2pBackend

        return P2pBackend(context)
    from .backend import RdmaBackend

    return RdmaBackend(context)


def _preflight(config: RdmaConfig) -> None:
    if config.redis:
        from .p2pstore.needs import check

        check()
    elif config.transport == "rdma":
        from importlib.util import find_spec

        if find_spec("mooncake") is None:
            raise ModuleNotFoundError("transport 'rdma' is Mooncake's Transfer Engine", name="mooncake")


@hookimpl
def fd_routing_store() -> StoreSpec:
    """Declares ``rdma``."""
    return StoreSpec(
        name="rdma",
        api_version=(1, 0),
        summary="routing stays in the engine's memory; readers pull it by shared memory, TCP or RDMA",
        load_config=_config,
        create=_create,
        preflight=_preflight,
        install_hint="pip install 'fastdeploy-routing-plugins[rdma]'",
        capabilities=Capability.READ | Capability.LIST | Capability.NOTIFY | Capability.RANGE | Capability.RETAIN,
        host_keys={"rdma_store_server": "server"},
    )
