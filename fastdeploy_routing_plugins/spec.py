"""What a store plugin declares about itself: ``StoreSpec``. Light: a plugin module needs nothing else to be imported.

The store API has a version of its own. A minor adds optional things only; a major removes. A plugin writes the version
that it was written for as a literal, ``api_version=(1, 0)``: copying the constant below would claim compatibility with
whatever happens to be installed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .backend import Backend, BlockingBackend

API_VERSION = (1, 0)
ENTRY_POINT_GROUP = "fastdeploy.routing_store_plugins"


class Capability(enum.Flag):
    """What a backend does natively. Without a capability the store refuses, polls or slices in its place."""

    NONE = 0
    READ = enum.auto()
    """``_get`` returns what was put. Without it the store refuses to read."""
    LIST = enum.auto()
    """``_list`` names what is stored, in order. Without it the store refuses to read, list and clear."""
    NOTIFY = enum.auto()
    """``_wait`` returns promptly after a change. Without it the store polls ``_list``."""
    RANGE = enum.auto()
    """``_get`` moves only the asked byte ranges. Without it the store gets whole objects and slices them."""
    RETAIN = enum.auto()
    """``_put`` keeps the handed-over buffer instead of copying it, and ``_release`` gives it back."""


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What a store's factory is given.

    Attributes:
        name: The store's name, as in ``routing_store_type``.
        config: An instance of the spec's config class, checked.
        namespace: The namespace in use; names begin with its encoded form, so most backends do not need it.
        producer: Who writes, for logs and services; names the process.
    """

    name: str
    config: Any
    namespace: str
    producer: str


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store plugin's declaration, returned by its ``fd_routing_store`` hook.

    Attributes:
        name: Equal to the entry point's name, ``[a-z][a-z0-9_]*``.
        api_version: The store API that the plugin was written for, a literal ``(major, minor)``.
        summary: One line for ``fd-routing list``.
        load_config: Imports and returns the config class, a dataclass whose fields have defaults, types that JSON can
            express and optional metadata (``field(metadata={"doc": "...", "secret": True})``).
        create: Imports the backend and returns an instance that is not open yet.
        capabilities: What the backend does natively.
        preflight: Checks, given the config, that dependencies are importable. No I/O. Raises ``ImportError`` or a
            ``RoutingError``.
        install_hint: How to install what is missing, for example ``pip install 'fd-routing-x[sdk]'``.
        host_keys: Flat keys of the host's configuration that this store understands, mapped to config keys, for
            example ``{"local_store_dir": "store_dir"}``.
    """

    name: str
    api_version: tuple[int, int]
    summary: str
    load_config: Callable[[], type[Any]]
    create: Callable[[StoreContext], Backend | BlockingBackend]
    capabilities: Capability = Capability.READ | Capability.LIST
    preflight: Callable[[Any], None] | None = None
    install_hint: str = ""
    host_keys: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"StoreSpec(name={self.name!r}, api_version={self.api_version!r})"
