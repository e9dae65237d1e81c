"""A store's options for tests, and the way from sources to checked options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fastdeploy_routing_plugins.config import Loaded, load, option_names
from fastdeploy_routing_plugins.errors import ConfigError
from fastdeploy_routing_plugins.resolving.sources import merge, read

HOST_KEYS = {"local_store_dir": "store_dir"}


@dataclass(frozen=True, slots=True)
class Options:
    """One option of each type that a store may have."""

    store_dir: str = field(default="/default", metadata={"doc": "Where it is."})
    fsync: bool = False
    linger: float = 5.0
    retries: int = 3
    servers: list[str] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    limit: int | None = None
    mode: Literal["auto", "shm", "tcp"] = "auto"
    token: str = field(default="", metadata={"secret": True})

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError("option 'retries' must not be negative")
        if not self.store_dir.startswith("/"):
            raise ConfigError("store_dir must be absolute")


def configure(
    config: Mapping[str, Any] | str | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    options: type[Any] = Options,
    host_keys: Mapping[str, str] = HOST_KEYS,
    store: str | None = None,
) -> Loaded:
    """Loads a configuration as the resolver does."""
    request = read(config, environ or {}, store)
    items, problems = merge(request, host_keys=host_keys, options=option_names(options))
    return load(options, items, owner=f"store {request.name!r}", problems=problems)


def problems(*args: Any, **keywords: Any) -> tuple[str, ...]:
    """Loads a configuration that is wrong; returns what is wrong with it."""
    try:
        loaded = configure(*args, **keywords)
    except ConfigError as err:
        found: tuple[str, ...] = err.problems
        return found
    raise AssertionError(f"no problem was found: {loaded}")


def of(**options: Any) -> dict[str, Any]:
    """Returns a configuration in normal form."""
    return {"routing_store_type": "demo", "routing_store_config": options}
