"""The plugin of ``local``: routing as safetensors files in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hookspecs import hookimpl
from ...spec import Capability, StoreContext, StoreSpec

if TYPE_CHECKING:
    from .backend import LocalBackend
    from .config import LocalConfig


def _config() -> type[LocalConfig]:
    from .config import LocalConfig

    return LocalConfig


def _create(context: StoreContext) -> LocalBackend:
    if context.config.layout == "pdtensor":
        from .pdtensor import PdtensorBackend

        return PdtensorBackend(context.config)
    from .backend import LocalBackend

    return LocalBackend(context.config)


def _preflight(config: LocalConfig) -> None:
    if config.layout == "pdtensor":
        from importlib.util import find_spec

        if find_spec("paddle") is None:
            raise ModuleNotFoundError("layout 'pdtensor' is written with Paddle", name="paddle")


@hookimpl
def fd_routing_store() -> StoreSpec:
    """Declares ``local``."""
    return StoreSpec(
        name="local",
        api_version=(1, 0),
        summary="safetensors files in a folder, on a local or shared file system",
        load_config=_config,
        create=_create,
        preflight=_preflight,
        install_hint="pip install 'fastdeploy-routing-plugins[cpu]'",
        capabilities=Capability.READ | Capability.LIST | Capability.NOTIFY | Capability.RANGE,
        host_keys={"local_store_dir": "store_dir"},
    )
